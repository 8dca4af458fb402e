package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"pod-resizer/certs"
	"pod-resizer/resizer"
	"pod-resizer/resizer/plan"
	"pod-resizer/webhook"
)

// Where the serving certificate comes from.
const (
	selfManaged = "self-managed" // A CA of our own in a Secret, put into the caBundle by us.
	fromFiles   = "files"        // tls.crt and tls.key are somebody else's work, such as a mounted Secret.
)

// What becomes of opted-in pods, and of workloads, whose annotations cannot be followed.
const (
	warn = "warn"
	deny = "deny"
)

type serveOptions struct {
	domain        string
	listen        string
	certDir       string
	certificate   string
	webhook       bool
	onInvalid     string
	namespace     string
	name          string
	identity      string
	kubeconfig    string
	workers       int
	shutdownDelay time.Duration
	logFormat     string
	logLevel      slog.Level
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer admission requests and resize pods",
		Long: `serve answers admission requests on every replica and resizes pods on one of them, the leader. It is what the
Deployment in manifests/install.yaml runs.`,
		Example: `  # In a cluster; namespace and pod name come from the environment.
  pod-resizer serve

  # Beside a cluster, with a certificate that is made elsewhere.
  pod-resizer serve --kubeconfig ~/.kube/config --namespace pod-resizer --certificate files --cert-dir ./tls`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return o.serve(cmd.Context())
		},
	}
	hostname, _ := os.Hostname() // Empty if unknown; validate then asks for --identity.
	f := cmd.Flags()
	f.StringVar(&o.domain, "domain", plan.DefaultDomain, "domain of all annotations, the label and the condition")
	f.StringVar(&o.listen, "listen", ":8443", "address of the HTTPS server: /mutate, /validate, /healthz, /readyz, /metrics")
	f.StringVar(&o.certificate, "certificate", selfManaged, "where the serving certificate comes from: "+selfManaged+
		" (a CA kept in the Secret NAME-tls and put into the caBundle) or "+fromFiles+" (--cert-dir is filled by others)")
	f.BoolVar(&o.webhook, "webhook", true, "whether there are webhook configurations to put the CA into; false where policies do the admission")
	f.StringVar(&o.onInvalid, "on-invalid", warn, "what becomes of opted-in pods, and of workloads, whose annotations cannot be followed: "+
		warn+" (created as written, with a warning) or "+deny+" (refused)")
	f.StringVar(&o.certDir, "cert-dir", "/run/pod-resizer/tls", "folder of tls.crt and tls.key; changes are picked up")
	f.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of pod-resizer itself (default $POD_NAMESPACE)")
	f.StringVar(&o.name, "name", "pod-resizer", "name of pod-resizer's Service, Lease and webhook configurations; its Secret is NAME-tls")
	f.StringVar(&o.identity, "identity", firstOf(os.Getenv("POD_NAME"), hostname), "name of this replica in the leader election (default $POD_NAME, else the host's)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "path of a kubeconfig; empty inside a cluster")
	f.IntVar(&o.workers, "workers", 32, "pods that are worked on at the same time")
	f.DurationVar(&o.shutdownDelay, "shutdown-delay", 5*time.Second, "how long to go on serving after SIGTERM, until the Service has forgotten this replica")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text")
	f.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error; debug shows every decision")
	return cmd
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// validate names flag, value and remedy of all that is wrong.
func (o *serveOptions) validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.certificate != selfManaged && o.certificate != fromFiles {
		wrong("--certificate %q: write %s or %s", o.certificate, selfManaged, fromFiles)
	}
	if o.onInvalid != warn && o.onInvalid != deny {
		wrong("--on-invalid %q: write %s or %s", o.onInvalid, warn, deny)
	}
	if o.namespace == "" {
		wrong("--namespace is empty: set it, or POD_NAMESPACE in the environment")
	}
	if o.identity == "" {
		wrong("--identity is empty: set it, or POD_NAME in the environment")
	}
	if o.workers < 1 {
		wrong("--workers %d: write 1 or more", o.workers)
	}
	if o.shutdownDelay < 0 {
		wrong("--shutdown-delay %s: write 0 or more", o.shutdownDelay)
	}
	if o.logFormat != "json" && o.logFormat != "text" {
		wrong("--log-format %q: write json or text", o.logFormat)
	}
	return errors.Join(errs...)
}

func (o *serveOptions) logger() *slog.Logger {
	options := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, options))
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, options))
}

func (o *serveOptions) restConfig() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if o.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the API server (outside a cluster, set --kubeconfig): %w", err)
	}
	// The API server's priority and fairness limits us; client-go's 5 requests a second would make a rollout wait.
	config.QPS = -1
	// Pods are what we read most, and a fraction of the work to decode in this form.
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.UserAgent = "pod-resizer/" + version
	return config, nil
}

// serve wires everything together and runs it until ctx ends or one part dies, which takes the others down.
func (o *serveOptions) serve(ctx context.Context) error {
	keys, err := plan.KeysFor(o.domain)
	if err != nil {
		return fmt.Errorf("--domain: %w", err)
	}
	log := o.logger()
	klog.SetSlogLogger(log.With("logger", "client-go"))
	config, err := o.restConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the Kubernetes client: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	files := certs.NewFiles(o.certDir, log, registry)
	rights := resizer.NewRights(client, o.namespace, o.name, log)
	ready := []webhook.Check{{Name: "certificate", Check: files.Ready}, {Name: "rights", Check: rights.Ready}}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error {
		rights.Run(ctx)
		return nil
	})
	if o.certificate == selfManaged {
		configuration := ""
		if o.webhook {
			configuration = o.name
		}
		manager := certs.NewSelfManaged(certs.SelfManagedOptions{
			Client:               client,
			Namespace:            o.namespace,
			SecretName:           o.name + "-tls",
			WebhookConfiguration: configuration,
			DNSNames:             []string{strings.Join([]string{o.name, o.namespace, "svc"}, ".")},
			Dir:                  o.certDir,
			Logger:               log,
		})
		ready = append(ready, webhook.Check{Name: "ca-bundle", Check: manager.Ready})
		parts.Go(func() error { return manager.Run(ctx) })
	}

	controller, err := resizer.New(resizer.Options{Config: config, Keys: keys, Workers: o.workers, Registerer: registry, Log: log})
	if err != nil {
		return err
	}
	election := resizer.NewElection(resizer.Election{
		Client: client, Namespace: o.namespace, Name: o.name, Identity: o.identity, Log: log,
	})
	parts.Go(func() error { return election.Run(ctx, controller.Run) })

	server := webhook.NewServer(webhook.Options{
		Address:        o.listen,
		GetCertificate: files.GetCertificate,
		Review:         webhook.Mutator{Keys: keys}.Review,
		Validate:       webhook.Mutator{Keys: keys}.Validate,
		DenyInvalid:    o.onInvalid == deny,
		Registry:       registry,
		Live:           []webhook.Check{{Name: "leader-election", Check: election.Live}},
		Ready:          ready,
		ShutdownDelay:  o.shutdownDelay,
		Logger:         log,
	})
	if err := server.Listen(ctx); err != nil {
		return err
	}
	log.Info("started", "version", version, "address", server.Addr().String(), "identity", o.identity)
	parts.Go(func() error { return server.Serve(ctx) })
	return parts.Wait()
}
