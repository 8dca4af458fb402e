package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
)

func TestAnAdmissionRequestIsAnsweredOverTLS(t *testing.T) {
	s := start(t, Options{})
	uid := podRequest(nil).UID
	for name, outcome := range map[string]Outcome{
		"deployment": Mutated, "already-complete": Unchanged, "not-annotated": Ignored, "enabled-yes": Ignored, "bad-json": Invalid,
	} {
		t.Run(name, func(t *testing.T) {
			pod := goldenPods(t)[name]
			status, body := s.post(t, "application/json; charset=utf-8", reviewOf(t, pod))
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal([]byte(body), &review); err != nil || status != http.StatusOK {
				t.Fatalf("got %d %s, %v", status, body, err)
			}
			r, want := review.Response, mutator(t).Mutate(decodePod(t, pod))
			switch {
			case review.APIVersion != "admission.k8s.io/v1", review.Kind != "AdmissionReview", r == nil:
				t.Fatalf("not an AdmissionReview: %s", body)
			case r.UID != uid, !r.Allowed, !slices.Equal(r.Warnings, want.Warnings), r.AuditAnnotations["outcome"] != string(outcome):
				t.Errorf("got %s", body)
			case (r.Patch == nil) != (r.PatchType == nil), (r.Patch == nil) != (outcome != Mutated):
				t.Errorf("patch and patchType must come together, and with %q: %s", Mutated, body)
			}
			if encoded, _ := json.Marshal(want.Patch); outcome == Mutated && !bytes.Equal(r.Patch, encoded) {
				t.Errorf("got the patch %s, want %s", r.Patch, encoded)
			}
		})
	}
	s.wantCount(t, mutate, Mutated, 1)
	s.wantCount(t, mutate, Ignored, 2)
	if got := s.get(t, "/metrics"); !strings.Contains(got, `pod_resizer_admission_duration_seconds_count{webhook="mutate"} 5`) {
		t.Errorf("the durations are not observed:\n%s", got)
	}
}

func TestWhatIsNoAdmissionRequestIsRefused(t *testing.T) {
	s := start(t, Options{})
	const endlessQuantity = `{"name":"a","resources":{"limits":{"cpu":"1E10000000"}}}`
	const v1 = `"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"`
	for i, tc := range []struct {
		name, contentType, body string
		status                  int
		says                    string
	}{
		{"YAML", "application/yaml", "kind: AdmissionReview", 415, "expected application/json"},
		{"no content type", "", "{}", 415, "expected application/json"},
		{"garbage", "application/json", "\x00garbage", 400, "decoding the AdmissionReview: invalid character"},
		{"an empty body", "application/json", "", 400, "decoding the AdmissionReview"},
		{"half an AdmissionReview", "application/json", "{" + v1, 400, "decoding the AdmissionReview"},
		{"a Pod", "application/json", `{"apiVersion":"v1","kind":"Pod"}`, 400,
			`kind "Pod" of apiVersion "v1": expected AdmissionReview of admission.k8s.io/v1`},
		{"an AdmissionReview of v1beta1", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`,
			400, "expected AdmissionReview of admission.k8s.io/v1"},
		{"no request", "application/json", "{" + v1 + "}", 400, "has no request"},
		{"no uid", "application/json", "{" + v1 + `,"request":{}}`, 400, "has no uid"},
		{"an object that is none", "application/json", "{" + v1 + `,"request":{"uid":"1","operation":"CREATE","resource":{"version":"v1","resource":"pods"},"object":[1]}}`,
			400, "decoding the "},
		{"a template that is none", "application/json", "{" + v1 + `,"request":{"uid":"1","operation":"CREATE","resource":{"version":"v1","resource":"pods"},` +
			`"object":{"spec":{"containers":1,"template":{"spec":{"containers":1}}}}}}`, 400, "containers"},
		{"a quantity that would take seconds to read", "application/json", "{" + v1 + `,"request":{"uid":"1","operation":"CREATE","resource":{"version":"v1","resource":"pods"},` +
			`"object":{"spec":{"containers":[` + endlessQuantity + `],"template":{"spec":{"containers":[` + endlessQuantity + `]}}}}}}`, 400, "1E10000000"},
	} {
		for _, webhook := range []string{mutate, validate} {
			t.Run(webhook+": "+tc.name, func(t *testing.T) {
				status, body := s.postTo(t, "/"+webhook, tc.contentType, strings.NewReader(tc.body))
				if status != tc.status || !strings.Contains(body, tc.says) {
					t.Errorf("got %d %q; want %d %q", status, body, tc.status, tc.says)
				}
				s.wantCount(t, webhook, failed, i+1)
			})
		}
	}
	for path, want := range map[string]int{"/mutate": http.StatusMethodNotAllowed, "/validate": http.StatusMethodNotAllowed, "/nowhere": http.StatusNotFound} {
		if status := s.do(t, http.MethodGet, path, "", nil).StatusCode; status != want {
			t.Errorf("GET %s: %d, want %d", path, status, want)
		}
	}
}

// endless counts how much of a body the server took. The client may go on for a while after the answer.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read.Add(int64(len(p)))
	return copy(p, bytes.Repeat([]byte(" "), len(p))), nil
}

func TestAnEndlessBodyIsCutAtTheLimit(t *testing.T) {
	s := start(t, Options{})
	for _, path := range []string{"/mutate", "/validate"} {
		var body endless
		if status, text := s.postTo(t, path, "application/json", &body); status != http.StatusRequestEntityTooLarge {
			t.Fatalf("%s: got %d %s", path, status, text)
		}
		const slack = 4 << 20 // Buffers of HTTP/2, TLS and the kernel on both sides.
		if took := body.read.Load(); took > maxBody+slack {
			t.Errorf("%s: the server took %d bytes, far more than %d", path, took, maxBody)
		}
	}
}

func TestAPanicCostsOneRequestOnly(t *testing.T) {
	panics := true
	var logged bytes.Buffer
	s := start(t, Options{
		Logger: slog.New(slog.NewJSONHandler(&logged, nil)),
		Review: func(*Request[Pod]) (Result, error) {
			if panics {
				panic("odd pod")
			}
			return Result{Outcome: Unchanged}, nil
		},
	})
	if status, body := s.post(t, "application/json", reviewOf(t, nil)); status != 500 || strings.Contains(body, "odd pod") {
		t.Errorf("got %d %s", status, body)
	}
	panics = false
	if status, body := s.post(t, "application/json", reviewOf(t, nil)); status != 200 {
		t.Errorf("after the panic: %d %s", status, body)
	}
	s.wantCount(t, mutate, failed, 1)
	if text := logged.String(); !strings.Contains(text, `"panic":"odd pod"`) || !strings.Contains(text, "server_test.go") {
		t.Errorf("panic and stack are not in the log: %s", text)
	}
}

func TestHealthNamesWhatFails(t *testing.T) {
	healthy := true
	check := func() error {
		if healthy {
			return nil
		}
		return errors.New("expired an hour ago")
	}
	s := start(t, Options{
		Live:  []Check{{"resizer", func() error { return nil }}},
		Ready: []Check{{"certificate", check}, {"leader-election", func() error { return nil }}},
	})
	for _, tc := range []struct {
		path    string
		healthy bool
		status  int
		want    string
	}{
		{"/healthz", true, 200, "[+]resizer ok\nhealthz check passed\n"},
		{"/readyz", true, 200, "[+]shutdown ok\n[+]certificate ok\n[+]leader-election ok\nreadyz check passed\n"},
		{"/readyz", false, 503, "[+]shutdown ok\n[-]certificate failed: expired an hour ago\n[+]leader-election ok\nreadyz check failed\n"},
	} {
		healthy = tc.healthy
		response := s.do(t, http.MethodGet, tc.path, "", nil)
		if got := read(t, response); response.StatusCode != tc.status || got != tc.want {
			t.Errorf("%s: got %d %q; want %d %q", tc.path, response.StatusCode, got, tc.status, tc.want)
		}
	}
}

func TestEveryOutcomeIsCountedFromTheStart(t *testing.T) {
	s := start(t, Options{})
	for _, outcome := range []Outcome{"mutated", "unchanged", "ignored", "invalid", "denied", "error"} {
		s.wantCount(t, mutate, outcome, 0)
	}
	for _, outcome := range []Outcome{"valid", "unsure", "ignored", "invalid", "denied", "error"} {
		s.wantCount(t, validate, outcome, 0)
	}
}

func TestTLS12IsRefused(t *testing.T) {
	s := start(t, Options{})
	config := s.tls.Clone()
	config.MaxVersion = tls.VersionTLS12
	if conn, err := tls.Dial("tcp", s.Addr().String(), config); err == nil {
		_ = conn.Close()
		t.Error("the handshake succeeded")
	}
}

func TestASlowClientIsCut(t *testing.T) {
	const timeout = 300 * time.Millisecond // It covers the handshake, which a busy machine takes its time for.
	s := start(t, Options{}, func(s *Server) { s.http.ReadHeaderTimeout, s.http.ReadTimeout = timeout, timeout })
	for _, tc := range []struct{ name, sends string }{
		{"within its headers", "POST /mutate HTTP/1.1\r\nHost: x\r\n"},
		{"within its body", "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"},
		{"within a workload", "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", s.Addr().String(), s.tls)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, tc.sends); err != nil {
				t.Fatal(err)
			}
			// Far longer than the timeout, so that only a missing one fails here.
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if answer, err := io.ReadAll(conn); err != nil {
				t.Errorf("not cut: %q, %v", answer, err)
			}
		})
	}
}

func TestShutdownLetsRequestsInFlightFinish(t *testing.T) {
	before := runtime.NumGoroutine()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	s := start(t, Options{
		ShutdownDelay: time.Second,
		Review: func(*Request[Pod]) (Result, error) {
			close(arrived)
			<-goOn
			return Result{Outcome: Unchanged}, nil
		},
	})
	answered := make(chan int)
	go func() {
		status, _ := s.post(t, "application/json", reviewOf(t, nil))
		answered <- status
	}()
	<-arrived
	s.stop()

	eventually(t, "readyz says that the process is shutting down", func() bool {
		response := s.do(t, http.MethodGet, "/readyz", "", nil)
		return response.StatusCode == http.StatusServiceUnavailable && strings.Contains(read(t, response), "[-]shutdown failed: the process is shutting down")
	})
	eventually(t, "new connections are refused", func() bool {
		conn, err := tls.Dial("tcp", s.Addr().String(), s.tls)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-s.served:
		t.Fatalf("Serve returned with a request in flight: %v", err)
	default:
	}
	close(goOn)
	if status := <-answered; status != 200 {
		t.Errorf("the request in flight got %d", status)
	}
	if err := <-s.served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	s.served <- nil // For the cleanup of start.
	s.client.CloseIdleConnections()
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

func TestAServerThatCannotServeSaysSo(t *testing.T) {
	s := start(t, Options{})
	if err := NewServer(Options{Address: s.Addr().String(), Registry: prometheus.NewRegistry()}).Listen(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "listening for admission requests: ") {
		t.Errorf("Listen on a taken port: %v", err)
	}
	if err := s.listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-s.served; err == nil || !strings.Contains(err.Error(), "serving admission requests: ") {
		t.Errorf("Serve on a dead listener: %v", err)
	}
	s.served <- nil
}

// reviewOf is the AdmissionReview of a pod's creation.
func reviewOf(t testing.TB, pod []byte) io.Reader {
	t.Helper()
	return requestReview(t, podRequest(pod))
}

// requestReview is the AdmissionReview of a request.
func requestReview(t testing.TB, request *admissionv1.AdmissionRequest) io.Reader {
	t.Helper()
	request.UserInfo.Username = "system:serviceaccount:kube-system:replicaset-controller"
	request.UserInfo.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
	request.Options.Raw = []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)
	review := admissionv1.AdmissionReview{Request: request}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	body, err := json.Marshal(review)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(body)
}

// testServer is a Server at work, and a client that trusts it.
type testServer struct {
	*Server
	tls    *tls.Config
	client *http.Client
	stop   context.CancelFunc
	served chan error // What Serve returned.
}

// start serves on loopback until the test ends; what o leaves out is filled in.
func start(t testing.TB, o Options, change ...func(*Server)) *testServer {
	t.Helper()
	// httptest has a certificate for 127.0.0.1 and keeps it to itself.
	donor := httptest.NewTLSServer(nil)
	certificate, roots := donor.TLS.Certificates[0], x509.NewCertPool()
	roots.AddCert(donor.Certificate())
	donor.Close()

	o.Address, o.Registry = "127.0.0.1:0", prometheus.NewRegistry()
	o.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }
	if o.Review == nil {
		o.Review = mutator(t).Review
	}
	if o.Validate == nil {
		o.Validate = mutator(t).Validate
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &testServer{Server: NewServer(o), tls: &tls.Config{RootCAs: roots}, served: make(chan error, 1)}
	for _, c := range change {
		c(r.Server)
	}
	if err := r.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.client = &http.Client{Transport: &http.Transport{TLSClientConfig: r.tls.Clone(), ForceAttemptHTTP2: true}}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.served <- r.Serve(ctx) }()
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		r.stop()
		if err := <-r.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

func (r *testServer) do(t *testing.T, method, path, contentType string, body io.Reader) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), method, "https://"+r.Addr().String()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := r.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func (r *testServer) post(t *testing.T, contentType string, body io.Reader) (int, string) {
	t.Helper()
	return r.postTo(t, "/mutate", contentType, body)
}

func (r *testServer) postTo(t *testing.T, path, contentType string, body io.Reader) (int, string) {
	t.Helper()
	response := r.do(t, http.MethodPost, path, contentType, body)
	return response.StatusCode, read(t, response)
}

func (r *testServer) get(t *testing.T, path string) string {
	t.Helper()
	return read(t, r.do(t, http.MethodGet, path, "", nil))
}

func read(t *testing.T, response *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func (r *testServer) wantCount(t *testing.T, webhook string, outcome Outcome, want int) {
	t.Helper()
	line := fmt.Sprintf("pod_resizer_admission_reviews_total{outcome=%q,webhook=%q} %d\n", outcome, webhook, want)
	if got := r.get(t, "/metrics"); !strings.Contains(got, line) {
		t.Errorf("want %s in\n%s", line, got)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
