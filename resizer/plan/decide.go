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
	// Record writes Decision.Status, the condition and, for the phase Steady, the marker, through pods/status.
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
	// RequeueAfter asks for another look without an event; zero means that an event will come.
	RequeueAfter time.Duration
	// Triggered reports that startup is over but for a delay; the caller remembers when it first saw it.
	Triggered bool
}

// Decide says what to do next with a pod. It is a pure function of its input.
func Decide(in Input) Decision {
	keys, pod := in.Keys, in.Pod
	switch {
	case pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return wait(Ended)
	case !keys.OptedIn(pod.Annotations):
		return wait(NotOptedIn)
	case pod.Annotations[keys.Resized] == "true":
		return wait(AlreadyMarked)
	}
	trigger, delay, resolved, err := keys.contract(pod)
	if err != nil {
		return in.skip(InvalidAnnotation, err.Error())
	}
	if pod.Status.StartTime == nil {
		return wait(AwaitingStart)
	}
	target := map[string]MilliCPU{}
	for _, c := range runningContainers(&pod.Spec) {
		cpu, known := resolved[c.Name]
		current := startupCPU(c)
		switch {
		case !known:
		case current < cpu.Steady:
			return in.skip(BelowSteady, fmt.Sprintf("container %q has %s, less than its steady CPU %s: something else lowered it",
				c.Name, current, cpu.Steady))
		case cpu.Steady < cpu.Startup && (current != cpu.Steady || milliCPU(c.Resources.Requests[corev1.ResourceCPU]) != cpu.Steady):
			target[c.Name] = cpu.Steady
		}
	}
	if len(target) == 0 {
		return in.actuation(resolved)
	}
	return in.startup(trigger, delay, resolved, target)
}

// contract is what the pod's annotations come to: what admission resolved, or for a pod that admission missed, the
// author's annotations as they stand.
func (k Keys) contract(pod *corev1.Pod) (Trigger, time.Duration, Resolved, error) {
	value, present := pod.Annotations[k.Resolved]
	if !present {
		spec, err := k.Parse(pod.Annotations, &pod.Spec)
		if err != nil {
			return "", 0, nil, err
		}
		resolved, err := k.Resolve(&pod.Spec, spec.Steady)
		return spec.Trigger, spec.Delay, resolved, err
	}
	trigger, delay, err := k.parseTrigger(pod.Annotations)
	if err != nil {
		return "", 0, nil, err
	}
	resolved, err := k.parseResolved(value)
	return trigger, delay, resolved, err
}

// startup decides about a pod whose CPU has not been lowered yet.
func (in Input) startup(trigger Trigger, delay time.Duration, resolved Resolved, target map[string]MilliCPU) Decision {
	statuses := containerStatuses(in.Pod)
	var delayed time.Duration // What is left of the trigger Delay.
	for _, c := range runningContainers(&in.Pod.Spec) {
		if _, lowered := target[c.Name]; !lowered {
			continue
		}
		status := statuses[c.Name]
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason == "CrashLoopBackOff" {
			return wait(CrashLoopBackOff)
		}
		running := status.State.Running
		if running == nil {
			return wait(AwaitingTrigger)
		}
		switch {
		case trigger == Delay:
			// A container that the API says started at 12:00:00 started before 12:00:01: counting from there is never early.
			started := running.StartedAt.Add(time.Second)
			delayed = max(delayed, started.Add(delay).Sub(in.Now))
		case trigger == Ready && !status.Ready,
			trigger == StartupProbePassed && c.StartupProbe == nil && !status.Ready,
			trigger == StartupProbePassed && c.StartupProbe != nil && (status.Started == nil || !*status.Started):
			return wait(AwaitingTrigger)
		}
	}
	if delayed > 0 {
		return Decision{Action: Wait, Reason: AwaitingDelay, RequeueAfter: delayed}
	}
	if trigger != Delay {
		since := in.TriggeredAt
		if since.IsZero() {
			since = in.Now
		}
		if left := since.Add(delay).Sub(in.Now); left > 0 {
			return Decision{Action: Wait, Reason: AwaitingDelay, RequeueAfter: left, Triggered: true}
		}
	}
	if before, after := in.Pod.Status.QOSClass, qosWith(&in.Pod.Spec, target); before != after {
		return in.skip(QoSWouldChange, fmt.Sprintf("the pod was created %s and the steady CPU would make it %s, which Kubernetes "+
			"does not allow; recreate it, so that admission sets its startup CPU", before, after))
	}
	d := Decision{Action: Resize, Reason: StartupOver, Target: target, Triggered: true,
		Message: "Startup is over: lowering CPU, " + describe(resolved, slices.Collect(maps.Keys(target)))}
	if class, culprits := QoS(&in.Pod.Spec); class != corev1.PodQOSGuaranteed {
		d.Warning = fmt.Sprintf("The pod is %s, not Guaranteed: %s", class, culprits)
	}
	return d
}

// actuation decides about a pod whose spec holds the steady CPU: done means that the kubelet says so, never that the API
// server accepted it. The conditions are those of KEP-1287; see also kubelet's status manager.
func (in Input) actuation(resolved Resolved) Decision {
	pod := in.Pod
	for _, c := range pod.Status.Conditions {
		// A condition about an older generation says nothing about this resize (KEP-5067).
		if c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue && c.ObservedGeneration >= pod.Generation {
			if c.Reason == corev1.PodReasonInfeasible {
				return in.record(Decision{Reason: NodeCannotResize, Message: c.Message,
					Status: Status{Phase: Infeasible, Reason: NodeCannotResize}})
			}
			return wait(Deferred)
		}
		if (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) && c.Status == corev1.ConditionTrue {
			return wait(AwaitingKubelet)
		}
	}
	// Kubernetes 1.33 does not report observedGeneration by default; the allocation below has to do there.
	if pod.Status.ObservedGeneration != 0 && pod.Status.ObservedGeneration < pod.Generation {
		return wait(AwaitingKubelet)
	}
	statuses := containerStatuses(pod)
	var lowered []string
	var started time.Time
	for _, c := range runningContainers(&pod.Spec) {
		cpu, known := resolved[c.Name]
		if !known {
			continue
		}
		status := statuses[c.Name]
		// Not status.resources: those come from the runtime and may never equal the spec after rounding.
		if allocated, ok := status.AllocatedResources[corev1.ResourceCPU]; !ok || milliCPU(allocated) != startupCPU(c) {
			return wait(AwaitingKubelet)
		}
		if cpu.Steady == cpu.Startup {
			continue
		}
		lowered = append(lowered, c.Name)
		if running := status.State.Running; running != nil && (started.IsZero() || running.StartedAt.Time.Before(started)) {
			started = running.StartedAt.Time
		}
	}
	done := Decision{Reason: NothingToLower, Message: fmt.Sprintf("Startup and steady CPU are the same; %s", pod.Status.QOSClass)}
	if len(lowered) > 0 {
		done.Reason = CPULowered
		done.Message = fmt.Sprintf("CPU lowered, %s; %s", describe(resolved, lowered), pod.Status.QOSClass)
	}
	done.Status = Status{Phase: Steady, Reason: done.Reason, ReleasedMilliCPU: resolved.Released()}
	if !in.TriggeredAt.IsZero() && !started.IsZero() {
		seconds := in.TriggeredAt.Sub(started).Seconds()
		done.Status.StartupSeconds = math.Round(seconds*10) / 10 // Finer than a tenth would pretend.
		done.Message += fmt.Sprintf("; startup took %.1f s", seconds)
	}
	return in.record(done)
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
func (in Input) record(d Decision) Decision {
	d.Action = Record
	for _, c := range in.Pod.Status.Conditions {
		// Steady is latched by the marker, which Decide has looked at; without it the condition is not ours.
		if d.Status.Phase != Steady && c.Type == in.Keys.Steady && c.Status == d.Status.condition() &&
			c.Reason == string(d.Reason) && (d.Reason == APIRefused || c.Message == d.Message) {
			return wait(d.Reason)
		}
	}
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

func wait(reason Reason) Decision { return Decision{Action: Wait, Reason: reason} }

// runningContainers are those that run on after startup: sidecars and app containers, in this order.
func runningContainers(spec *corev1.PodSpec) []*corev1.Container {
	var running []*corev1.Container
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; IsSidecar(c) {
			running = append(running, c)
		}
	}
	for i := range spec.Containers {
		running = append(running, &spec.Containers[i])
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
func describe(resolved Resolved, names []string) string {
	slices.Sort(names)
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%s %s to %s", name, resolved[name].Startup, resolved[name].Steady)
	}
	return strings.Join(parts, ", ")
}
