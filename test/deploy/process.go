package deploy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"pod-resizer/test/cluster"
)

// Beside simulated nodes, one replica of pod-resizer is a process of this machine. It has the rights of its ServiceAccount,
// whose token it uses, and the API server calls it by URL; all else is as manifests/install.yaml says.

// processKubeconfig lies in the cluster's folder, too.
func processKubeconfig(c *cluster.Cluster) string {
	return filepath.Join(c.Temp(), "pod-resizer.kubeconfig")
}

// tokenSeconds is longer than a cluster of this kind is kept.
const tokenSeconds = 30 * 24 * 60 * 60

func startProcess(ctx context.Context, c *cluster.Cluster) error {
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(c.CA())
	if err != nil {
		return err
	}
	if err := apply(ctx, c, Manifest(), func(object *unstructured.Unstructured) (bool, error) {
		switch object.GetKind() {
		case "Deployment", "Service": // The process stands for both.
			return false, nil
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			return true, callByURL(object, "https://"+address, ca)
		}
		return true, nil
	}); err != nil {
		return err
	}
	if err := writeKubeconfig(ctx, c, ca); err != nil {
		return err
	}
	return scaleProcess(ctx, c, 1)
}

// freeAddress is one that is free at this moment.
func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// callByURL has webhooks called at an address, under the path where their Service would be called.
func callByURL(webhooks *unstructured.Unstructured, address string, ca []byte) error {
	all, _, err := unstructured.NestedSlice(webhooks.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, w := range all {
		path, _, err := unstructured.NestedString(w.(map[string]any), "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		if err := unstructured.SetNestedMap(w.(map[string]any), map[string]any{
			"url": address + path, "caBundle": base64.StdEncoding.EncodeToString(ca),
		}, "clientConfig"); err != nil {
			return err
		}
	}
	return unstructured.SetNestedSlice(webhooks.Object, all, "webhooks")
}

func writeKubeconfig(ctx context.Context, c *cluster.Cluster, ca []byte) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	seconds := int64(tokenSeconds)
	token, err := client.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("requesting a token of pod-resizer's ServiceAccount: %w", err)
	}
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	kubeconfig := api.NewConfig()
	kubeconfig.Clusters[Name] = &api.Cluster{Server: config.Host, CertificateAuthorityData: ca}
	kubeconfig.AuthInfos[Name] = &api.AuthInfo{Token: token.Status.Token}
	kubeconfig.Contexts[Name] = &api.Context{Cluster: Name, AuthInfo: Name}
	kubeconfig.CurrentContext = Name
	if err := clientcmd.WriteToFile(*kubeconfig, processKubeconfig(c)); err != nil {
		return fmt.Errorf("writing pod-resizer's kubeconfig: %w", err)
	}
	return nil
}

// processAddress is where the API server calls the process.
func processAddress(ctx context.Context, c *cluster.Cluster) (string, error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	webhooks, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, Name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading the webhook configuration: %w", err)
	}
	if webhooks.Webhooks[0].ClientConfig.URL == nil {
		return "", fmt.Errorf("the webhook configuration %s has no URL: pod-resizer was not deployed from here", Name)
	}
	at, err := url.Parse(*webhooks.Webhooks[0].ClientConfig.URL)
	if err != nil {
		return "", fmt.Errorf("reading the webhook configuration: %w", err)
	}
	return at.Host, nil
}

// scaleProcess runs the process, or ends it.
func scaleProcess(ctx context.Context, c *cluster.Cluster, replicas int32) error {
	if replicas == 0 {
		return c.RunBeside(ctx)
	}
	return Process(ctx, c)
}

// Process runs the process with flags, anew if they are others than before.
func Process(ctx context.Context, c *cluster.Cluster, flags ...string) error {
	address, err := processAddress(ctx, c)
	if err != nil {
		return err
	}
	if err := c.RunBeside(ctx, cluster.Program{
		Name: Name, Path: productBinary(c), Args: append([]string{
			"serve", "--kubeconfig", processKubeconfig(c), "--namespace", Namespace, "--identity", "process",
			"--listen", address, "--certificate", "files", "--cert-dir", c.BesideCertificates(), "--shutdown-delay", "0s",
		}, flags...),
	}); err != nil {
		return err
	}
	return awaitProcess(ctx, c)
}

func awaitProcess(ctx context.Context, c *cluster.Cluster) error {
	var last error
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, readyTimeout, true, func(ctx context.Context) (bool, error) {
		_, last = askProcess(ctx, c, "/readyz")
		return last == nil, nil
	}); err != nil {
		return fmt.Errorf("waiting for pod-resizer to be ready: %w; its log: %s", last, filepath.Join(c.Logs(), Name+".log"))
	}
	return nil
}

func askProcess(ctx context.Context, c *cluster.Cluster, path string) ([]byte, error) {
	address, err := processAddress(ctx, c)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.CA())
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", request.URL, response.Status, body)
	}
	return body, err
}

// Metrics is what every replica answers to a scraper, by replica.
func Metrics(ctx context.Context, c *cluster.Cluster) (map[string][]byte, error) {
	if c.Node() == cluster.Simulated {
		body, err := askProcess(ctx, c, "/metrics")
		return map[string][]byte{Name: body}, err
	}
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	pods, err := client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of pod-resizer: %w", err)
	}
	all := map[string][]byte{}
	for _, pod := range pods.Items {
		// Through the API server's proxy, which reaches pods wherever the caller runs.
		body, err := client.CoreV1().Pods(Namespace).ProxyGet("https", pod.Name, "8443", "metrics", nil).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("scraping %s: %w", pod.Name, err)
		}
		all[pod.Name] = body
	}
	return all, nil
}
