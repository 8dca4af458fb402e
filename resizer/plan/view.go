package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// withdrawAfter is how long a restarted container's startup CPU may wait for room on its node. The scheduler keeps it from
	// other pods all that time.
	withdrawAfter = 30 * time.Second
	// resolution is that of the times in a container's status: what the API says started at 12:00:00 started before 12:00:01.
	resolution = time.Second
)

// view is a pod as a decision needs it.
type view struct {
	Input
	contract
	record   Status // What stands on the pod.
	subjects []subject
}

// subject is a container that is to be lowered, or has been.
type subject struct {
	*corev1.Container
	status         corev1.ContainerStatus
	request, limit MilliCPU
	cpu            CPU   // That it is to have.
	left           *Left // What it was left with; nil before that.
}

func (s subject) has(cpu MilliCPU) bool { return s.request == cpu && s.limit == cpu }

func (in Input) view(c contract) view {
	v := view{Input: in, contract: c}
	if in.recorded() != nil {
		v.record = in.Keys.StatusOf(in.Pod)
	}
	statuses := containerStatuses(in.Pod)
	for _, container := range runningContainers(&in.Pod.Spec) {
		s := subject{
			Container: container, status: statuses[container.Name], cpu: c.resolved[container.Name],
			request: milliCPU(container.Resources.Requests[corev1.ResourceCPU]), limit: LimitOrRequest(container),
		}
		if left, ok := v.record.Containers[container.Name]; ok {
			s.left = &left
		}
		_, lowered := c.lowered[container.Name]
		_, named := c.Steady[container.Name] // Of a pod that admission missed, all that is known once it was lowered.
		if lowered || s.cpu.Startup > 0 && (s.left != nil || named && !c.seen) {
			v.subjects = append(v.subjects, s)
		}
	}
	return v
}

// changes are the subjects that have not got their steady CPU yet, or got their startup CPU back.
func (v view) changes() []subject {
	return v.those(func(s subject) bool {
		// After a restart of another container, what somebody set meanwhile is left alone.
		return !s.has(s.cpu.Steady) && (v.record.Phase != Boosting || s.left == nil || s.has(s.left.MilliCPU))
	})
}

func (v view) those(which func(subject) bool) []subject {
	var all []subject
	for _, s := range v.subjects {
		if which(s) {
			all = append(all, s)
		}
	}
	return all
}

// phase is that of a pod with its startup CPU.
func (v view) phase() Phase {
	if v.record.Phase == Boosting {
		return Boosting
	}
	return Startup
}

// unscheduled decides about a pod that no kubelet has taken. One that fits no node for want of CPU starts, after a while, with its
// steady CPU: better slowly than never.
func (v view) unscheduled() Decision {
	changes := v.changes()
	unfit := v.unfit()
	if unfit == nil || v.FitAfter == 0 || len(changes) == 0 {
		return v.wait(Startup, AwaitingStart)
	}
	if left := unfit.LastTransitionTime.Add(v.FitAfter).Sub(v.Now); left > 0 {
		return v.waitFor(left, Startup, AwaitingStart)
	}
	return v.resize(Startup, DoesNotFit, changes, steadyCPU, fmt.Sprintf("No node has had room for the startup CPU in %s: starting with the steady CPU", v.FitAfter))
}

// unfit is the scheduler's word that no node has enough CPU; nil if it has said none. It says so in prose only (Kubernetes'
// pkg/scheduler/framework/plugins/noderesources/fit.go).
func (v view) unfit() *corev1.PodCondition {
	for i := range v.Pod.Status.Conditions {
		if c := &v.Pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "Insufficient cpu") {
			return c
		}
	}
	return nil
}

// opportunity raises a pod that was created with its steady CPU, once: before anything has changed its spec.
func (v view) opportunity() (Decision, bool) {
	if v.Boost != Opportunistic || v.record.Phase != "" || v.Pod.Generation > 1 || !v.TriggeredAt.IsZero() {
		return Decision{}, false
	}
	starting := v.those(func(s subject) bool {
		return s.has(s.cpu.Steady) && !v.through(s) && !endedForGood(v.Pod, s.Container, s.status)
	})
	if len(starting) == 0 {
		return Decision{}, false
	}
	return v.resize(Startup, Raised, starting, startupCPU, "Starting: raising CPU"), true
}

// restarted gives containers that run again after they had their steady CPU their startup CPU back. One that waits to be run again
// gets nothing yet: that would reset the back-off of a crash loop.
func (v view) restarted() (Decision, bool) {
	if v.OnRestart != BoostAgain || !v.seen {
		return Decision{}, false
	}
	again := v.those(func(s subject) bool {
		return s.left != nil && s.status.RestartCount > s.left.Restarts && s.cpu.Steady < s.cpu.Startup
	})
	var starting, raised []subject
	for _, s := range again {
		switch {
		case s.has(s.cpu.Startup) && s.left.MilliCPU != s.cpu.Startup:
			raised = append(raised, s)
		case s.has(s.cpu.Steady) && s.status.State.Running != nil && !v.through(s):
			starting = append(starting, s)
		}
	}
	switch {
	case len(starting) > 0:
		return v.resize(Boosting, Restarted, starting, startupCPU, "Restarted: giving the startup CPU back"), true
	case len(raised) > 0:
		return v.Input.record(Decision{Reason: Restarted, Message: "Restarted, with the startup CPU again: " + describe(raised, steadyCPU, startupCPU),
			Status: Status{Phase: Boosting, Reason: Restarted, Containers: v.leave()}}), true
	}
	return Decision{}, false
}

// noRoom takes back what the kubelet has no room for. What was asked for without need goes at once; a restarted container's
// startup CPU has a little time.
func (v view) noRoom(changes []subject) (Decision, bool) {
	pending := v.pending()
	switch {
	case pending == nil || len(changes) == 0:
		return Decision{}, false
	case v.record.Phase == Boosting:
		if left := v.recorded().LastTransitionTime.Add(withdrawAfter).Sub(v.Now); left > 0 && pending.Reason != corev1.PodReasonInfeasible {
			return v.waitFor(left, Deferred, AwaitingRoom), true
		}
	case v.record.Phase != "" || v.Boost != Opportunistic:
		return Decision{}, false // Somebody else has asked for something.
	}
	return v.resize(v.phase(), NoRoom, changes, steadyCPU, "The node has no room for the startup CPU: taking it back"), true
}

// setByOthers leaves alone what somebody has set after the CPU was lowered, and follows its author to another steady CPU.
func (v view) setByOthers() (Decision, bool) {
	if v.record.Phase == Boosting || v.record.Phase == Infeasible {
		return Decision{}, false
	}
	for _, s := range v.subjects {
		if s.left != nil && !s.has(s.left.MilliCPU) && !s.has(s.cpu.Steady) {
			return v.left(s), true
		}
		if s.left == nil && min(s.request, s.limit) < s.cpu.Steady && !s.has(v.admitted[s.Name].Steady) {
			return v.skip(BelowSteady, fmt.Sprintf("container %q has %s, less than its steady CPU %s: something else lowered it",
				s.Name, min(s.request, s.limit), s.cpu.Steady)), true
		}
	}
	moved := v.those(func(s subject) bool {
		return !s.has(s.cpu.Steady) && (s.left != nil || s.limit < s.cpu.Steady) // The latter is resized, and not recorded yet.
	})
	if len(moved) > 0 {
		return v.resize(Resizing, SteadyChanged, moved, steadyCPU, "Another steady CPU is wanted"), true
	}
	return Decision{}, false
}

// left leaves a container alone that something else has set.
func (v view) left(s subject) Decision {
	return v.skip(SetByOthers, fmt.Sprintf("container %q has %s, and was left with %s: something else set it", s.Name, s.limit, s.left.MilliCPU))
}

// infeasible decides about a pod whose node cannot resize it. Its spec goes back to what the node holds: until then it tells
// autoscalers, and people, a lie. Nothing is tried again until its author wants another steady CPU.
func (v view) infeasible() (Decision, bool) {
	if v.record.Phase != Infeasible || !slices.ContainsFunc(v.subjects, func(s subject) bool { return s.left != nil && s.left.MilliCPU == s.cpu.Steady }) {
		return Decision{}, false
	}
	lies := v.those(func(s subject) bool { return s.has(s.cpu.Steady) && s.allocated() != s.cpu.Steady })
	switch pending := v.pending(); {
	case len(v.changes()) == 0 && len(lies) == 0:
		return Decision{}, false // It can by now.
	case len(lies) > 0 && pending != nil && pending.Reason == corev1.PodReasonInfeasible:
		return v.resize(Infeasible, PutBack, lies, subject.allocated, "The node cannot resize the pod: putting back what it holds"), true
	default:
		return v.wait(Infeasible, NodeCannotResize), true
	}
}

// allocated is what the kubelet has reserved for the container; its startup CPU if the kubelet does not say.
func (s subject) allocated() MilliCPU {
	if cpu, ok := s.status.AllocatedResources[corev1.ResourceCPU]; ok {
		return milliCPU(cpu)
	}
	return s.cpu.Startup
}

func startupCPU(s subject) MilliCPU { return s.cpu.Startup }
func steadyCPU(s subject) MilliCPU  { return s.cpu.Steady }
func (s subject) now() MilliCPU     { return s.limit }

// resize asks for other CPU, unless that would change the QoS class.
func (v view) resize(phase Phase, reason Reason, subjects []subject, to func(subject) MilliCPU, message string) Decision {
	target := map[string]MilliCPU{}
	for _, s := range subjects {
		target[s.Name] = to(s)
	}
	if before, after := v.Pod.Status.QOSClass, qosWith(&v.Pod.Spec, target); before != after {
		return v.skip(QoSWouldChange, fmt.Sprintf("The pod was created %s, and the steady CPU would make it %s, which Kubernetes "+
			"does not allow; recreate it, so that admission sets its startup CPU", before, after))
	}
	return Decision{Action: Resize, Phase: phase, Reason: reason, Target: target, TriggeredAt: v.TriggeredAt,
		Message: bounded(message + ", " + describe(subjects, subject.now, to))}
}

func (v view) waitFor(left time.Duration, phase Phase, reason Reason) Decision {
	d := v.wait(phase, reason)
	d.RequeueAfter = left
	return d
}

// startup decides about a pod that still has startup CPU.
func (v view) startup(changes []subject) Decision {
	var started time.Time // Of the container that started last.
	var deadline time.Time
	ended, late, again := 0, 0, time.Duration(0)
	waiting := false
	for _, s := range changes {
		if waiting := s.status.State.Waiting; waiting != nil && waiting.Reason == "CrashLoopBackOff" {
			return Decision{Action: Wait, Phase: v.phase(), Reason: CrashLoopBackOff}
		}
		if endedForGood(v.Pod, s.Container, s.status) {
			ended++
			continue
		}
		over := v.over(s)
		if !over.is {
			waiting = true
			if over.again > 0 && (again == 0 || over.again < again) {
				again = over.again
			}
			continue
		}
		if over.late {
			late++
		}
		running := s.status.State.Running
		if running.StartedAt.After(started) {
			started = running.StartedAt.Time
		}
		if by := running.StartedAt.Add(resolution + v.Deadline); by.After(deadline) {
			deadline = by
		}
	}
	if waiting || ended == len(changes) { // Nothing runs that could use less.
		return Decision{Action: Wait, Phase: v.phase(), Reason: AwaitingTrigger, RequeueAfter: again}
	}
	since := v.TriggeredAt
	switch {
	case v.Trigger == Delay:
		since = started.Add(resolution) // Never early.
	case since.Before(started): // Seen for the first time, or seen of a container that has restarted since.
		since = v.Now
	}
	left := since.Add(v.Delay).Sub(v.Now)
	if v.Deadline > 0 {
		left = min(left, deadline.Sub(v.Now))
	}
	if left > 0 {
		d := Decision{Action: Wait, Phase: v.phase(), Reason: AwaitingDelay, RequeueAfter: left}
		if v.Trigger != Delay {
			d.TriggeredAt = since
		}
		return d
	}
	if v.Trigger == Delay {
		since = v.Now
	}
	reason, message := StartupOver, "Startup is over: lowering CPU"
	if late > 0 {
		reason, message = DeadlinePassed, fmt.Sprintf("Startup is not over after %s, the deadline: lowering CPU", v.Deadline)
	}
	d := v.resize(v.phase(), reason, changes, steadyCPU, message)
	if d.Action != Resize {
		return d
	}
	d.TriggeredAt = since
	if class, culprits := QoS(&v.Pod.Spec); class != corev1.PodQOSGuaranteed {
		texts := make([]string, len(culprits))
		for i, c := range culprits {
			texts[i] = c.String()
		}
		d.Warning = bounded(fmt.Sprintf("The pod is %s, not Guaranteed: %s", class, strings.Join(texts, "; ")))
	}
	return d
}

// through says whether a container needs no startup CPU any more. The trigger Delay is over with time alone.
func (v view) through(s subject) bool {
	running := s.status.State.Running
	return v.over(s).is && (v.Trigger != Delay || !running.StartedAt.Add(resolution+v.Delay).After(v.Now))
}

// over is whether a container's startup is over.
type over struct {
	is    bool
	late  bool          // It is, but only because its deadline has passed.
	again time.Duration // If it is not: when to look again, if time alone may make it so; else zero.
}

func (v view) over(s subject) over {
	running := s.status.State.Running
	if running == nil {
		return over{}
	}
	began := running.StartedAt.Add(resolution)
	isStarted, trusted := s.status.Ready, v.Now
	if s.StartupProbe != nil {
		isStarted = s.status.Started != nil && *s.status.Started
		if isStarted && s.status.RestartCount > 0 {
			// After a restart the kubelet may go on reporting the old instance's "started" until the probe's next period
			// (kubernetes/kubernetes#141155).
			trusted = began.Add(time.Duration(s.StartupProbe.PeriodSeconds)*time.Second + resolution)
			isStarted = !trusted.After(v.Now)
		}
	}
	var is bool
	switch v.Trigger {
	case Delay:
		is = true // But for the time; see startup.
	case PodCondition:
		// Nobody may have taken back what was said of the old instance.
		is = conditionOf(v.Pod, v.Condition) != nil && (s.status.RestartCount == 0 || isStarted)
	case Ready:
		is = s.status.Ready
	default:
		is = isStarted
	}
	if is {
		return over{is: true}
	}
	var again time.Duration
	if v.Deadline > 0 {
		if again = began.Add(v.Deadline).Sub(v.Now); again <= 0 {
			return over{is: true, late: true}
		}
	}
	if left := trusted.Sub(v.Now); left > 0 && (again == 0 || left < again) {
		again = left
	}
	return over{again: again}
}

// endedForGood tells a container that will not run again: nothing of it is waited for. Its own restart policy goes before the
// pod's (a sidecar's is Always); with rules of its own (KEP-5307), nobody but the kubelet knows.
func endedForGood(pod *corev1.Pod, c *corev1.Container, status corev1.ContainerStatus) bool {
	ended := status.State.Terminated
	if ended == nil || len(c.RestartPolicyRules) > 0 {
		return false
	}
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	return policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && ended.ExitCode == 0
}

// pending is the kubelet's word that it has not taken what the spec asks for; nil if it has said none. One of an older generation
// says nothing about this one (KEP-5067); Kubernetes 1.33 gives no generation.
func (v view) pending() *corev1.PodCondition {
	c := conditionOf(v.Pod, corev1.PodResizePending)
	if c == nil || c.ObservedGeneration != 0 && c.ObservedGeneration < v.Pod.Generation {
		return nil
	}
	return c
}

// actuation decides about a pod whose spec holds the steady CPU: done means that the kubelet says so, never that the API
// server accepted it. The conditions are those of KEP-1287; see also kubelet's status manager.
func (v view) actuation() Decision {
	pod := v.Pod
	leave := v.leave()
	// Before there was a re-boost, no containers were recorded; such a pod is not written to for that alone.
	if v.marked() && v.record.Phase == Steady && (v.record.Containers == nil || maps.Equal(v.record.Containers, leave)) {
		return v.wait(Steady, AlreadyMarked)
	}
	if others := v.those(func(s subject) bool { return !s.has(s.cpu.Steady) }); len(others) > 0 {
		return v.left(others[0])
	}
	if pending := v.pending(); pending != nil {
		if pending.Reason == corev1.PodReasonInfeasible {
			return v.Input.record(Decision{Reason: NodeCannotResize, Message: pending.Message,
				Status: Status{Phase: Infeasible, Reason: NodeCannotResize, Containers: leave}})
		}
		return v.wait(Deferred, AwaitingRoom)
	}
	// Kubernetes 1.33 does not report observedGeneration by default; the allocation below has to do there.
	if conditionOf(pod, corev1.PodResizePending) != nil || conditionOf(pod, corev1.PodResizeInProgress) != nil ||
		pod.Status.ObservedGeneration != 0 && pod.Status.ObservedGeneration < pod.Generation {
		return v.wait(Resizing, AwaitingKubelet)
	}
	statuses := containerStatuses(pod)
	var started time.Time // Of the container that started first.
	for _, c := range runningContainers(&pod.Spec) {
		cpu, known := v.resolved[c.Name]
		status := statuses[c.Name]
		if !known {
			continue
		}
		// Not status.resources: those come from the runtime and may never equal the spec after rounding.
		allocated, ok := status.AllocatedResources[corev1.ResourceCPU]
		actuated := ok && milliCPU(allocated) == milliCPU(c.Resources.Requests[corev1.ResourceCPU])
		if !actuated && !endedForGood(pod, c, status) {
			return v.wait(Resizing, AwaitingKubelet)
		}
		if running := status.State.Running; cpu.Steady < cpu.Startup && running != nil && (started.IsZero() || running.StartedAt.Time.Before(started)) {
			started = running.StartedAt.Time
		}
	}
	done := v.done()
	done.Status.Phase, done.Status.Reason, done.Status.Containers = Steady, done.Reason, leave
	// A container that has started since the trigger has restarted: how long its first start took is lost.
	if !started.IsZero() && !v.TriggeredAt.Before(started) {
		seconds := v.TriggeredAt.Sub(started).Seconds()
		done.Status.StartupSeconds = math.Round(seconds*10) / 10 // Finer than a tenth would pretend.
		done.Message += fmt.Sprintf("; startup took %.1f s", seconds)
	}
	return v.Input.record(done)
}

// done is what there is to say at the end.
func (v view) done() Decision {
	lowered := v.those(func(s subject) bool { return s.cpu.Steady < s.cpu.Startup })
	class := v.Pod.Status.QOSClass
	d := Decision{Reason: CPULowered, Status: Status{ReleasedMilliCPU: v.resolved.Released()}}
	changed := v.Pod.Generation > 1 || !v.TriggeredAt.IsZero() // Since it was created.
	switch {
	case len(lowered) == 0 && !v.seen && changed:
		// Admission missed it, so nothing says any more what it started with; but the spec has changed since.
		d.Message = fmt.Sprintf("CPU lowered; %s", class)
	case len(lowered) == 0:
		d.Reason, d.Message = NothingToLower, fmt.Sprintf("Startup and steady CPU are the same; %s", class)
	case v.record.Phase == "" && v.Boost == Opportunistic && !changed:
		d.Reason, d.Status.ReleasedMilliCPU = NothingToLower, 0
		d.Message = fmt.Sprintf("Created with the steady CPU; %s", class)
	case v.withoutBoost():
		d.Reason = NoRoom
		d.Message = fmt.Sprintf("There was no room for the startup CPU, so the start goes on with the steady CPU, %s; %s", describe(lowered, startupCPU, steadyCPU), class)
	default:
		d.Message = fmt.Sprintf("CPU lowered, %s; %s", describe(lowered, startupCPU, steadyCPU), class)
	}
	return d
}

// withoutBoost says whether a pod has its steady CPU before its startup is over.
func (v view) withoutBoost() bool {
	return v.TriggeredAt.IsZero() && (v.record.Phase == "" || v.record.Phase == Boosting) && slices.ContainsFunc(v.subjects, func(s subject) bool {
		return !v.through(s) && !endedForGood(v.Pod, s.Container, s.status) && (s.status.RestartCount == 0 || v.record.Phase == Boosting || v.Boost == Opportunistic)
	})
}

// leave is what the subjects are left with now. A restart counts once its start is over, or will not be helped; until then a
// later look shall find it.
func (v view) leave() map[string]Left {
	all := map[string]Left{}
	for _, s := range v.subjects {
		restarts := s.status.RestartCount
		switch {
		case s.has(s.cpu.Startup) || v.through(s):
		case s.left != nil:
			restarts = s.left.Restarts
		case !v.withoutBoost():
			restarts = max(restarts-1, 0)
		}
		if v.OnRestart == Ignore && s.left != nil {
			restarts = s.left.Restarts
		}
		all[s.Name] = Left{s.limit, restarts}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// Refuse is the decision after the API server refused a resize for good reason (403 or 422): tell people, once. Where the CPU was
// to be raised, the pod goes on as it is.
func (in Input) Refuse(refused Decision, message string) Decision {
	if refused.Reason == PutBack {
		return in.wait(Infeasible, NodeCannotResize) // It says so already.
	}
	c, err := in.Keys.contract(in.Pod)
	if err != nil || refused.Reason != Raised && refused.Reason != Restarted {
		return in.record(Decision{Reason: APIRefused, Message: message, Status: Status{Phase: Refused, Reason: APIRefused}})
	}
	v := in.view(c)
	status := Status{Phase: Steady, Reason: NoRoom, Containers: map[string]Left{}}
	if v.record.Phase == Boosting { // Another container still is.
		status.Phase, status.Reason = Boosting, Restarted
	}
	for _, s := range v.subjects {
		status.Containers[s.Name] = Left{s.limit, s.status.RestartCount}
	}
	return in.record(Decision{Reason: status.Reason, Message: message, Status: status})
}

// describe reads "app 200m to 50m, proxy 100m to 20m".
func describe(subjects []subject, from, to func(subject) MilliCPU) string {
	parts := make([]string, len(subjects))
	for i, s := range subjects {
		parts[i] = fmt.Sprintf("%s %s to %s", s.Name, from(s), to(s))
	}
	return strings.Join(parts, ", ")
}
