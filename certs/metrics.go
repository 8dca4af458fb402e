package certs

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	expiry            prometheus.Gauge
	succeeded, faulty prometheus.Counter
}

// newMetrics registers the package's metrics. Both results of the reload counter exist from the start, so that an
// alert on failures has a zero to rise from.
func newMetrics(registry prometheus.Registerer) *metrics {
	expiry := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pod_resizer_certificate_expiry_timestamp_seconds",
		Help: "When the served certificate expires, in Unix seconds; 0 until one is loaded.",
	})
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pod_resizer_certificate_reloads_total",
		Help: "Attempts to load the serving certificate, the first load included. A bad pair is tried again at every " +
			"handshake and probe, so failures keep rising while it is there.",
	}, []string{"result"})
	registry.MustRegister(expiry, reloads)
	return &metrics{
		expiry:    expiry,
		succeeded: reloads.WithLabelValues("success"),
		faulty:    reloads.WithLabelValues("failure"),
	}
}
