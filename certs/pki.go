package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	caCertKey = corev1.ServiceAccountRootCAKey // "ca.crt", as cert-manager names it too
	caKeyKey  = "ca.key"

	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour

	// clockSkew is how far the API server's clock may be behind ours; nodes without NTP drift by minutes.
	clockSkew = time.Hour

	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY" // PKCS #8
)

// pair is a certificate with its key, as kept in the Secret and parsed.
type pair struct {
	certPEM, keyPEM []byte
	cert            *x509.Certificate
	key             crypto.Signer
}

// renewAt is when a third of the life is left: of a serving certificate four months, time to notice that renewal fails.
func (p pair) renewAt() time.Time {
	return p.cert.NotAfter.Add(-p.cert.NotAfter.Sub(p.cert.NotBefore) / 3)
}

// identity is what the Secret holds: a CA and the serving certificate it signed.
type identity struct {
	ca, leaf pair
}

func (id identity) data() map[string][]byte {
	return map[string][]byte{
		caCertKey:               id.ca.certPEM,
		caKeyKey:                id.ca.keyPEM,
		corev1.TLSCertKey:       id.leaf.certPEM,
		corev1.TLSPrivateKeyKey: id.leaf.keyPEM,
	}
}

// issued says what ensureIdentity had to make anew, and why.
type issued struct {
	leaf, ca bool
	reason   error // why what was held would not do
}

// ensureIdentity returns the identity held in a Secret's data if it serves all names and need not be renewed yet,
// else one of which as little as possible is new. The error is one of the key generator, not of the data.
func ensureIdentity(held map[string][]byte, names []string, now time.Time) (identity, issued, error) {
	ca, caErr := heldCA(held, now)
	if caErr == nil {
		leaf, leafErr := heldLeaf(held, ca, names, now)
		if leafErr == nil {
			return identity{ca: ca, leaf: leaf}, issued{}, nil
		}
		// A CA that a new serving certificate would outlive is replaced along with it.
		if !now.Add(leafLife).After(ca.cert.NotAfter) {
			leaf, err := issueLeaf(ca, names, now)
			return identity{ca: ca, leaf: leaf}, issued{leaf: true, reason: leafErr}, err
		}
		caErr = fmt.Errorf("the CA expires at %s, within the life of a new certificate", ca.cert.NotAfter.Format(time.RFC3339))
	}
	ca, err := issueCA(now)
	if err != nil {
		return identity{}, issued{}, err
	}
	leaf, err := issueLeaf(ca, names, now)
	return identity{ca: ca, leaf: leaf}, issued{leaf: true, ca: true, reason: caErr}, err
}

func heldCA(held map[string][]byte, now time.Time) (pair, error) {
	if len(held[caCertKey]) == 0 && len(held[caKeyKey]) == 0 {
		return pair{}, errors.New("no CA yet")
	}
	ca, err := parsePair(held[caCertKey], held[caKeyKey])
	switch {
	case err != nil:
		return pair{}, fmt.Errorf("parsing %s and %s: %w", caCertKey, caKeyKey, err)
	case !ca.cert.IsCA:
		return pair{}, fmt.Errorf("%s is not a CA", caCertKey)
	case now.After(ca.cert.NotAfter):
		return pair{}, fmt.Errorf("%s expired at %s", caCertKey, ca.cert.NotAfter.Format(time.RFC3339))
	}
	return ca, nil
}

func heldLeaf(held map[string][]byte, ca pair, names []string, now time.Time) (pair, error) {
	leaf, err := parsePair(held[corev1.TLSCertKey], held[corev1.TLSPrivateKeyKey])
	if err != nil {
		return pair{}, fmt.Errorf("parsing %s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	for _, name := range names {
		// The default key usage is ServerAuth: these are the checks that the API server will make.
		if _, err := leaf.cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
			return pair{}, fmt.Errorf("verifying %s: %w", corev1.TLSCertKey, err)
		}
	}
	if renewAt := leaf.renewAt(); !now.Before(renewAt) {
		return pair{}, fmt.Errorf("%s was due for renewal at %s", corev1.TLSCertKey, renewAt.Format(time.RFC3339))
	}
	return leaf, nil
}

func issueCA(now time.Time) (pair, error) {
	return issue(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "pod-resizer CA"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it signs serving certificates only
	}, nil)
}

func issueLeaf(ca pair, names []string, now time.Time) (pair, error) {
	return issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "pod-resizer"},
		DNSNames:    names,
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &ca)
}

// issue makes a key and has its certificate signed by the issuer, or by itself where that is nil.
func issue(template *x509.Certificate, issuer *pair) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("generating a key: %w", err)
	}
	parent, signer := template, crypto.Signer(key)
	if issuer != nil {
		parent, signer = issuer.cert, issuer.key
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return pair{}, fmt.Errorf("signing a certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, fmt.Errorf("encoding a key: %w", err)
	}
	return parsePair(
		pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: pkcs8}))
}

// parsePair returns an error also if the key is not the certificate's.
func parsePair(certPEM, keyPEM []byte) (pair, error) {
	parsed, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return pair{}, err
	}
	key, ok := parsed.PrivateKey.(crypto.Signer)
	if !ok {
		return pair{}, fmt.Errorf("key of type %T cannot sign", parsed.PrivateKey)
	}
	return pair{certPEM: certPEM, keyPEM: keyPEM, cert: parsed.Leaf, key: key}, nil
}

// withCA returns bundle itself if it contains the CA. Otherwise it appends the CA to those certificates in it that
// can still verify something: others may rely on them, and so does a replica that still serves what an older CA
// signed.
func withCA(bundle []byte, ca pair, now time.Time) (complete []byte, added bool) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != pemCert || now.After(cert.NotAfter) {
			continue
		}
		if cert.Equal(ca.cert) {
			return bundle, false
		}
		complete = append(complete, pem.EncodeToMemory(block)...)
	}
	return append(complete, ca.certPEM...), true
}
