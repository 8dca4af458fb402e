package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Input is all that Decide looks at.
type Input struct {
	Keys Keys
	// Pod is as the API server stores it. It is only read.
	Pod *corev1.Pod
	Now time.Time
	// TriggeredAt is when this leader first saw the trigger fulfilled; zero if it has not. A delay after a trigger counts
	// from here, because Kubernetes keeps no time for "started"; it starts anew with a new leader.
	TriggeredAt time.Time
}

// Action is what the caller has to do.
type Action string

// The actions. At most one write each, so that a crash between two of them loses nothing.
const (
	// Wait writes nothing. The next event on the pod, or Decision.RequeueAfter, asks again.
	Wait Action = "Wait"
	// Resize sets Decision.Target through pods/resize.
	Resize Action = "Resize"
	// Tell lets an event say Decision.Message, once; nothing is written to the pod, which has not opted in.
	Tell Action = "Tell"
	// Record writes Decision.Status, the condition and, for the phase Steady, the marker, and takes the guards away, through
	// pods/status.
	Record Action = "Record"
)

// Decision is what to do with a pod, and why.
type Decision struct {
	Action  Action
	Reason  Reason
	Message string // For people; may be empty when there is nothing to tell.
	// Warning is a further thing that people should know, with the reason NotGuaranteed; most often empty.
	Warning string
	// Target is the CPU to set by container name; only the containers that change.
	Target map[string]MilliCPU
	// Status is what to record.
	Status Status
	// Unguard are the annotations to change with it; nil removes one. See Keys.Guard.
	Unguard map[string]*string
	// RequeueAfter asks for another look without an event; zero means that an event will come.
	RequeueAfter time.Duration
	// TriggeredAt is the Input.TriggeredAt of the next decision; zero while startup goes on.
	TriggeredAt time.Time
}

// Decide says what to do next with a pod. It is a pure function of its input.
func Decide(in Input) Decision {
	keys, pod := in.Keys, in.Pod
	switch {
	case pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return in.wait(Ended)
	case !keys.OptedIn(pod.Annotations):
		if err := keys.CheckEnabled(pod.Annotations); err != nil {
			return Decision{Action: Tell, Reason: InvalidAnnotation, Message: bounded(err.Error())}
		}
		return in.wait(NotOptedIn)
	case pod.Annotations[keys.Resized] == "true":
		return in.wait(AlreadyMarked)
	}
	contract, err := keys.contract(pod)
	if err != nil {
		return in.skip(InvalidAnnotation, err.Error())
	}
	if pod.Status.StartTime == nil {
		return in.wait(AwaitingStart)
	}
	var changes []lowering
	for _, c := range runningContainers(&pod.Spec) {
		steady, lowered := contract.lowered[c.Name]
		if !lowered {
			continue
		}
		request, limit := milliCPU(c.Resources.Requests[corev1.ResourceCPU]), LimitOrRequest(c)
		if request < steady || limit < steady {
			return in.skip(BelowSteady, fmt.Sprintf("container %q has %s, less than its steady CPU %s: something else lowered it",
				c.Name, min(request, limit), steady))
		}
		if request != steady || limit != steady {
			changes = append(changes, lowering{c, limit, steady})
		}
	}
	if len(changes) == 0 {
		return in.actuation(contract)
	}
	return in.startup(contract, changes)
}

// contract is what a pod's annotations come to: what admission resolved, or for a pod that admission missed, the author's
// annotations as they stand.
type contract struct {
	Spec          // Only its course; see reading.course.
	seen     bool // By admission.
	resolved Resolved
	lowered  map[string]MilliCPU // The CPU after startup of the containers that have more at startup.
}

func (k Keys) contract(pod *corev1.Pod) (contract, error) {
	c := contract{}
	var value string
	var err error
	if value, c.seen = pod.Annotations[k.Resolved]; c.seen {
		r := reading{Keys: k, annotations: pod.Annotations, pod: &pod.Spec}
		r.course(&c.Spec)
		if err := join(r.problems...); err != nil {
			return c, err
		}
		if c.resolved, err = k.parseResolved(value); err != nil {
			return c, err
		}
	} else {
		if c.Spec, err = k.Parse(pod.Annotations, &pod.Spec); err != nil {
			return c, err
		}
		if err = k.asItStands(&c.Spec); err != nil {
			return c, err
		}
		if c.resolved, err = k.Resolve(&pod.Spec, c.Spec); err != nil {
			return c, err
		}
	}
	c.lowered = c.resolved.lowered()
	// Again, for what another webhook or the author has put in since.
	r := reading{Keys: k, annotations: pod.Annotations, pod: &pod.Spec}
	r.checkPod(c.AllowRestart, sorted(c.lowered))
	return c, join(r.problems...)
}

// asItStands makes amounts of what the author of a pod asked for that admission missed. Such a pod starts with what it has,
// whatever it was meant to start with. A share of that would be another amount after each resize, with no end before 1m.
func (k Keys) asItStands(s *Spec) error {
	var errs []error
	for _, name := range sorted(s.Steady) {
		steady, startup := s.Steady[name], s.Startup[name]
		if steady.Share > 0 && startup.Amount == 0 {
			errs = append(errs, Problem{steady.Field, name, quote(steady.Text), "is a part of a startup CPU that admission did not see",
				`recreate the pod, or write an amount such as "50m"`})
		}
		steady.Amount, steady.Share = steady.of(startup.Amount), 0
		s.Steady[name] = steady
	}
	s.Startup = nil
	return join(errs...)
}

// lowering is a container whose CPU is to be lowered.
type lowering struct {
	container *corev1.Container
	from, to  MilliCPU
}

// startup decides about a pod whose CPU has not been lowered yet.
func (in Input) startup(contract contract, changes []lowering) Decision {
	statuses := containerStatuses(in.Pod)
	var started time.Time // Of the container that started last.
	ended := 0
	for _, c := range changes {
		status := statuses[c.container.Name]
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason == "CrashLoopBackOff" {
			return Decision{Action: Wait, Reason: CrashLoopBackOff}
		}
		if endedForGood(in.Pod, c.container, status) {
			ended++
			continue
		}
		running := status.State.Running
		if running == nil || !in.isOver(contract.Spec, c.container, status) {
			return Decision{Action: Wait, Reason: AwaitingTrigger}
		}
		if running.StartedAt.After(started) {
			started = running.StartedAt.Time
		}
	}
	if ended == len(changes) {
		return Decision{Action: Wait, Reason: AwaitingTrigger} // Nothing runs that could use less.
	}
	since := in.TriggeredAt
	switch {
	case contract.Trigger == Delay:
		// A container that the API says started at 12:00:00 started before 12:00:01: counting from there is never early.
		since = started.Add(time.Second)
	case since.Before(started): // Seen for the first time, or seen of a container that has restarted since.
		since = in.Now
	}
	if left := since.Add(contract.Delay).Sub(in.Now); left > 0 {
		d := Decision{Action: Wait, Reason: AwaitingDelay, RequeueAfter: left}
		if contract.Trigger != Delay {
			d.TriggeredAt = since
		}
		return d
	}
	if contract.Trigger == Delay {
		since = in.Now
	}
	target := map[string]MilliCPU{}
	for _, c := range changes {
		target[c.container.Name] = c.to
	}
	if before, after := in.Pod.Status.QOSClass, qosWith(&in.Pod.Spec, target); before != after {
		return in.skip(QoSWouldChange, fmt.Sprintf("The pod was created %s, and the steady CPU would make it %s, which Kubernetes "+
			"does not allow; recreate it, so that admission sets its startup CPU", before, after))
	}
	d := Decision{Action: Resize, Reason: StartupOver, Target: target, TriggeredAt: since,
		Message: bounded("Startup is over: lowering CPU, " + describe(changes))}
	if class, culprits := QoS(&in.Pod.Spec); class != corev1.PodQOSGuaranteed {
		texts := make([]string, len(culprits))
		for i, c := range culprits {
			texts[i] = c.String()
		}
		d.Warning = bounded(fmt.Sprintf("The pod is %s, not Guaranteed: %s", class, strings.Join(texts, "; ")))
	}
	return d
}

// isOver says whether a running container's startup is over, but for the time that the trigger Delay waits.
func (in Input) isOver(spec Spec, c *corev1.Container, status corev1.ContainerStatus) bool {
	switch {
	case spec.Trigger == Delay:
		return true
	case spec.Trigger == PodCondition:
		return conditionOf(in.Pod, spec.Condition) != nil
	case spec.Trigger == Ready, c.StartupProbe == nil:
		return status.Ready
	default:
		return status.Started != nil && *status.Started
	}
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

// actuation decides about a pod whose spec holds the steady CPU: done means that the kubelet says so, never that the API
// server accepted it. The conditions are those of KEP-1287; see also kubelet's status manager.
func (in Input) actuation(contract contract) Decision {
	pod := in.Pod
	pending, inProgress := conditionOf(pod, corev1.PodResizePending), conditionOf(pod, corev1.PodResizeInProgress)
	// A pending resize of an older generation says nothing about this one (KEP-5067); Kubernetes 1.33 gives no generation.
	if pending != nil && (pending.ObservedGeneration == 0 || pending.ObservedGeneration >= pod.Generation) {
		if pending.Reason == corev1.PodReasonInfeasible {
			return in.record(Decision{Reason: NodeCannotResize, Message: pending.Message,
				Status: Status{Phase: Infeasible, Reason: NodeCannotResize}})
		}
		return in.wait(Deferred)
	}
	// Kubernetes 1.33 does not report observedGeneration by default; the allocation below has to do there.
	if pending != nil || inProgress != nil || pod.Status.ObservedGeneration != 0 && pod.Status.ObservedGeneration < pod.Generation {
		return in.wait(AwaitingKubelet)
	}
	statuses := containerStatuses(pod)
	var changes []lowering
	var started time.Time // Of the container that started first.
	for _, c := range runningContainers(&pod.Spec) {
		cpu, known := contract.resolved[c.Name]
		status := statuses[c.Name]
		if !known {
			continue
		}
		// Not status.resources: those come from the runtime and may never equal the spec after rounding.
		allocated, ok := status.AllocatedResources[corev1.ResourceCPU]
		actuated := ok && milliCPU(allocated) == milliCPU(c.Resources.Requests[corev1.ResourceCPU])
		if !actuated && !endedForGood(pod, c, status) {
			return in.wait(AwaitingKubelet)
		}
		if cpu.Steady == cpu.Startup {
			continue
		}
		changes = append(changes, lowering{c, cpu.Startup, cpu.Steady})
		if running := status.State.Running; running != nil && (started.IsZero() || running.StartedAt.Time.Before(started)) {
			started = running.StartedAt.Time
		}
	}
	done := Decision{Reason: CPULowered, Status: Status{ReleasedMilliCPU: contract.resolved.Released()}}
	changed := pod.Generation > 1 || !in.TriggeredAt.IsZero() // Since it was created.
	switch {
	case len(changes) > 0 && contract.Boost == Opportunistic && !changed:
		done.Reason, done.Status.ReleasedMilliCPU = NothingToLower, 0
		done.Message = fmt.Sprintf("Created with the steady CPU; %s", pod.Status.QOSClass)
	case len(changes) > 0:
		done.Message = fmt.Sprintf("CPU lowered, %s; %s", describe(changes), pod.Status.QOSClass)
	case !contract.seen && changed:
		// Admission missed it, so nothing says any more what it started with; but the spec has changed since.
		done.Message = fmt.Sprintf("CPU lowered; %s", pod.Status.QOSClass)
	default:
		done.Reason = NothingToLower
		done.Message = fmt.Sprintf("Startup and steady CPU are the same; %s", pod.Status.QOSClass)
	}
	done.Status.Phase, done.Status.Reason = Steady, done.Reason
	// A container that has started since the trigger has restarted: how long its first start took is lost.
	if !started.IsZero() && !in.TriggeredAt.Before(started) {
		seconds := in.TriggeredAt.Sub(started).Seconds()
		done.Status.StartupSeconds = math.Round(seconds*10) / 10 // Finer than a tenth would pretend.
		done.Message += fmt.Sprintf("; startup took %.1f s", seconds)
	}
	return in.record(done)
}

// conditionOf is a condition of the pod that is True, else nil.
func conditionOf(pod *corev1.Pod, name corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == name && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// Refuse is the decision after the API server refused a resize for good reason (403 or 422): tell people, once.
func (in Input) Refuse(message string) Decision {
	return in.record(Decision{Reason: APIRefused, Message: message, Status: Status{Phase: Refused, Reason: APIRefused}})
}

func (in Input) skip(reason Reason, message string) Decision {
	return in.record(Decision{Reason: reason, Message: message, Status: Status{Phase: Skipped, Reason: reason}})
}

// record asks for d to be written, unless the pod says so already. What is on the pod is the latch, so that neither a
// later event nor a later leader repeats it. A refusal is compared by its reason alone: its text may count (used quota)
// and would be rewritten with every retry.
//
// Whatever is recorded, the guards go: startup is over (a refusal is retried, but meanwhile the pod runs), or nobody will see
// its end. A pod that keeps its startup CPU must not keep its node as well.
func (in Input) record(d Decision) Decision {
	d.Action, d.TriggeredAt = Record, in.TriggeredAt
	d.Message = bounded(d.Message)
	for _, c := range in.Pod.Status.Conditions {
		// Steady is latched by the marker, which Decide has looked at; without it the condition is not ours.
		if d.Status.Phase != Steady && c.Type == in.Keys.Steady && c.Status == d.Status.condition() &&
			c.Reason == string(d.Reason) && (d.Reason == APIRefused || c.Message == d.Message) {
			return in.wait(d.Reason)
		}
	}
	d.Unguard = in.Keys.Guard(in.Pod.Annotations, false)
	return d
}

// condition is the status of the condition Steady in this phase.
func (s Status) condition() corev1.ConditionStatus {
	if s.Phase == Steady {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// Condition is the pod condition that tells people about the decision; see Keys.Steady.
func (d Decision) Condition(keys Keys) corev1.PodCondition {
	return corev1.PodCondition{Type: keys.Steady, Status: d.Status.condition(), Reason: string(d.Reason), Message: d.Message}
}

// bounded cuts a message to what an event may hold.
func bounded(message string) string {
	const more = "…"
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-len(more)], "") + more
}

func (in Input) wait(reason Reason) Decision {
	return Decision{Action: Wait, Reason: reason, TriggeredAt: in.TriggeredAt}
}

// runningContainers are those that run on after startup: sidecars and app containers, in this order.
func runningContainers(spec *corev1.PodSpec) []*corev1.Container {
	running := make([]*corev1.Container, 0, len(spec.InitContainers)+len(spec.Containers))
	for i, c := range Containers(spec) {
		if i >= len(spec.InitContainers) || IsSidecar(c) {
			running = append(running, c)
		}
	}
	return running
}

func containerStatuses(pod *corev1.Pod) map[string]corev1.ContainerStatus {
	byName := make(map[string]corev1.ContainerStatus, len(pod.Status.ContainerStatuses))
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		byName[s.Name] = s
	}
	return byName
}

// qosWith is the QoS class after a resize.
func qosWith(spec *corev1.PodSpec, target map[string]MilliCPU) corev1.PodQOSClass {
	after := corev1.PodSpec{InitContainers: slices.Clone(spec.InitContainers), Containers: slices.Clone(spec.Containers)}
	for _, containers := range [][]corev1.Container{after.InitContainers, after.Containers} {
		for i := range containers {
			cpu, changed := target[containers[i].Name]
			if !changed {
				continue
			}
			r := containers[i].Resources.DeepCopy()
			for _, list := range []*corev1.ResourceList{&r.Requests, &r.Limits} {
				if *list == nil {
					*list = corev1.ResourceList{}
				}
				(*list)[corev1.ResourceCPU] = *cpu.Quantity()
			}
			containers[i].Resources = *r
		}
	}
	class, _ := QoS(&after)
	return class
}

// describe reads "app 200m to 50m, proxy 100m to 20m".
func describe(changes []lowering) string {
	parts := make([]string, len(changes))
	for i, c := range changes {
		parts[i] = fmt.Sprintf("%s %s to %s", c.container.Name, c.from, c.to)
	}
	return strings.Join(parts, ", ")
}
