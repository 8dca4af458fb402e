package certs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// What happens on a real API server is tested by test/e2e. Here are the paths it cannot be made to take at will: errors,
// conflicts, and months going by.

const (
	namespace         = "pod-resizer"
	secretName        = "pod-resizer-certificate"
	configurationName = "pod-resizer"
)

var (
	secretsResource    = schema.GroupResource{Resource: "secrets"}
	webhooksResource   = admissionv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations")
	validatingResource = admissionv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations")
)

func emptySecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secretName}}
}

func secretWith(id identity) *corev1.Secret {
	secret := emptySecret()
	secret.Data = id.data()
	return secret
}

func configuration(bundle []byte) *admissionv1.MutatingWebhookConfiguration {
	return &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: configurationName},
		Webhooks: []admissionv1.MutatingWebhook{
			{Name: "a.example.com", ClientConfig: admissionv1.WebhookClientConfig{CABundle: bundle}},
			{Name: "b.example.com", ClientConfig: admissionv1.WebhookClientConfig{CABundle: bundle}},
		},
	}
}

func validating(bundle []byte) *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: configurationName},
		Webhooks:   []admissionv1.ValidatingWebhook{{Name: "c.example.com", ClientConfig: admissionv1.WebhookClientConfig{CABundle: bundle}}},
	}
}

func newSelfManaged(t *testing.T, client *fake.Clientset) *SelfManaged {
	t.Helper()
	return NewSelfManaged(SelfManagedOptions{
		Client:               client,
		Namespace:            namespace,
		SecretName:           secretName,
		WebhookConfiguration: configurationName,
		DNSNames:             []string{serverName},
		Dir:                  t.TempDir(),
		Logger:               slog.New(slog.DiscardHandler),
	})
}

// held returns the identity in the Secret.
func held(t *testing.T, client *fake.Clientset) identity {
	t.Helper()
	secret, err := client.CoreV1().Secrets(namespace).Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id, made, err := ensureIdentity(secret.Data, []string{serverName}, time.Now())
	if err != nil || made.leaf {
		t.Fatalf("the Secret is not in order: %v, %v", made.reason, err)
	}
	return id
}

// expectInPlace checks that what the Secret holds is what is served and trusted.
func expectInPlace(t *testing.T, s *SelfManaged, client *fake.Clientset) {
	t.Helper()
	id := held(t, client)
	for name, want := range map[string][]byte{"tls.crt": id.leaf.certPEM, "tls.key": id.leaf.keyPEM} {
		if got, err := os.ReadFile(filepath.Join(s.Dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s on disk is not the Secret's (%v)", name, err)
		}
	}
	webhooks, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().
		Get(t.Context(), configurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, webhook := range webhooks.Webhooks {
		if !bytes.Contains(webhook.ClientConfig.CABundle, id.ca.certPEM) {
			t.Errorf("the caBundle of %s does not contain the CA", webhook.Name)
		}
	}
	workloads, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().
		Get(t.Context(), configurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, webhook := range workloads.Webhooks {
		if !bytes.Contains(webhook.ClientConfig.CABundle, id.ca.certPEM) {
			t.Errorf("the caBundle of %s does not contain the CA", webhook.Name)
		}
	}
	if err := s.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

func onDisk(t *testing.T, s *SelfManaged) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(s.Dir, "tls.crt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestSelfManagedSaysWhatIsInTheWay(t *testing.T) {
	forbid := func(verb, resource string) func(*fake.Clientset) {
		return func(client *fake.Clientset) {
			client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "x", errors.New("no such rule"))
			})
		}
	}
	noWebhooks := configuration(nil)
	noWebhooks.Webhooks = nil
	for name, test := range map[string]struct {
		objects  []runtime.Object
		sabotage func(*fake.Clientset)
		want     []string
	}{
		"the Secret is missing": {
			objects: []runtime.Object{configuration(nil), validating(nil)},
			want:    []string{"reading Secret pod-resizer/pod-resizer-certificate: ", "not found", "apply the manifests"},
		},
		"the webhook configuration is missing": {
			objects: []runtime.Object{emptySecret(), validating(nil)},
			want:    []string{"reading MutatingWebhookConfiguration pod-resizer: ", "not found", "apply the manifests"},
		},
		"the configuration for workloads is missing": {
			objects: []runtime.Object{emptySecret(), configuration(nil)},
			want:    []string{"reading ValidatingWebhookConfiguration pod-resizer: ", "not found", "apply the manifests"},
		},
		"the webhook configuration has no webhooks": {
			objects: []runtime.Object{emptySecret(), noWebhooks, validating(nil)},
			want:    []string{"reading MutatingWebhookConfiguration pod-resizer: it has no webhooks; apply the manifests"},
		},
		"the Secret may not be read": {
			objects: []runtime.Object{emptySecret(), configuration(nil), validating(nil)}, sabotage: forbid("get", "secrets"),
			want: []string{"reading Secret", "forbidden", "apply the manifests"},
		},
		"the Secret may not be written": {
			objects: []runtime.Object{emptySecret(), configuration(nil), validating(nil)}, sabotage: forbid("patch", "secrets"),
			want: []string{"patching Secret pod-resizer/pod-resizer-certificate: ", "forbidden"},
		},
		"the webhook configuration may not be written": {
			objects: []runtime.Object{emptySecret(), configuration(nil), validating(nil)}, sabotage: forbid("patch", "mutatingwebhookconfigurations"),
			want: []string{"patching MutatingWebhookConfiguration pod-resizer: ", "forbidden"},
		},
		"the configuration for workloads may not be written": {
			objects: []runtime.Object{emptySecret(), configuration(nil), validating(nil)}, sabotage: forbid("patch", "validatingwebhookconfigurations"),
			want: []string{"patching ValidatingWebhookConfiguration pod-resizer: ", "forbidden"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.objects...)
			if test.sabotage != nil {
				test.sabotage(client)
			}
			s := newSelfManaged(t, client)
			_, err := s.round(t.Context())
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
			}
			if got := s.Ready(); got == nil || got.Error() != err.Error() {
				t.Errorf("Ready: %v, want %v", got, err)
			}
			if onDisk(t, s) {
				t.Error("a certificate is served that no caller trusts yet")
			}
		})
	}
}

func TestSelfManagedNeedsNoWebhook(t *testing.T) {
	client := fake.NewClientset(emptySecret())
	s := newSelfManaged(t, client)
	s.WebhookConfiguration = ""
	if _, err := s.round(t.Context()); err != nil || s.Ready() != nil || !onDisk(t, s) {
		t.Errorf("%v; ready: %v; certificate on disk: %t", err, s.Ready(), onDisk(t, s))
	}
	for _, action := range client.Actions() {
		if action.GetResource() == webhooksResource || action.GetResource() == validatingResource {
			t.Errorf("%s %v", action.GetVerb(), action.GetResource())
		}
	}
}

func TestSelfManagedSaysThatTheDirectoryIsMissing(t *testing.T) {
	s := newSelfManaged(t, fake.NewClientset(emptySecret(), configuration(nil), validating(nil)))
	s.Dir = filepath.Join(s.Dir, "missing")
	if _, err := s.round(t.Context()); err == nil || !strings.Contains(err.Error(), "writing the serving pair: ") {
		t.Errorf("error %v", err)
	}
	if s.Ready() == nil {
		t.Error("ready without a pair on disk")
	}
}

func TestSelfManagedAdoptsWhatTheOtherReplicaWroteFirst(t *testing.T) {
	client := fake.NewClientset(emptySecret(), configuration(nil), validating(nil))
	other := newIdentity(t, time.Now())
	conflicts := 0
	client.PrependReactor("patch", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), secretWith(other), namespace)
		if err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(secretsResource, secretName, errors.New("it was modified"))
	})
	s := newSelfManaged(t, client)
	if _, err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if conflicts != 1 {
		t.Errorf("wrote %d times, want once", conflicts)
	}
	if got := held(t, client); !got.ca.cert.Equal(other.ca.cert) {
		t.Error("the other replica's CA was overwritten")
	}
	expectInPlace(t, s, client)
}

func TestSelfManagedKeepsTheCAThatAnotherPutIntoTheBundleMeanwhile(t *testing.T) {
	client := fake.NewClientset(emptySecret(), configuration(nil), validating(nil))
	other := newIdentity(t, time.Now()).ca
	first := true
	client.PrependReactor("patch", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !first {
			return false, nil, nil
		}
		first = false
		if err := client.Tracker().Update(webhooksResource, configuration(other.certPEM), ""); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(webhooksResource.GroupResource(), configurationName, errors.New("it was modified"))
	})
	s := newSelfManaged(t, client)
	if _, err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectInPlace(t, s, client)
	webhooks, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().
		Get(t.Context(), configurationName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(webhooks.Webhooks[1].ClientConfig.CABundle, other.certPEM) {
		t.Error("the other's CA was dropped")
	}
}

func TestSelfManagedWritesNothingWhereAllIsInPlace(t *testing.T) {
	id := newIdentity(t, time.Now())
	client := fake.NewClientset(secretWith(id), configuration(id.ca.certPEM), validating(id.ca.certPEM))
	s := newSelfManaged(t, client)
	for range 2 {
		if _, err := s.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("it wrote: %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
	expectInPlace(t, s, client)
}

func TestSelfManagedTrustsANewCABeforeItServesIt(t *testing.T) {
	id := newIdentity(t, time.Now())
	client := fake.NewClientset(secretWith(id), configuration(id.ca.certPEM), validating(id.ca.certPEM))
	s := newSelfManaged(t, client)
	if _, err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}

	corrupt := secretWith(id)
	corrupt.Data["ca.key"] = []byte("garbage")
	if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), corrupt, namespace); err != nil {
		t.Fatal(err)
	}
	broken := true
	client.PrependReactor("patch", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, apierrors.NewInternalError(errors.New("etcd is away"))
	})
	if _, err := s.round(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if served, err := os.ReadFile(filepath.Join(s.Dir, "tls.crt")); err != nil || !bytes.Equal(served, id.leaf.certPEM) {
		t.Errorf("the old certificate is no longer served, the new one not yet trusted (%v)", err)
	}
	if err := s.Ready(); err != nil {
		t.Errorf("not ready although the old pair still serves: %v", err)
	}

	broken = false
	if _, err := s.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectInPlace(t, s, client)
}

// run starts s in a bubble, where time goes by at once and a goroutine left after Run fails the test.
func run(t *testing.T, s *SelfManaged) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestSelfManagedRunRepairsWhatIsMissingOrUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		s := newSelfManaged(t, client)
		stop := run(t, s)
		defer stop()
		// Longer than the pauses between rounds, shorter than those between retries by then: the watch does it.
		settle := func() { time.Sleep(2 * time.Second) }

		time.Sleep(10 * time.Minute)
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "reading Secret") {
			t.Errorf("Ready: %v, want the missing Secret", err)
		}

		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"Secret and configurations are created", func() error {
				return errors.Join(client.Tracker().Add(emptySecret()), client.Tracker().Add(configuration(nil)), client.Tracker().Add(validating(nil)))
			}},
			{"an apply empties the caBundle", func() error {
				return client.Tracker().Update(webhooksResource, configuration(nil), "")
			}},
			{"an apply empties the caBundle for workloads", func() error {
				return client.Tracker().Update(validatingResource, validating(nil), "")
			}},
			{"an apply empties the Secret", func() error {
				return client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), emptySecret(), namespace)
			}},
			{"the other replica replaces the Secret", func() error {
				other := secretWith(newIdentity(t, time.Now()))
				return client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), other, namespace)
			}},
			{"Secret and configurations are deleted and created again", func() error {
				return errors.Join(
					client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), namespace, secretName),
					client.Tracker().Delete(webhooksResource, "", configurationName),
					client.Tracker().Delete(validatingResource, "", configurationName),
					client.Tracker().Add(emptySecret()), client.Tracker().Add(configuration(nil)), client.Tracker().Add(validating(nil)))
			}},
		} {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			settle()
			expectInPlace(t, s, client)
			if t.Failed() {
				t.Fatalf("after: %s", step.name)
			}
		}
	})
}

func TestSelfManagedRunRenewsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(emptySecret(), configuration(nil), validating(nil))
		s := newSelfManaged(t, client)
		defer run(t, s)()
		time.Sleep(time.Second)
		first := held(t, client)

		time.Sleep(leafLife*2/3 - time.Hour)
		if now := held(t, client); !now.leaf.cert.Equal(first.leaf.cert) {
			t.Error("renewed too early")
		}
		time.Sleep(time.Hour)
		second := held(t, client)
		if second.leaf.cert.Equal(first.leaf.cert) {
			t.Error("not renewed")
		}
		if !second.ca.cert.Equal(first.ca.cert) {
			t.Error("the CA was replaced with it")
		}
		expectInPlace(t, s, client)

		time.Sleep(2 * caLife)
		expectInPlace(t, s, client)
	})
}

func TestSelfManagedRunDoesNotFightWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(emptySecret(), configuration(nil), validating(nil))
		var patches atomic.Int64
		client.PrependReactor("patch", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
			patches.Add(1)
			undone := configuration(nil)
			return true, undone, client.Tracker().Update(webhooksResource, undone, "")
		})
		defer run(t, newSelfManaged(t, client))()
		time.Sleep(time.Minute)
		const limit = roundsAtOnce + 60*roundsPerSecond + 1
		if got := patches.Load(); got < 60 || got > limit {
			t.Errorf("%d patches in a minute, want 60 to %d", got, limit)
		}
	})
}
