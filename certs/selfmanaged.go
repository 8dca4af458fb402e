package certs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/retry"
)

const (
	// An error is retried after 1 s, then half as often each time, up to a minute: an API server that is down is found
	// up again soon enough, and what a person repairs (a missing object) wakes us by its watch.
	minRetry = time.Second
	maxRetry = time.Minute

	// If something else undoes our writes (a GitOps tool that owns the caBundle), the watch turns that into a fight at
	// the speed of the network. 20 rounds at once are more than any sequence of a person's changes (each causes up to
	// three: the change, our Secret, our caBundle), one a second from then on does no harm to an API server.
	roundsPerSecond = 1
	roundsAtOnce    = 20
)

// SelfManagedOptions are the settings of a SelfManaged. All but Now are required.
type SelfManagedOptions struct {
	Client kubernetes.Interface
	// Namespace and SecretName name the Secret (type Opaque) that keeps CA and serving certificate. It has to exist,
	// empty at first: RBAC by resourceNames cannot allow its creation.
	Namespace, SecretName string
	// WebhookConfiguration is the name of the two webhook configurations, mutating and validating, whose caBundles are kept
	// complete. They have to exist, too. Empty where there are none, because policies do the admission.
	WebhookConfiguration string
	// DNSNames are the names the API server calls: of the Service, "name.namespace.svc".
	DNSNames []string
	// Dir receives tls.crt and tls.key, for Files to serve them. It has to exist.
	Dir    string
	Logger *slog.Logger
	// Now is time.Now where nil.
	Now func() time.Time
}

// SelfManaged keeps a CA and a serving certificate where there is no cert-manager to do it: in a Secret that all
// replicas share, in the caBundle of the webhooks, and in the directory that this replica serves from.
type SelfManaged struct {
	SelfManagedOptions

	mu       sync.Mutex
	notReady error
}

// NewSelfManaged returns a SelfManaged that does nothing until Run.
func NewSelfManaged(options SelfManagedOptions) *SelfManaged {
	if options.Now == nil {
		options.Now = time.Now
	}
	return &SelfManaged{SelfManagedOptions: options, notReady: errors.New("self-managed certificate: not started")}
}

// Ready returns nil once the caBundles were seen to contain the CA and the pair is in the directory, else what is in the
// way. It stays ready from then on, for the pair on disk goes on to serve whatever becomes of the API objects; whether
// it has expired is for [Files.Ready] to say.
func (s *SelfManaged) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notReady
}

// Run keeps Secret, caBundles and directory in order until ctx ends, and then returns nil. It acts when the Secret or
// a webhook configuration changes (another replica's rotation, a re-creation, an apply that emptied something) and
// when the certificate is due for renewal. Errors are logged and retried, so a missing object or permission is
// recovered from as soon as it is there.
func (s *SelfManaged) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var informers sync.WaitGroup
	defer informers.Wait()
	defer cancel()

	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default: // a round is due already
		}
	}
	secrets := informer(s.Client, s.Client.CoreV1().Secrets(s.Namespace), s.SecretName, &corev1.Secret{}, wake)
	informers.Go(func() { secrets.RunWithContext(ctx) })
	if s.WebhookConfiguration != "" {
		api := s.Client.AdmissionregistrationV1()
		mutating := informer(s.Client, api.MutatingWebhookConfigurations(),
			s.WebhookConfiguration, &admissionv1.MutatingWebhookConfiguration{}, wake)
		validating := informer(s.Client, api.ValidatingWebhookConfigurations(),
			s.WebhookConfiguration, &admissionv1.ValidatingWebhookConfiguration{}, wake)
		informers.Go(func() { mutating.RunWithContext(ctx) })
		informers.Go(func() { validating.RunWithContext(ctx) })
	}

	limiter := flowcontrol.NewTokenBucketRateLimiter(roundsPerSecond, roundsAtOnce)
	wait, logged := minRetry, ""
	for limiter.Wait(ctx) == nil {
		renewAt, err := s.round(ctx)
		if ctx.Err() != nil {
			break
		}
		next := renewAt.Sub(s.Now())
		if err == nil {
			wait, logged = minRetry, ""
		} else {
			next, wait = wait, min(2*wait, maxRetry)
			if err.Error() != logged { // not the same line every minute
				logged = err.Error()
				s.Logger.Error("self-managed certificate not in place", "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(next):
		}
	}
	return nil
}

// round puts everything in order once and returns when the certificate is to be renewed. A conflict means that another
// replica (or person) was faster: then what they wrote is read and adopted.
func (s *SelfManaged) round(ctx context.Context) (renewAt time.Time, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		id, err := s.keepSecret(ctx)
		if err != nil {
			return err
		}
		// The caBundle comes before the pair: a certificate that a new CA signed is served only when callers trust it.
		if err := s.keepBundles(ctx, id.ca); err != nil {
			return err
		}
		renewAt = id.leaf.renewAt()
		return writePair(s.Dir, id.leaf)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notReady != nil {
		s.notReady = err
	}
	return renewAt, err
}

// keepSecret returns the identity that the Secret holds, after renewing what is due or unusable in it.
func (s *SelfManaged) keepSecret(ctx context.Context) (identity, error) {
	secrets := s.Client.CoreV1().Secrets(s.Namespace)
	secret, err := secrets.Get(ctx, s.SecretName, metav1.GetOptions{})
	if err != nil {
		return identity{}, fmt.Errorf("reading Secret %s/%s: %w", s.Namespace, s.SecretName, withRemedy(err))
	}
	id, made, err := ensureIdentity(secret.Data, s.DNSNames, s.Now())
	if err != nil {
		return identity{}, fmt.Errorf("issuing a certificate: %w", err)
	}
	if !made.leaf {
		return id, nil
	}
	// A patch rather than an update: what others keep in the Secret and fields newer than our types stay.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": secret.ResourceVersion}, // conflict if it changed since
		"data":     id.data(),
	})
	if err != nil {
		return identity{}, fmt.Errorf("encoding Secret %s/%s: %w", s.Namespace, s.SecretName, err)
	}
	if _, err := secrets.Patch(ctx, s.SecretName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return identity{}, fmt.Errorf("patching Secret %s/%s: %w", s.Namespace, s.SecretName, withRemedy(err))
	}
	level := slog.LevelInfo
	if made.ca && len(secret.Data[caCertKey]) > 0 {
		level = slog.LevelWarn // a CA that was in use is gone
	}
	s.Logger.Log(ctx, level, "certificate issued", "reason", made.reason.Error(), "new_ca", made.ca,
		"not_after", id.leaf.cert.NotAfter, "renew_at", id.leaf.renewAt())
	return id, nil
}

// keepBundles adds the CA to the caBundle of every webhook that lacks it. One configuration that is missing does not keep
// the other from working.
func (s *SelfManaged) keepBundles(ctx context.Context, ca pair) error {
	if s.WebhookConfiguration == "" {
		return nil
	}
	api := s.Client.AdmissionregistrationV1()
	return errors.Join(
		keepBundle(ctx, s, ca, "MutatingWebhookConfiguration", api.MutatingWebhookConfigurations(),
			func(c *admissionv1.MutatingWebhookConfiguration) (all []webhook) {
				for _, w := range c.Webhooks {
					all = append(all, webhook{w.Name, w.ClientConfig.CABundle})
				}
				return all
			}),
		keepBundle(ctx, s, ca, "ValidatingWebhookConfiguration", api.ValidatingWebhookConfigurations(),
			func(c *admissionv1.ValidatingWebhookConfiguration) (all []webhook) {
				for _, w := range c.Webhooks {
					all = append(all, webhook{w.Name, w.ClientConfig.CABundle})
				}
				return all
			}),
	)
}

type webhook struct {
	name   string
	bundle []byte
}

// getPatcher is what the typed clients of both kinds of configuration have in common.
type getPatcher[C metav1.Object] interface {
	Get(context.Context, string, metav1.GetOptions) (C, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (C, error)
}

func keepBundle[C metav1.Object](
	ctx context.Context, s *SelfManaged, ca pair, kind string, configurations getPatcher[C], webhooks func(C) []webhook,
) error {
	configuration, err := configurations.Get(ctx, s.WebhookConfiguration, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading %s %s: %w", kind, s.WebhookConfiguration, withRemedy(err))
	}
	all := webhooks(configuration)
	if len(all) == 0 {
		return fmt.Errorf("reading %s %s: it has no webhooks; apply the manifests", kind, s.WebhookConfiguration)
	}
	var lacking []map[string]any
	for _, w := range all {
		if bundle, added := withCA(w.bundle, ca, s.Now()); added {
			lacking = append(lacking, map[string]any{
				"name":         w.name, // the merge key
				"clientConfig": map[string]any{"caBundle": bundle},
			})
		}
	}
	if lacking == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": configuration.GetResourceVersion()},
		"webhooks": lacking,
	})
	if err != nil {
		return fmt.Errorf("encoding %s %s: %w", kind, s.WebhookConfiguration, err)
	}
	if _, err := configurations.Patch(ctx, s.WebhookConfiguration, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patching %s %s: %w", kind, s.WebhookConfiguration, withRemedy(err))
	}
	s.Logger.InfoContext(ctx, "ca bundle completed", "kind", kind, "webhook_configuration", s.WebhookConfiguration, "webhooks", len(lacking))
	return nil
}

// withRemedy tells what to do about errors that only a person can repair.
func withRemedy(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; apply the manifests, they contain it with the permissions it needs", err)
	}
	return err
}

// writePair replaces the pair in dir unless it is there already. The two renames follow one another at once: a reader
// that comes in between sees a mismatch for microseconds, which Files bridges with the last good pair. The key goes
// first, so that at the very start a certificate never lies there without its key.
func writePair(dir string, p pair) error {
	type file struct {
		path    string
		content []byte
	}
	files := []file{
		{filepath.Join(dir, corev1.TLSPrivateKeyKey), p.keyPEM},
		{filepath.Join(dir, corev1.TLSCertKey), p.certPEM},
	}
	current := true
	for _, f := range files {
		// Any error to read is one to repair by writing.
		if content, err := os.ReadFile(f.path); err != nil || !bytes.Equal(content, f.content) {
			current = false
		}
	}
	if current {
		return nil
	}
	for _, f := range files {
		if err := os.WriteFile(f.path+".new", f.content, 0o600); err != nil {
			return fmt.Errorf("writing the serving pair: %w", err)
		}
	}
	for _, f := range files {
		if err := os.Rename(f.path+".new", f.path); err != nil {
			return fmt.Errorf("writing the serving pair: %w", err)
		}
	}
	return nil
}

// listWatcher is what the typed clients of all objects have in common.
type listWatcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// informer calls changed whenever the one object of that name appears, changes or goes. The selector is what makes
// list and watch permissible under RBAC's resourceNames. It is a mere bell: a round reads the objects themselves, which
// unlike a cache are never older than the round before.
func informer[L runtime.Object](
	client kubernetes.Interface, api listWatcher[L], name string, object runtime.Object, changed func(),
) cache.Controller {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = only
			return api.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = only
			return api.Watch(ctx, options)
		},
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(source, client),
		ObjectType:    object,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(any, any) { changed() },
			DeleteFunc: func(any) { changed() },
		},
	})
	return controller
}
