package resizer

import (
	"github.com/prometheus/client_golang/prometheus"

	"pod-resizer/resizer/plan"
)

// Results of a write to pods/resize.
const (
	resultAccepted = "accepted"
	resultRefused  = "refused"
	resultError    = "error"
)

type metrics struct {
	resizes     *prometheus.CounterVec
	outcomes    *prometheus.CounterVec
	startup     prometheus.Histogram
	reaction    prometheus.Histogram
	actuation   prometheus.Histogram
	ledger      *ledger
	leader      prometheus.Gauge
	queueLength prometheus.Gauge
}

// newMetrics registers the resizer's metrics, every label value present from the start, so that a rate over the first
// event is not lost.
func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		resizes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_resizer_resizes_total",
			Help: "Writes to pods/resize by reason, and by result: accepted by the API server, refused for good reason (403, 422), error (retried).",
		}, []string{"reason", "result"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_resizer_outcomes_total",
			Help: "What was recorded on pods, by reason: CPULowered and NothingToLower end a start well, the others need a person.",
		}, []string{"reason"}),
		startup: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pod_resizer_startup_duration_seconds",
			Help: "Time from the container's start to the trigger, for pods whose CPU was lowered.",
			// 1 s (the API's resolution of container starts) to 17 min, each bucket twice the one before.
			Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
		reaction: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pod_resizer_reaction_duration_seconds",
			Help: "Time from the event, or the end of a wait, that a resize was due to until the API server had accepted it.",
			// 1 ms to 16 s, each bucket twice the one before.
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
		actuation: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pod_resizer_actuation_duration_seconds",
			Help: "Time from the acceptance of a resize to the steady CPU until the kubelet reported it.",
			// 16 ms to 4 min, each bucket twice the one before: the kubelet retries what it has put off every 3 min.
			Buckets: prometheus.ExponentialBuckets(1.0/64, 2, 15),
		}),
		ledger: newLedger(),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pod_resizer_leader",
			Help: "1 while this replica is the one that resizes, else 0.",
		}),
		queueLength: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pod_resizer_queue_length",
			Help: "Opted-in pods that wait for a worker.",
		}),
	}
	for _, reason := range plan.ResizeReasons() {
		for _, result := range []string{resultAccepted, resultRefused, resultError} {
			m.resizes.WithLabelValues(string(reason), result)
		}
	}
	for _, reason := range plan.RecordedReasons() {
		m.outcomes.WithLabelValues(string(reason))
	}
	registerer.MustRegister(m.resizes, m.outcomes, m.startup, m.reaction, m.actuation, m.ledger, m.leader, m.queueLength)
	return m
}
