package plan

import (
	"maps"
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
	// pods/status. With Decision.Clear it takes all of them away.
	Record Action = "Record"
)

// Decision is what to do with a pod, and why.
type Decision struct {
	Action  Action
	Phase   Phase // Where the pod stands; empty for one that is none of ours.
	Reason  Reason
	Message string // For people; may be empty when there is nothing to tell.
	// Warning is a further thing that people should know, with the reason NotGuaranteed; most often empty.
	Warning string
	// Target is the CPU to set by container name; only the containers that change.
	Target map[string]MilliCPU
	// Status is what to record.
	Status Status
	// Clear is set where there is nothing to say any more.
	Clear bool
	// Unguard are the annotations to change with it; nil removes one. See Keys.Guard.
	Unguard map[string]*string
	// RequeueAfter asks for another look without an event; zero means that an event will come.
	RequeueAfter time.Duration
	// TriggeredAt is the Input.TriggeredAt of the next decision; zero while startup goes on.
	TriggeredAt time.Time
	// Reserved and Released are what the pod asks for beyond its steady CPU, and what it has given back of its startup CPU.
	Reserved, Released MilliCPU
}

// Decide says what to do next with a pod. It is a pure function of its input.
func Decide(in Input) Decision {
	pod := in.Pod
	switch {
	case pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return in.wait("", Ended)
	case !in.Keys.OptedIn(pod.Annotations):
		return in.notOptedIn()
	}
	contract, err := in.Keys.contract(pod)
	if err != nil {
		return in.skip(InvalidAnnotation, err.Error())
	}
	v := in.view(contract)
	d := v.decide()
	for _, s := range v.subjects {
		d.Reserved += max(s.limit-s.cpu.Steady, 0)
		d.Released += max(s.cpu.Startup-s.limit, 0)
	}
	return d
}

func (v view) decide() Decision {
	if v.Pod.Status.StartTime == nil {
		return v.unscheduled()
	}
	changes := v.changes()
	for _, rule := range []func() (Decision, bool){
		v.infeasible,
		v.restarted,
		v.setByOthers,
		func() (Decision, bool) { return v.noRoom(changes) },
		v.opportunity,
	} {
		if d, applies := rule(); applies {
			return d
		}
	}
	if len(changes) == 0 {
		return v.actuation()
	}
	return v.startup(changes)
}

// notOptedIn decides about a pod that has not opted in, or not any more: then what stands on it goes, and its CPU stays.
func (in Input) notOptedIn() Decision {
	pod := in.Pod
	if in.carries() {
		return Decision{Action: Record, Reason: OptedOut, Clear: true, Message: "Opted out: the CPU stays as it is", Unguard: in.Keys.Guard(pod.Annotations, false)}
	}
	if err := in.Keys.CheckEnabled(pod.Annotations); err != nil {
		return Decision{Action: Tell, Reason: InvalidAnnotation, Message: bounded(err.Error())}
	}
	return in.wait("", NotOptedIn)
}

// carries says whether something of ours stands on the pod that has to go when it opts out.
func (in Input) carries() bool {
	_, guarded := in.Pod.Annotations[in.Keys.Guarded]
	return guarded || in.recorded() != nil
}

// recorded is the condition that tells people about an earlier decision; nil if there was none.
func (in Input) recorded() *corev1.PodCondition {
	for i := range in.Pod.Status.Conditions {
		if c := &in.Pod.Status.Conditions[i]; c.Type == in.Keys.Steady {
			return c
		}
	}
	return nil
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

func (in Input) wait(phase Phase, reason Reason) Decision {
	return Decision{Action: Wait, Phase: phase, Reason: reason, TriggeredAt: in.TriggeredAt}
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
	d.Action, d.Phase, d.TriggeredAt = Record, d.Status.Phase, in.TriggeredAt
	d.Message = bounded(d.Message)
	before := Status{}
	c := in.recorded()
	if c != nil {
		before = in.Keys.StatusOf(in.Pod)
	}
	if d.Status.Containers == nil {
		d.Status.Containers = before.Containers // Still what it was left with.
	}
	if c != nil && c.Status == d.Status.condition() && c.Reason == string(d.Reason) && maps.Equal(before.Containers, d.Status.Containers) &&
		(d.Status.Phase == Steady && in.marked() || d.Reason == APIRefused || d.Status.Phase != Steady && c.Message == d.Message) {
		return in.wait(d.Status.Phase, d.Reason)
	}
	d.Unguard = in.Keys.Guard(in.Pod.Annotations, false)
	return d
}

// marked says whether the pod carries the marker, and from us: admission takes it off new pods, but it may have missed one that
// was made from a running pod's manifest. Nobody can create a pod with a condition.
func (in Input) marked() bool {
	return in.Pod.Annotations[in.Keys.Resized] == "true" && conditionOf(in.Pod, in.Keys.Steady) != nil
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
