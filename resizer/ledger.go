package resizer

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"pod-resizer/resizer/plan"
)

// ledger adds up over all opted-in pods, as this leader sees them, what there is to know in sums.
type ledger struct {
	mu                 sync.Mutex
	pods               map[types.UID]entry
	phases             map[plan.Phase]int
	reserved, released plan.MilliCPU
	coreSeconds        float64 // Released until
	until              time.Time

	podsDesc, reservedDesc, releasedDesc, secondsDesc *prometheus.Desc
}

type entry struct {
	phase              plan.Phase
	reserved, released plan.MilliCPU
}

func newLedger() *ledger {
	return &ledger{
		pods: map[types.UID]entry{}, phases: map[plan.Phase]int{},
		podsDesc: prometheus.NewDesc("pod_resizer_pods", "Opted-in pods by phase; 0 on replicas that do not lead.", []string{"phase"}, nil),
		reservedDesc: prometheus.NewDesc("pod_resizer_reserved_cpu_cores",
			"CPU that pods ask for beyond their steady CPU, because they are starting or cannot be lowered.", nil, nil),
		releasedDesc: prometheus.NewDesc("pod_resizer_released_cpu_cores", "CPU that pods have given back since their startup.", nil, nil),
		secondsDesc: prometheus.NewDesc("pod_resizer_released_cpu_core_seconds_total",
			"CPU that pods have given back since their startup, times how long, while this replica led.", nil, nil),
	}
}

// set enters a pod, or what has become of it.
func (l *ledger) set(uid types.UID, d plan.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cross(uid)
	if d.Phase != "" {
		l.pods[uid] = entry{d.Phase, d.Reserved, d.Released}
		l.add(l.pods[uid], 1)
	}
}

// remove takes a pod out.
func (l *ledger) remove(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cross(uid)
}

// clear ends a term as leader.
func (l *ledger) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.pods {
		l.cross(uid)
	}
}

func (l *ledger) cross(uid types.UID) {
	l.pass(time.Now())
	if e, ok := l.pods[uid]; ok {
		l.add(e, -1)
		delete(l.pods, uid)
	}
}

func (l *ledger) add(e entry, sign int) {
	l.phases[e.phase] += sign
	l.reserved += plan.MilliCPU(sign) * e.reserved
	l.released += plan.MilliCPU(sign) * e.released
}

// pass lets the time pass until now.
func (l *ledger) pass(now time.Time) {
	l.coreSeconds += cores(l.released) * now.Sub(l.until).Seconds()
	l.until = now
}

func cores(m plan.MilliCPU) float64 { return float64(m) / 1000 }

// Describe is that of a prometheus.Collector.
func (l *ledger) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l.podsDesc, l.reservedDesc, l.releasedDesc, l.secondsDesc} {
		all <- d
	}
}

// Collect is that of a prometheus.Collector.
func (l *ledger) Collect(all chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(time.Now())
	for _, phase := range plan.Phases() {
		all <- prometheus.MustNewConstMetric(l.podsDesc, prometheus.GaugeValue, float64(l.phases[phase]), string(phase))
	}
	all <- prometheus.MustNewConstMetric(l.reservedDesc, prometheus.GaugeValue, cores(l.reserved))
	all <- prometheus.MustNewConstMetric(l.releasedDesc, prometheus.GaugeValue, cores(l.released))
	all <- prometheus.MustNewConstMetric(l.secondsDesc, prometheus.CounterValue, l.coreSeconds)
}
