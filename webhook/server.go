// Package webhook is the admission side: AdmissionReview in, JSON patch out. It also is the one HTTPS server of the
// product, so health and metrics are served here too.
package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// requestTimeout bounds a whole request: 30 s is the longest that a webhook configuration may let the API server
	// wait (timeoutSeconds), so nobody listens to a later answer.
	requestTimeout = 30 * time.Second
	// headerTimeout bounds the TLS handshake and the headers, a round trip or two each and no work.
	headerTimeout = 5 * time.Second
	// idleTimeout is longer than the 90 s after which the API server drops an idle connection (net/http's
	// DefaultTransport), so that it is never we who close one that it is about to use.
	idleTimeout = 2 * time.Minute
	// maxHeader is far above the few hundred bytes that the API server, a kubelet or Prometheus send.
	maxHeader = 16 << 10
	// drainTimeout bounds the wait for requests in flight. They take milliseconds; together with a ShutdownDelay of up
	// to 15 s it stays within a pod's default terminationGracePeriodSeconds, 30.
	drainTimeout = 10 * time.Second
)

// Check is one line of /healthz or /readyz. It is called for every probe, so it must be quick.
type Check struct {
	Name  string
	Check func() error
}

// Options are what a Server needs; all but DenyInvalid, Live and Ready must be set.
type Options struct {
	Address        string // host:port; port 0 takes a free one.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Review         func(*Request[Pod]) (Result, error)             // Of /mutate, such as Mutator.Review.
	Validate       func(*Request[json.RawMessage]) (Result, error) // Of /validate, such as Mutator.Validate.
	DenyInvalid    bool                                            // Refuse what is Invalid, instead of warning.
	Registry       *prometheus.Registry                            // Gets the server's metrics, and is what /metrics shows.
	Live, Ready    []Check
	Logger         *slog.Logger
	// ShutdownDelay is how long the server goes on serving, unready, once it is told to stop: the time that the
	// Service's endpoints need to lose this pod everywhere.
	ShutdownDelay time.Duration
}

// Server serves POST /mutate and /validate, and GET /healthz, /readyz and /metrics. Call Listen, then Serve.
type Server struct {
	http          *http.Server
	listener      net.Listener
	shutdownDelay time.Duration
	stopping      atomic.Bool
	logger        *slog.Logger
}

// NewServer returns a Server. It panics if the registry already holds the metrics of another one.
func NewServer(o Options) *Server {
	s := &Server{shutdownDelay: o.ShutdownDelay, logger: o.Logger}
	s.http = &http.Server{
		Addr:              o.Address,
		Handler:           s.routes(o),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: o.GetCertificate},
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(errorLog{o.Logger}, "", 0),
	}
	return s
}

func (s *Server) routes(o Options) http.Handler {
	metrics := newMetrics(o.Registry)
	r := chi.NewRouter()
	r.Use(s.recoverer)
	r.Method(http.MethodPost, "/mutate", &reviewer[Pod]{mutate, o.Review, o.DenyInvalid, metrics, o.Logger})
	r.Method(http.MethodPost, "/validate", &reviewer[json.RawMessage]{validate, o.Validate, o.DenyInvalid, metrics, o.Logger})
	r.Get("/healthz", health("healthz", o.Live))
	r.Get("/readyz", health("readyz", slices.Concat([]Check{{"shutdown", s.running}}, o.Ready)))
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{}))
	return r
}

// Listen opens the port. Once it has returned, connections wait for Serve instead of being refused.
func (s *Server) Listen(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.http.Addr)
	if err != nil {
		return fmt.Errorf("listening for admission requests: %w", err)
	}
	s.listener = listener
	return nil
}

// Addr is where the server listens; only after Listen.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve answers requests until ctx ends; then it turns unready, serves on for ShutdownDelay, and finishes what is in
// flight. It returns an error if the server died before, or did not finish in time.
func (s *Server) Serve(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.http.ServeTLS(s.listener, "", "") }()

	select {
	case err := <-served:
		return fmt.Errorf("serving admission requests: %w", err)
	case <-ctx.Done():
	}
	s.stopping.Store(true)
	s.logger.Info("server stopping", "delay", s.shutdownDelay)
	select {
	case err := <-served:
		return fmt.Errorf("serving admission requests: %w", err)
	case <-time.After(s.shutdownDelay):
	}
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := s.http.Shutdown(draining); err != nil {
		return fmt.Errorf("finishing requests in flight: %w", errors.Join(err, s.http.Close()))
	}
	return nil
}

func (s *Server) running() error {
	if s.stopping.Load() {
		return errors.New("the process is shutting down")
	}
	return nil
}

// health answers as Kubernetes' own components do, so that people and scripts know how to read it.
func health(name string, checks []Check) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		status, verdict := http.StatusOK, "passed"
		var text strings.Builder
		for _, c := range checks {
			if err := c.Check(); err != nil {
				status, verdict = http.StatusServiceUnavailable, "failed"
				fmt.Fprintf(&text, "[-]%s failed: %v\n", c.Name, err)
				continue
			}
			fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
		}
		fmt.Fprintf(&text, "%s check %s\n", name, verdict)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text.String()))
	}
}

// recoverer turns a panic into a 500, which the API server treats by failurePolicy; one odd pod must not stop the others.
func (s *Server) recoverer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch value := recover(); value {
			case nil:
			case http.ErrAbortHandler: // net/http's own way to drop a connection.
				panic(value)
			default:
				s.logger.Error("request handler panicked", "path", r.URL.Path, "panic", value, "stack", string(debug.Stack()))
				http.Error(w, "internal error", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// errorLog carries net/http's complaints, such as failed handshakes, to the structured log.
type errorLog struct{ logger *slog.Logger }

func (l errorLog) Write(line []byte) (int, error) {
	l.logger.Warn("http server complained", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}
