package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"pod-resizer/resizer"
	"pod-resizer/test/deploy"
)

// TestRights asks the API server itself what the product's account may do: what it needs, and nothing that could change an
// image or reach another's secrets.
func TestRights(t *testing.T) {
	const own, other = deploy.Namespace, "default"
	for _, c := range []struct {
		verb, group, resource, subresource, namespace, name string
		allowed                                             bool
	}{
		{"list", "", "pods", "", other, "", true},
		{"watch", "", "pods", "", other, "", true},
		{"patch", "", "pods", "resize", other, "x", true},
		{"patch", "", "pods", "status", other, "x", true},
		{"create", "", "events", "", other, "", true},
		{"get", "", "secrets", "", own, "pod-resizer-tls", true},
		{"patch", "", "secrets", "", own, "pod-resizer-tls", true},
		{"update", "coordination.k8s.io", "leases", "", own, "pod-resizer", true},
		{"patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "", "pod-resizer", true},
		{"patch", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", "pod-resizer", true},

		{"patch", "", "pods", "", other, "x", false},
		{"update", "", "pods", "", other, "x", false},
		{"create", "", "pods", "", other, "", false},
		{"delete", "", "pods", "", other, "x", false},
		{"update", "", "pods", "status", other, "x", false},
		{"patch", "", "pods", "ephemeralcontainers", other, "x", false},
		{"create", "", "pods", "exec", other, "x", false},
		{"get", "", "secrets", "", other, "x", false},
		{"get", "", "secrets", "", own, "x", false},
		{"list", "", "secrets", "", own, "", false},
		{"create", "", "secrets", "", own, "", false},
		{"update", "coordination.k8s.io", "leases", "", own, "x", false},
		{"create", "coordination.k8s.io", "leases", "", own, "", false},
		{"patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "", "x", false},
		{"patch", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", "x", false},
		{"create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "", "", false},
		{"create", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", "", false},
		{"get", "", "nodes", "", "", "x", false},
		{"patch", "apps", "deployments", "", other, "x", false},
	} {
		t.Run(fmt.Sprintf("%s %s/%s %s/%s", c.verb, c.resource, c.subresource, c.namespace, c.name), func(t *testing.T) {
			review, err := shared.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: account, Groups: []string{
					"system:serviceaccounts", "system:serviceaccounts:" + deploy.Namespace, "system:authenticated",
				}, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: c.verb, Group: c.group, Resource: c.resource, Subresource: c.subresource, Namespace: c.namespace, Name: c.name,
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed != c.allowed {
				t.Errorf("allowed: %t, want %t (%s)", review.Status.Allowed, c.allowed, review.Status.Reason)
			}
		})
	}
}

// TestARoleThatLacksSomethingIsFoundOutAtTheStart, without a pod, and a replica becomes ready once it has been mended.
func TestARoleThatLacksSomethingIsFoundOutAtTheStart(t *testing.T) {
	t.Parallel()
	l := shared
	ns := l.namespace(t)
	account, err := l.client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "lacking"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(l.config)
	config.Impersonate.UserName = "system:serviceaccount:" + ns + ":" + account.Name
	config.Impersonate.Groups = []string{"system:serviceaccounts", "system:authenticated"}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	rights := resizer.NewRights(client, deploy.Namespace, deploy.Name, slog.New(slog.DiscardHandler))
	if err := rights.Ready(); err == nil {
		t.Error("ready before anything is known")
	}
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { rights.Run(ctx) })
	t.Cleanup(func() {
		stop()
		run.Wait()
	})
	eventually(t, "what is missing is named", func(context.Context) (bool, string) {
		err := rights.Ready()
		return err != nil && strings.Contains(err.Error(), "may not list pods, watch pods, patch pods/resize, patch pods/status, create events, update leases: apply the roles"),
			fmt.Sprint(err)
	})
	// The product's own roles.
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: account.Name}}
	bindings := l.client.RbacV1().ClusterRoleBindings()
	bound, err := bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: ns}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: deploy.Name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bindings.Delete(context.Background(), bound.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	roleBindings := l.client.RbacV1().RoleBindings(deploy.Namespace)
	if _, err := roleBindings.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: ns}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: deploy.Name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := roleBindings.Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "nothing is missing any more", func(context.Context) (bool, string) {
		err := rights.Ready()
		return err == nil, fmt.Sprint(err)
	})
}

// TestCABundleIsPutBack: what a re-created or emptied webhook configuration lacks is there again at once.
func TestCABundleIsPutBack(t *testing.T) {
	shared.needsRealNode(t, "the certificate of a process beside the cluster comes from files")
	api := shared.client.AdmissionregistrationV1()
	remove := []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	for kind, c := range map[string]struct {
		get   func(context.Context) (string, error)
		empty func() error
	}{
		"mutating": {func(ctx context.Context) (string, error) {
			now, err := api.MutatingWebhookConfigurations().Get(ctx, deploy.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			return string(now.Webhooks[0].ClientConfig.CABundle), nil
		}, func() error {
			_, err := api.MutatingWebhookConfigurations().Patch(t.Context(), deploy.Name, types.JSONPatchType, remove, metav1.PatchOptions{})
			return err
		}},
		"validating": {func(ctx context.Context) (string, error) {
			now, err := api.ValidatingWebhookConfigurations().Get(ctx, deploy.Name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			return string(now.Webhooks[0].ClientConfig.CABundle), nil
		}, func() error {
			_, err := api.ValidatingWebhookConfigurations().Patch(t.Context(), deploy.Name, types.JSONPatchType, remove, metav1.PatchOptions{})
			return err
		}},
	} {
		t.Run(kind, func(t *testing.T) {
			before, err := c.get(t.Context())
			if err != nil || !strings.Contains(before, "BEGIN CERTIFICATE") {
				t.Fatalf("the caBundle is %q, %v", before, err)
			}
			if err := c.empty(); err != nil { // It fails where there is none.
				t.Fatal(err)
			}
			eventually(t, "the same caBundle", func(ctx context.Context) (bool, string) {
				now, err := c.get(ctx)
				return err == nil && now == before, fmt.Sprint(now, err)
			})
		})
	}
}

// TestReady asks every replica over HTTPS what the kubelet asks.
func TestReady(t *testing.T) {
	shared.needsRealNode(t, "it asks pods")
	pods, err := shared.client.CoreV1().Pods(deploy.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		for path, want := range map[string]string{"healthz": "leader-election", "readyz": "ca-bundle"} {
			body, err := shared.client.CoreV1().Pods(deploy.Namespace).ProxyGet("https", pod.Name, "8443", path, nil).DoRaw(t.Context())
			if err != nil || !strings.Contains(string(body), "[+]"+want+" ok") {
				t.Errorf("%s of %s: %v\n%s", path, pod.Name, err, body)
			}
		}
	}
	if leaders := shared.metric(t, "pod_resizer_leader"); leaders != 1 {
		t.Errorf("%v leaders", leaders)
	}
}

// TestApplyAgain: the Secret stands empty in the manifest; applying it again takes nothing of what the product has put in.
func TestApplyAgain(t *testing.T) {
	shared.needsRealNode(t, "the certificate of a process beside the cluster comes from files")
	secrets := shared.client.CoreV1().Secrets(deploy.Namespace)
	before, err := secrets.Get(t.Context(), "pod-resizer-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := deploy.Apply(t.Context(), shared.cluster, deploy.Manifest()); err != nil {
		t.Fatal(err)
	}
	after, err := secrets.Get(t.Context(), "pod-resizer-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(before.Data) == 0 || mustData(t, before) != mustData(t, after) {
		t.Errorf("applying the manifest again changed the Secret's keys from %d to %d", len(before.Data), len(after.Data))
	}
}

func mustData(t *testing.T, s *corev1.Secret) string {
	t.Helper()
	data, err := json.Marshal(s.Data)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
