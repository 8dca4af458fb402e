package webhook

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The webhooks, as a metric label.
const (
	mutate   = "mutate"
	validate = "validate"
)

type metrics struct {
	reviews  *prometheus.CounterVec
	invalid  *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// newMetrics registers the package's metrics. Every outcome exists from the start, so that an alert on errors has a
// zero to rise from.
func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_resizer_admission_reviews_total",
			Help: "Admission requests answered, for pods (mutate) and workloads (validate), by outcome; a panic counts as an error.",
		}, []string{"webhook", "outcome"}),
		invalid: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_resizer_admission_invalid_total",
			Help: "Admission requests whose outcome is invalid or denied, by the first thing that is wrong: an annotation, or the pod itself.",
		}, []string{"webhook", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pod_resizer_admission_duration_seconds",
			Help: "Time to answer an admission request, reading its body included.",
			// A usual pod takes about 0.2 ms; every creation of an opted-in pod waits this long.
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1},
		}, []string{"webhook"}),
	}
	registry.MustRegister(m.reviews, m.invalid, m.duration)
	for webhook, outcomes := range map[string][]Outcome{
		mutate:   {Mutated, Unchanged, Ignored, Invalid, Denied, failed},
		validate: {Valid, Unsure, Ignored, Invalid, Denied, failed},
	} {
		for _, outcome := range outcomes {
			m.reviews.WithLabelValues(webhook, string(outcome))
		}
		for _, reason := range reasons() {
			m.invalid.WithLabelValues(webhook, reason)
		}
		m.duration.WithLabelValues(webhook)
	}
	return m
}

// observe counts one answer; the reason is empty unless the outcome is Invalid or Denied.
func (m *metrics) observe(webhook string, outcome Outcome, reason string, took time.Duration) {
	m.reviews.WithLabelValues(webhook, string(outcome)).Inc()
	if reason != "" {
		m.invalid.WithLabelValues(webhook, reason).Inc()
	}
	m.duration.WithLabelValues(webhook).Observe(took.Seconds())
}
