package plan

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// life is one pod from its creation to its steady CPU: as much of an API server, a kubelet, an informer and a resizer as
// Decide can notice, driven by chance. What it finds wrong it throws as a broken.
type life struct {
	rng   *rand.Rand
	keys  Keys
	now   time.Time
	story []string // Only when told is set: telling it takes longer than living it.
	told  bool

	// The API server.
	pod      *corev1.Pod
	version  int // Of the pod; every change makes a new one.
	refusals int // How many more resizes it refuses.

	// The kubelet. Its allocation stands in the pod's status.
	names      []string // Of the containers, in the order of the spec.
	lowered    map[string]CPU
	actuated   map[string]MilliCPU  // In the cgroup.
	began      map[string]time.Time // When the running instance began, finer than the API says.
	infeasible bool
	deferrals  int  // How often it puts a resize off.
	silent     bool // It reports no generation, as Kubernetes 1.33.

	// The resizer.
	seen        *corev1.Pod // The informer's copy,
	seenVersion int         // its version,
	seenBegan   map[string]time.Time
	written     int       // the version that the last write of this leader led to,
	triggeredAt time.Time // and what this leader remembers.
	firstSaw    time.Time // When this leader first saw the trigger, by the test's own reckoning.
	timer       time.Time

	// The books.
	patched                     map[int64]bool // Generations that a resize was accepted for.
	resizes, records, refusedBy int
	raises                      map[string]int32 // How many instances of a container were given their startup CPU.
	restarts                    int              // Since the first record of a lowered pod.
}

type broken string

// warm is the condition that the trigger PodCondition waits for.
const warm = "example.com/WarmedUp"

// newLife is a pod of one to four containers with chance amounts, probes, trigger, delay and troubles.
func newLife(seed uint64, keys Keys, told bool) *life {
	rng := rand.New(rand.NewPCG(seed, 0))
	l := &life{
		rng: rng, keys: keys, now: noon, told: told, infeasible: rng.IntN(8) == 0, deferrals: rng.IntN(4), silent: rng.IntN(4) == 0,
		lowered: map[string]CPU{}, actuated: map[string]MilliCPU{}, began: map[string]time.Time{}, patched: map[int64]bool{}, raises: map[string]int32{},
	}
	if rng.IntN(4) == 0 {
		l.refusals = 1 + rng.IntN(3)
	}
	l.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "1", Generation: 1, Annotations: annotations("enabled", "true")},
		Status:     corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSGuaranteed},
	}
	resolved := Resolved{}
	for i, name := range []string{"app", "proxy", "web", "log"} {
		if i > 0 && rng.IntN(3) > 0 {
			continue
		}
		startup := MilliCPU(2 + rng.IntN(4000))
		resolved[name] = CPU{startup, startup}
		if name != "log" { // That one is never named.
			resolved[name] = CPU{startup, 1 + MilliCPU(rng.IntN(int(startup)))}
			l.lowered[name] = resolved[name]
		}
		add := with
		if name == "proxy" {
			add = withSidecar
		}
		add(name, startup.String())(l.pod)
		c, s := find(l.pod, name)
		*s = corev1.ContainerStatus{Name: name} // Nothing runs yet.
		if rng.IntN(3) == 0 {
			c.StartupProbe = nil
		}
		l.names = append(l.names, name)
		l.actuated[name] = startup
	}
	if rng.IntN(4) == 0 {
		var parts []string
		for name, cpu := range l.lowered {
			parts = append(parts, fmt.Sprintf(`%q:{"limits":{"cpu":"%dm"}}`, name, cpu.Steady))
		}
		missed("{" + strings.Join(parts, ",") + "}")(l.pod)
	} else {
		resolve(resolved)(l.pod)
	}
	trigger := []Trigger{StartupProbePassed, Ready, Delay, PodCondition + "=" + warm}[rng.IntN(4)]
	annotate("trigger", string(trigger))(l.pod)
	if delay := rng.IntN(3) * 4; delay > 0 || trigger == Delay {
		annotate("delay-seconds", fmt.Sprint(delay))(l.pod)
	}
	if rng.IntN(3) == 0 {
		annotate("on-restart", "Ignore")(l.pod)
	}
	if rng.IntN(3) == 0 {
		annotate("deadline-seconds", fmt.Sprint(10+rng.IntN(10)))(l.pod)
	}
	if _, seen := l.pod.Annotations[keys.Resolved]; seen && rng.IntN(3) == 0 {
		annotate("boost", "Opportunistic")(l.pod)
		for name, c := range l.lowered {
			cpu(name, c.Steady.String())(l.pod)
			l.actuated[name] = c.Steady
		}
	}
	put(l.pod.Annotations, keys.Guard(l.pod.Annotations, rng.IntN(2) == 0))
	l.changed()
	l.lead()
	l.tell("a pod of %v, %v, lowers %v; refusals %d, deferrals %d, infeasible %v, silent %v",
		l.names, l.pod.Annotations, l.lowered, l.refusals, l.deferrals, l.infeasible, l.silent)
	return l
}

func (l *life) tell(format string, args ...any) {
	if !l.told {
		return
	}
	l.story = append(l.story, l.now.Format("05.000 ")+fmt.Sprintf(format, args...))
}

// live returns what went wrong, if anything.
func (l *life) live() (problem broken) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case broken:
			problem = p
		default:
			panic(p)
		}
	}()
	l.run()
	l.arrived()
	return ""
}

func (l *life) must(ok bool, format string, args ...any) {
	if !ok {
		panic(broken(fmt.Sprintf(format, args...)))
	}
}

func (l *life) changed() { l.version++ }

// lead begins another leader: it lists anew and remembers nothing.
func (l *life) lead() {
	l.triggeredAt, l.firstSaw, l.timer, l.written = time.Time{}, time.Time{}, time.Time{}, 0
	l.deliver()
}

// deliver is a watch event; those that chance leaves out were merged into a later one.
func (l *life) deliver() {
	l.seen, l.seenVersion, l.seenBegan = l.pod.DeepCopy(), l.version, map[string]time.Time{}
	for name, at := range l.began {
		l.seenBegan[name] = at
	}
}

// work is what the resizer does with what it sees; it may see the same twice.
func (l *life) work() {
	if l.seenVersion < l.written {
		return // It waits for the event of its own write.
	}
	in := Input{Keys: l.keys, Pod: l.seen, Now: l.now, TriggeredAt: l.triggeredAt}
	over := l.startupOver()
	if over && l.firstSaw.IsZero() {
		l.firstSaw = l.now
	}
	d := Decide(in)
	l.must(reflect.DeepEqual(d, Decide(in)), "two answers to one question")
	l.must(d.RequeueAfter >= 0 && (d.RequeueAfter > 0 || d.Reason != AwaitingDelay), "requeue after %s for %s", d.RequeueAfter, d.Reason)
	l.must(d.Phase != "", "no phase for %s", d.Reason)
	l.tell("decided %s %s %s %v", d.Action, d.Reason, d.Message, d.RequeueAfter)
	l.triggeredAt = d.TriggeredAt
	if d.RequeueAfter > 0 {
		l.timer = l.now.Add(d.RequeueAfter)
	}
	switch d.Action {
	case Wait, Tell:
	case Resize:
		l.must(slices.Contains(ResizeReasons(), d.Reason), "%s is no reason to resize", d.Reason)
		switch d.Reason {
		case StartupOver, DeadlinePassed:
			l.must(over, "lowered before the startup was over")
		case Raised, Restarted:
			for name, amount := range d.Target {
				_, s := find(l.seen, name)
				l.must(amount == l.lowered[name].Startup, "raised to %s", amount)
				l.must(d.Reason == Raised || s.State.Running != nil && s.RestartCount > 0, "raised %s, which does not run", name)
			}
		case NoRoom, PutBack:
			l.must(conditionOf(l.seen, corev1.PodResizePending) != nil, "%s, though the kubelet says nothing of the kind", d.Reason)
		default:
			l.must(false, "nobody gave reason to %s", d.Reason)
		}
		l.resize(in, d)
	case Record:
		l.record(d)
	}
}

// startupOver is the test's own reading of the rules, of what the resizer sees. What has its steady CPU need not start for it.
func (l *life) startupOver() bool {
	for name, cpu := range l.lowered {
		c, s := find(l.seen, name)
		switch {
		case cpu.Steady == cpu.Startup, LimitOrRequest(c) == cpu.Steady:
		case s.State.Running != nil && l.deadline() > 0 && !l.now.Before(l.seenBegan[name].Add(l.deadline())):
		case s.State.Running == nil:
			return false
		default:
			switch Trigger(l.seen.Annotations[l.keys.Trigger]) {
			case Delay:
				if l.now.Before(l.seenBegan[name].Add(l.delay())) {
					return false
				}
			case StartupProbePassed:
				if c.StartupProbe != nil {
					if !*s.Started {
						return false
					}
					continue
				}
				fallthrough
			case Ready:
				if !s.Ready {
					return false
				}
			default: // PodCondition, with its type.
				if conditionOf(l.seen, warm) == nil {
					return false
				}
			}
		}
	}
	return true
}

func (l *life) delay() time.Duration    { return l.seconds(l.keys.DelaySeconds) }
func (l *life) deadline() time.Duration { return l.seconds(l.keys.DeadlineSeconds) }

func (l *life) seconds(key string) time.Duration {
	d, err := time.ParseDuration(l.pod.Annotations[key] + "s")
	if err != nil {
		return 0
	}
	return d
}

func (l *life) resize(in Input, d Decision) {
	if d.Reason == StartupOver && Trigger(l.seen.Annotations[l.keys.Trigger]) != Delay && l.deadline() == 0 {
		l.must(!l.now.Before(l.firstSaw.Add(l.delay())), "resized before the delay was over")
	}
	l.must(len(d.Target) > 0, "a resize of nothing")
	for name, cpu := range d.Target {
		l.must(cpu >= l.lowered[name].Steady && cpu <= l.lowered[name].Startup, "%s of %s is not between %+v", cpu, name, l.lowered[name])
	}
	if l.refusals > 0 {
		l.refusals--
		l.refusedBy++
		l.tell("the API server refuses")
		if refusal := in.Refuse(d, "exceeded quota, used: "+fmt.Sprint(l.refusals)); refusal.Action == Record {
			l.record(refusal)
		}
		l.timer = l.now.Add(time.Second) // The queue's back-off.
		return
	}
	l.must(!l.patched[l.pod.Generation], "generation %d is patched twice", l.pod.Generation)
	l.patched[l.pod.Generation] = true
	for name, amount := range d.Target {
		if _, s := find(l.seen, name); d.Reason == Restarted {
			l.must(s.RestartCount > l.raises[name], "the same instance of %s is raised twice", name)
			l.raises[name] = s.RestartCount
		}
		cpu(name, amount.String())(l.pod)
	}
	l.pod.Generation++
	l.resizes++
	l.changed()
	l.written = l.version
}

func (l *life) record(d Decision) {
	if d.Status.Phase == Steady {
		for name, cpu := range l.lowered {
			l.must(l.actuated[name] == cpu.Steady, "marked while the node holds %s for %s", l.actuated[name], name)
		}
		l.must(d.Status.StartupSeconds >= 0, "startup took %v s", d.Status.StartupSeconds)
	}
	write(l.keys, l.pod, d)
	for _, key := range []string{l.keys.Guarded, karpenter, autoscaler} {
		_, present := l.pod.Annotations[key]
		l.must(!present, "%s is recorded, and %s is still there", d.Reason, key)
	}
	l.records++
	l.changed()
	l.written = l.version
}

// kubelet does one thing that a kubelet might do next. A calm one lets nothing crash and puts nothing off.
func (l *life) kubelet(calm bool) {
	if l.pod.Status.StartTime == nil {
		l.pod.Status.StartTime = &metav1.Time{Time: l.now.Truncate(time.Second)}
		l.observed()
		for _, name := range l.names {
			c, s := find(l.pod, name)
			s.AllocatedResources = c.Resources.Requests.DeepCopy()
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		}
		l.changed()
		return
	}
	if calm || l.rng.IntN(2) == 0 {
		l.syncResize(calm)
	}
	if calm || l.rng.IntN(4) == 0 {
		l.syncCondition(calm)
	}
	for _, name := range l.names {
		if calm || l.rng.IntN(len(l.names)) == 0 {
			l.syncContainer(name, calm)
		}
	}
	l.changed()
}

func (l *life) observed() {
	l.pod.Status.ObservedGeneration = l.generation()
}

func (l *life) generation() int64 {
	if l.silent {
		return 0
	}
	return l.pod.Generation
}

func (l *life) syncContainer(name string, calm bool) {
	c, s := find(l.pod, name)
	yes, no := true, false
	switch running := s.State.Running; {
	case running == nil && !calm && s.State.Terminated != nil && l.rng.IntN(2) == 0:
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	case running == nil:
		l.began[name] = l.now
		s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: l.now.Truncate(time.Second)}}}
		s.Started = &no
		if c.StartupProbe == nil {
			s.Started = &yes
		}
	case !calm && l.rng.IntN(10) == 0:
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
		s.Started, s.Ready = &no, false
		s.RestartCount++
		if l.resizes+l.refusedBy > 0 {
			l.restarts++
		}
	case !*s.Started:
		s.Started = &yes
	case !s.Ready:
		s.Ready = true
	case !calm && l.rng.IntN(5) == 0:
		s.Ready = false
	}
	l.tell("kubelet: %s is %+v, started %v, ready %v", name, s.State, s.Started != nil && *s.Started, s.Ready)
}

// syncCondition is what somebody says about the pod, who may change his mind.
func (l *life) syncCondition(calm bool) {
	status := corev1.ConditionTrue
	if !calm && l.rng.IntN(2) == 0 {
		status = corev1.ConditionFalse
	}
	l.pod.Status.Conditions = slices.DeleteFunc(l.pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == warm })
	condition(corev1.PodCondition{Type: warm, Status: status})(l.pod)
	l.tell("%s is %s", warm, status)
}

// syncResize takes a resize one step further: put off or infeasible, or allocated and then actuated.
func (l *life) syncResize(calm bool) {
	var toAllocate, toActuate []string
	for _, name := range l.names {
		c, s := find(l.pod, name)
		allocation := s.AllocatedResources[corev1.ResourceCPU]
		switch {
		case !allocation.Equal(c.Resources.Requests[corev1.ResourceCPU]):
			toAllocate = append(toAllocate, name)
		case milliCPU(allocation) != l.actuated[name]:
			toActuate = append(toActuate, name)
		}
	}
	l.pod.Status.Conditions = slices.DeleteFunc(l.pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	})
	l.observed()
	switch {
	case len(toAllocate) > 0 && l.infeasible:
		l.tell("kubelet: infeasible")
		pending(corev1.PodReasonInfeasible, "static CPU manager", l.generation())(l.pod)
	case len(toAllocate) > 0 && l.deferrals > 0 && !calm:
		l.tell("kubelet: deferred")
		l.deferrals--
		pending(corev1.PodReasonDeferred, "no room", l.generation())(l.pod)
	case len(toAllocate) > 0:
		l.tell("kubelet: allocates %v", toAllocate)
		for _, name := range toAllocate {
			c, s := find(l.pod, name)
			amount := c.Resources.Requests[corev1.ResourceCPU]
			s.AllocatedResources[corev1.ResourceCPU] = resource.MustParse(amount.AsDec().String()) // "0.05", where the spec says "50m".
		}
		inProgress("", l.generation())(l.pod)
	case len(toActuate) > 0:
		l.tell("kubelet: actuates %v", toActuate)
		for _, name := range toActuate {
			_, s := find(l.pod, name)
			l.actuated[name] = milliCPU(s.AllocatedResources[corev1.ResourceCPU])
		}
	}
}

// run is a time of troubles, then calm.
func (l *life) run() {
	for range 20 + l.rng.IntN(60) {
		switch l.rng.IntN(10) {
		case 0, 1, 2:
			l.kubelet(false)
		case 3, 4:
			l.now = l.now.Add(time.Duration(l.rng.Int64N(int64(3 * time.Second))))
		case 5, 6, 7:
			l.deliver()
			l.work()
		case 8:
			l.work()
		case 9:
			if l.rng.IntN(3) == 0 {
				l.tell("another leader")
				l.lead()
				l.work()
			}
		}
		l.expire()
	}
	l.tell("calm")
	for range 30 {
		l.kubelet(true)
		l.deliver()
		l.work()
		l.now = l.now.Add(time.Second)
		l.expire()
	}
}

func (l *life) expire() {
	if !l.timer.IsZero() && !l.now.Before(l.timer) {
		l.timer = time.Time{}
		l.work()
	}
}

// arrived says what is wrong with the end.
func (l *life) arrived() {
	var lower bool
	for name, cpu := range l.lowered {
		c, _ := find(l.pod, name)
		has, want := LimitOrRequest(c), cpu.Steady
		if l.infeasible {
			want = l.actuated[name] // The spec tells no lie.
		}
		l.must(has == want, "%s ends with %s, wants %s", name, has, want)
		lower = lower || cpu.Steady < cpu.Startup
	}
	if !lower {
		l.must(l.resizes == 0 && l.records == 1, "%d resizes and %d records for nothing to lower", l.resizes, l.records)
		return
	}
	opportunistic := Boost(l.pod.Annotations[l.keys.Boost]) == Opportunistic
	end := l.pod.Status.Conditions[slices.IndexFunc(l.pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == l.keys.Steady })]
	resizes, records := 1, 1
	if l.refusedBy > 0 {
		records = 2 // Refused, once.
	}
	marked := l.pod.Annotations[l.keys.Resized] == "true"
	if l.infeasible && !opportunistic {
		resizes = 2 // And put back.
		l.must(!marked && end.Reason == string(NodeCannotResize), "ends with marker %v and %+v on a node that cannot", marked, end)
	} else {
		l.must(marked && end.Status == corev1.ConditionTrue, "ends with marker %v and %+v", marked, end)
	}
	if l.restarts == 0 && !opportunistic {
		l.must(l.resizes == resizes && l.records == records, "%d resizes and %d records, want %d and %d", l.resizes, l.records, resizes, records)
	}
	// An opportunistic start costs one more; so does a restart, and each of them one record more, before and after.
	most := 2 + 2*l.restarts
	l.must(l.resizes <= most && l.records <= 2*most+records, "%d resizes and %d records of %d restarts", l.resizes, l.records, l.restarts)
}

// Whatever happens on the way, every pod ends with its steady CPU, or with the reason why not; no resize is early, none
// is repeated, none leaves the range from steady to startup; and a plain start costs one resize and one record.
func TestEveryLifeEndsSteady(t *testing.T) {
	keys := testKeys(t)
	for seed := range uint64(300) {
		if problem := newLife(seed, keys, false).live(); problem != "" {
			again := newLife(seed, keys, true)
			t.Fatalf("seed %d: %s\ntold again: %s\n%s", seed, problem, again.live(), strings.Join(again.story, "\n"))
		}
	}
}
