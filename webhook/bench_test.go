package webhook

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
)

// `make bench-admission` runs these beside each other and compares them. The names are for benchstat.

// floor decodes the AdmissionReview's envelope and answers; no webhook that is built on the API's types can do less.
func floor(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

// benchReviews are of one pod: opted in, or not.
func benchReviews(b *testing.B) map[string][]byte {
	b.Helper()
	pod := goldenPods(b)["deployment"]
	reviews := map[string][]byte{}
	for name, enabled := range map[string]string{"mutated": `"true"`, "ignored": `"false"`} {
		body, err := io.ReadAll(reviewOf(b, bytes.Replace(pod, []byte(`/enabled":"true"`), []byte(`/enabled":`+enabled), 1)))
		if err != nil {
			b.Fatal(err)
		}
		reviews[name] = body
	}
	return reviews
}

// BenchmarkHandler is the handler alone.
func BenchmarkHandler(b *testing.B) {
	handlers := map[string]http.Handler{
		"floor":       http.HandlerFunc(floor),
		"pod-resizer": &reviewer[Pod]{mutate, mutator(b).Review, false, newMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)},
	}
	for pod, body := range benchReviews(b) {
		for _, server := range []string{"floor", "pod-resizer"} {
			b.Run(fmt.Sprintf("pod=%s/server=%s", pod, server), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := httptest.NewRequest(http.MethodPost, "/mutate", bytes.NewReader(body))
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					handlers[server].ServeHTTP(w, r)
					if w.Code != http.StatusOK {
						b.Fatal(w.Body)
					}
				}
			})
		}
	}
}

// BenchmarkTLS is the whole way of a request, on one connection, as the API server does it.
func BenchmarkTLS(b *testing.B) {
	bare := httptest.NewUnstartedServer(http.HandlerFunc(floor))
	bare.EnableHTTP2 = true
	bare.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	bare.StartTLS()
	b.Cleanup(bare.Close)
	s := start(b, Options{})
	servers := map[string]struct {
		client *http.Client
		url    string
	}{"floor": {bare.Client(), bare.URL}, "pod-resizer": {s.client, "https://" + s.Addr().String() + "/mutate"}}
	for pod, body := range benchReviews(b) {
		for _, clients := range []int{1, 8, 32} {
			for _, server := range []string{"floor", "pod-resizer"} {
				b.Run(fmt.Sprintf("pod=%s/clients=%d/server=%s", pod, clients, server), func(b *testing.B) {
					b.ReportMetric(0, "ns/op") // Of parallel requests that is the mean of nothing.
					took := inParallel(clients, b.N, func() error { return ask(servers[server].client, servers[server].url, body) })
					if took == nil {
						b.Fatal("a request failed")
					}
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
					slices.Sort(took)
					b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
				})
			}
		}
	}
}

// inParallel asks n times and returns how long each took; nil if one failed.
func inParallel(clients, n int, ask func() error) []time.Duration {
	took := make([]time.Duration, n)
	var next, failed atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				began := time.Now()
				if ask() != nil {
					failed.Add(1)
				}
				took[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 {
		return nil
	}
	return took
}

func ask(client *http.Client, url string, body []byte) error {
	response, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d, %w", response.StatusCode, err)
	}
	return nil
}
