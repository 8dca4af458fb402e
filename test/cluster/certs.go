package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// validity is far longer than a test cluster lives, and short enough that a leaked key is worthless soon.
const validity = 30 * 24 * time.Hour

// authority is the cluster's one CA: for the servers, the clients and the aggregator alike.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// identity is one certificate, for a client (Name and Groups are its user and groups) or a server (Hosts) or both.
type identity struct {
	File   string
	Name   string
	Groups []string
	Hosts  []string
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the CA: %w", err)
	}
	ca := &authority{dir: dir, key: key}
	ca.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pod-resizer-test-cluster"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IsCA: true, BasicConstraintsValid: true,
	}
	return ca, ca.write("ca", ca.cert, key)
}

func (ca *authority) issue(id identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generating the key of %s: %w", id.File, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return fmt.Errorf("generating the certificate of %s: %w", id.File, err)
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: id.Name, Organization: id.Groups},
		NotBefore: ca.cert.NotBefore, NotAfter: ca.cert.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, h := range id.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, h)
		}
	}
	return ca.write(id.File, cert, key)
}

func (ca *authority) write(file string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, ca.cert, key.Public(), ca.key)
	if err != nil {
		return fmt.Errorf("signing the certificate of %s: %w", file, err)
	}
	if err := os.WriteFile(ca.crt(file), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return fmt.Errorf("writing a certificate: %w", err)
	}
	return writeKey(ca.keyFile(file), key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding a key: %w", err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("writing a key: %w", err)
	}
	return nil
}

func (ca *authority) crt(file string) string     { return filepath.Join(ca.dir, file+".crt") }
func (ca *authority) keyFile(file string) string { return filepath.Join(ca.dir, file+".key") }

// writeKubeconfig writes a kubeconfig with everything inside it, readable by its owner only.
func (ca *authority) writeKubeconfig(path, server, file string) error {
	config := api.NewConfig()
	const name = "pod-resizer"
	read := func(p string) (b []byte, err error) {
		if b, err = os.ReadFile(p); err != nil {
			err = fmt.Errorf("writing a kubeconfig: %w", err)
		}
		return b, err
	}
	caCert, err := read(ca.crt("ca"))
	if err != nil {
		return err
	}
	cert, err := read(ca.crt(file))
	if err != nil {
		return err
	}
	key, err := read(ca.keyFile(file))
	if err != nil {
		return err
	}
	config.Clusters[name] = &api.Cluster{Server: server, CertificateAuthorityData: caCert}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}
