package plan

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// noon is when every case takes place; the containers of testPod have then run for half a minute.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type change func(*corev1.Pod)

// testPod is an opted-in Guaranteed pod with one container, "app", that was created with 200m of CPU, is to have 50m, and
// is running but not started yet.
func testPod(changes ...change) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-0", UID: "1", Generation: 1,
			Annotations: annotations("enabled", "true", "resolved", Resolved{"app": {200, 50}}.String()),
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, QOSClass: corev1.PodQOSGuaranteed, ObservedGeneration: 1,
			StartTime: &metav1.Time{Time: noon.Add(-40 * time.Second)},
		},
	}
	with("app", "200m")(p)
	for _, change := range changes {
		change(p)
	}
	return p
}

// find returns a container and its status; both may be changed.
func find(p *corev1.Pod, name string) (*corev1.Container, *corev1.ContainerStatus) {
	for _, lists := range []struct {
		containers []corev1.Container
		statuses   []corev1.ContainerStatus
	}{{p.Spec.InitContainers, p.Status.InitContainerStatuses}, {p.Spec.Containers, p.Status.ContainerStatuses}} {
		for i := range lists.containers {
			if lists.containers[i].Name == name {
				return &lists.containers[i], &lists.statuses[i]
			}
		}
	}
	panic("the pod has no container " + name)
}

func newContainer(name, cpu string) (corev1.Container, corev1.ContainerStatus) {
	c := sized(name, cpu+" 64Mi", cpu+" 64Mi")
	c.StartupProbe = &corev1.Probe{}
	no := false
	return c, corev1.ContainerStatus{
		Name: name, Started: &no, AllocatedResources: c.Resources.Requests.DeepCopy(),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: noon.Add(-30 * time.Second)}}},
	}
}

func with(name, cpu string) change {
	return func(p *corev1.Pod) {
		c, s := newContainer(name, cpu)
		p.Spec.Containers = append(p.Spec.Containers, c)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, s)
	}
}

func withInit(name, cpu string) change {
	return func(p *corev1.Pod) {
		c, s := newContainer(name, cpu)
		c.StartupProbe = nil
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, s)
	}
}

func withSidecar(name, cpu string) change {
	return func(p *corev1.Pod) {
		withInit(name, cpu)(p)
		always := corev1.ContainerRestartPolicyAlways
		c, _ := find(p, name)
		c.RestartPolicy, c.StartupProbe = &always, &corev1.Probe{}
	}
}

func container(name string, f func(*corev1.Container)) change {
	return func(p *corev1.Pod) { c, _ := find(p, name); f(c) }
}

func status(name string, f func(*corev1.ContainerStatus)) change {
	return func(p *corev1.Pod) { _, s := find(p, name); f(s) }
}

func started(name string) change {
	yes := true
	return status(name, func(s *corev1.ContainerStatus) { s.Started = &yes })
}

func ready(name string) change {
	return status(name, func(s *corev1.ContainerStatus) { s.Ready = true })
}

func runningFor(name string, d time.Duration) change {
	return status(name, func(s *corev1.ContainerStatus) { s.State.Running.StartedAt = metav1.Time{Time: noon.Add(-d)} })
}

func waiting(name, reason string) change {
	return status(name, func(s *corev1.ContainerStatus) {
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	})
}

func terminated(name string) change {
	return status(name, func(s *corev1.ContainerStatus) {
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	})
}

func restartNever(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }

func ownPolicy(name string, policy corev1.ContainerRestartPolicy) change {
	return container(name, func(c *corev1.Container) { c.RestartPolicy = &policy })
}

func noStartupProbe(name string) change {
	return container(name, func(c *corev1.Container) { c.StartupProbe = nil })
}

// cpu sets request and limit in the spec, as a resize does.
func cpu(name, amount string) change {
	return container(name, func(c *corev1.Container) {
		c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse(amount)
		c.Resources.Limits[corev1.ResourceCPU] = resource.MustParse(amount)
	})
}

func request(name string, what corev1.ResourceName, amount string) change {
	return container(name, func(c *corev1.Container) { c.Resources.Requests[what] = resource.MustParse(amount) })
}

func allocated(name, amount string) change {
	return status(name, func(s *corev1.ContainerStatus) { s.AllocatedResources[corev1.ResourceCPU] = resource.MustParse(amount) })
}

func annotate(pairs ...string) change {
	return func(p *corev1.Pod) {
		for key, value := range annotations(pairs...) {
			p.Annotations[key] = value
		}
	}
}

// missed is a pod that admission did not see: it has only what its author wrote.
func missed(steady string) change {
	return func(p *corev1.Pod) {
		delete(p.Annotations, DefaultDomain+"/resolved")
		annotate("steady-resources", steady)(p)
	}
}

// short is a pod that admission missed, with the short annotations.
func short(steady, startup string) change {
	return func(p *corev1.Pod) {
		delete(p.Annotations, DefaultDomain+"/steady-resources")
		annotate("steady-cpu", steady)(p)
		if startup != "" {
			annotate("startup-cpu", startup)(p)
		}
	}
}

// opportunistic is a pod that was created with its steady CPU.
func opportunistic(p *corev1.Pod) {
	annotate("boost", "Opportunistic")(p)
	cpu("app", "50m")(p)
	allocated("app", "50m")(p)
}

func generation(n int64) change { return func(p *corev1.Pod) { p.Generation = n } }

func restarting(p *corev1.Pod) {
	container("app", func(c *corev1.Container) {
		c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	})(p)
}

func warmedUp(status corev1.ConditionStatus) change {
	return condition(corev1.PodCondition{Type: "WarmedUp", Status: status})
}

const app50m = `{"app":{"limits":{"cpu":"50m"}}}`

func resolve(r Resolved) change { return annotate("resolved", r.String()) }

func burstable(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSBurstable }

// observed sets the generation that the kubelet has seen; that of Kubernetes 1.33 reports none, so zero there.
func observed(generation int64) change {
	return func(p *corev1.Pod) { p.Status.ObservedGeneration = generation }
}

func condition(c corev1.PodCondition) change {
	return func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, c) }
}

func pending(reason, message string, observed int64) change {
	return condition(corev1.PodCondition{
		Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: observed,
	})
}

func inProgress(reason string, observed int64) change {
	return condition(corev1.PodCondition{
		Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Reason: reason, ObservedGeneration: observed,
	})
}

// recorded is the condition that an earlier decision left on the pod.
func recorded(reason Reason, message string) change {
	return condition(corev1.PodCondition{
		Type: DefaultDomain + "/Steady", Status: corev1.ConditionFalse, Reason: string(reason), Message: message,
	})
}

// left is what the last record says that containers were left with.
func left(phase Phase, reason Reason, containers map[string]Left) change {
	return func(p *corev1.Pod) {
		c := corev1.PodCondition{Type: DefaultDomain + "/Steady", Status: corev1.ConditionFalse, Reason: string(reason),
			LastTransitionTime: metav1.Time{Time: noon.Add(-10 * time.Second)}}
		if phase == Steady {
			c.Status = corev1.ConditionTrue
			annotate("resized", "true")(p)
		}
		condition(c)(p)
		annotate("status", Status{Phase: phase, Reason: reason, Containers: containers}.String())(p)
	}
}

// settled is a pod that was lowered and recorded, and all is well.
func settled(p *corev1.Pod) {
	actuated(p)
	left(Steady, CPULowered, map[string]Left{"app": {50, 0}})(p)
}

// restartedOnce is one whose container has restarted since and starts again; the startup probe has not passed.
func restartedOnce(p *corev1.Pod) {
	settled(p)
	status("app", func(s *corev1.ContainerStatus) { s.RestartCount, s.Started = 1, new(bool) })(p)
	runningFor("app", 2*time.Second)(p)
}

// boosted is one that got its startup CPU back, which is recorded.
func boosted(p *corev1.Pod) {
	restartedOnce(p)
	cpu("app", "200m")(p)
	allocated("app", "200m")(p)
	p.Generation = 3
	observed(3)(p)
	p.Status.Conditions = nil
	delete(p.Annotations, DefaultDomain+"/resized")
	left(Boosting, Restarted, map[string]Left{"app": {200, 1}})(p)
}

func unschedulable(message string, since time.Duration) change {
	return func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSGuaranteed}
		condition(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: message, LastTransitionTime: metav1.Time{Time: noon.Add(-since)}})(p)
	}
}

// resized is a pod whose resize the API server has accepted; the kubelet has yet to see it.
func resized(p *corev1.Pod) { started("app")(p); cpu("app", "50m")(p); p.Generation = 2 }

// actuated is a pod whose resize the kubelet has carried out.
func actuated(p *corev1.Pod) { resized(p); allocated("app", "50m")(p); observed(2)(p) }

func lower(message string, target map[string]MilliCPU) Decision {
	return Decision{Action: Resize, Reason: StartupOver, Target: target, Message: message}
}

func wait(reason Reason) Decision { return Decision{Action: Wait, Reason: reason} }

func move(reason Reason, message, container string, to MilliCPU) Decision {
	return Decision{Action: Resize, Reason: reason, Message: message, Target: map[string]MilliCPU{container: to}}
}

func late(deadline string) Decision {
	return move(DeadlinePassed, "Startup is not over after "+deadline+", the deadline: lowering CPU, app 200m to 50m", "app", 50)
}

func noRoom(message string) Decision {
	d := done(message)
	d.Reason, d.Status.Reason = NoRoom, NoRoom
	return d
}

func lowerApp() Decision {
	return lower("Startup is over: lowering CPU, app 200m to 50m", map[string]MilliCPU{"app": 50})
}

func delayed(left time.Duration) Decision {
	return Decision{Action: Wait, Reason: AwaitingDelay, RequeueAfter: left}
}

func record(phase Phase, reason Reason, message string) Decision {
	return Decision{Action: Record, Reason: reason, Message: message, Status: Status{Phase: phase, Reason: reason}}
}

func done(message string) Decision {
	d := record(Steady, CPULowered, message)
	d.Status.ReleasedMilliCPU = 150
	return d
}

func startupTook(seconds float64, d Decision) Decision {
	d.Status.StartupSeconds = seconds
	d.Message += fmt.Sprintf("; startup took %.1f s", seconds)
	return d
}

type decideCase struct {
	name        string
	pod         *corev1.Pod
	at          time.Duration // After noon.
	triggeredAt time.Time
	want        Decision
}

// decideCases is written by hand from the rules; nothing in it is computed by what it tests.
func decideCases() []decideCase {
	const (
		second       = time.Second
		doneMessage  = "CPU lowered, app 200m to 50m; Guaranteed"
		infeasible   = `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`
		becomesOther = ", and the steady CPU would make it %s, which Kubernetes does not allow; recreate it, so that admission sets its startup CPU"
		notResolved  = `resize.example.com/resolved: "x": is not the JSON that admission writes (invalid character 'x' looking for beginning of value); remove it and recreate the pod: admission writes it`
		below        = `container "app" has 30m, less than its steady CPU 50m: something else lowered it`
	)
	var never time.Time
	notGuaranteed := lowerApp()
	notGuaranteed.Warning = `The pod is Burstable, not Guaranteed: container "app": resources.requests.memory is 32Mi, its limit 64Mi`
	atSteadyRequest := lowerApp()
	atSteadyRequest.Warning = `The pod is Burstable, not Guaranteed: container "app": resources.requests.cpu is 50m, its limit 200m; container "app": resources.requests.memory is 32Mi, its limit 64Mi`
	injected := lowerApp()
	injected.Warning = `The pod is Burstable, not Guaranteed: container "mesh": resources.limits.cpu is not set; container "mesh": resources.limits.memory is not set`
	missedDone := record(Steady, CPULowered, "CPU lowered; Guaranteed")

	twoActuated := func(p *corev1.Pod) {
		actuated(p)
		with("web", "100m")(p)
		with("log", "10m")(p)
		resolve(Resolved{"app": {200, 50}, "web": {400, 100}, "log": {10, 10}})(p)
	}
	twoDone := done("CPU lowered, app 200m to 50m, web 400m to 100m; Guaranteed")
	twoDone.Status.ReleasedMilliCPU = 450

	return []decideCase{
		// Nothing to do with it.
		{"a pod that has not opted in", testPod(started("app"), func(p *corev1.Pod) { delete(p.Annotations, DefaultDomain+"/enabled") }), 0, never, wait(NotOptedIn)},
		{"yes does not opt in", testPod(started("app"), annotate("enabled", "yes")), 0, never, Decision{Action: Tell, Reason: InvalidAnnotation, Message: `resize.example.com/enabled: "yes": is not a boolean, so the pod is not opted in; write "true" or remove the annotation`}},
		{"opted out before the end of its startup", testPod(started("app"), annotate("enabled", "false")), 0, never, wait(NotOptedIn)},
		{"opted out after it was lowered", testPod(settled, annotate("enabled", "false")), 0, never, Decision{Action: Record, Reason: OptedOut, Clear: true, Message: "Opted out: the CPU stays as it is"}},
		{"a pod that is being deleted keeps its CPU", testPod(started("app"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }), 0, never, wait(Ended)},
		{"a pod that succeeded", testPod(started("app"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), 0, never, wait(Ended)},
		{"a pod that failed", testPod(started("app"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), 0, never, wait(Ended)},
		{"a failed pod with bad annotations is not reported", testPod(annotate("resolved", "x"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), 0, never, wait(Ended)},
		{"a recorded pod", testPod(settled), 0, never, wait(AlreadyMarked)},
		{"a marker that came with another pod's manifest says nothing", testPod(actuated, annotate("resized", "true")), 0, never, done(doneMessage)},
		{
			"a recorded pod whose CPU somebody raised again is left alone", testPod(settled, cpu("app", "100m")), 0, never,
			record(Skipped, SetByOthers, `container "app" has 100m, and was left with 50m: something else set it`),
		},
		{"any other marker is not ours", testPod(started("app"), annotate("resized", "yes")), 0, never, lowerApp()},
		{"no kubelet has taken the pod, whatever its statuses say", testPod(started("app"), func(p *corev1.Pod) { p.Status.StartTime = nil }), 0, never, wait(AwaitingStart)},

		// The trigger StartupProbePassed.
		{"the startup probe has not passed", testPod(), 0, never, wait(AwaitingTrigger)},
		{"started is unknown", testPod(status("app", func(s *corev1.ContainerStatus) { s.Started = nil })), 0, never, wait(AwaitingTrigger)},
		{"ready without started does not count where there is a startup probe", testPod(ready("app")), 0, never, wait(AwaitingTrigger)},
		{"the startup probe has passed, though the container is not ready", testPod(started("app")), 0, never, lowerApp()},
		{"without a startup probe started means nothing", testPod(noStartupProbe("app"), started("app")), 0, never, wait(AwaitingTrigger)},
		{"without a startup probe ready counts", testPod(noStartupProbe("app"), started("app"), ready("app")), 0, never, lowerApp()},
		{"the kubelet has reported no container yet", testPod(func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }), 0, never, wait(AwaitingTrigger)},
		{"an init container is still running", testPod(withInit("migrate", "200m"), waiting("app", "PodInitializing")), 0, never, wait(AwaitingTrigger)},
		{"an init container is still running under the trigger Delay", testPod(withInit("migrate", "200m"), waiting("app", "PodInitializing"), annotate("trigger", "Delay", "delay-seconds", "1")), 0, never, wait(AwaitingTrigger)},

		// Containers that end.
		{"a sidecar that crashed runs again, whatever the pod's restart policy", testPod(started("app"), withSidecar("proxy", "100m"), resolve(Resolved{"app": {200, 50}, "proxy": {100, 20}}), terminated("proxy"), restartNever), 0, never, wait(AwaitingTrigger)},
		{"a container with a restart policy of its own runs again", testPod(started("app"), with("web", "400m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), terminated("web"), ownPolicy("web", corev1.ContainerRestartPolicyAlways), restartNever), 0, never, wait(AwaitingTrigger)},
		{"a container that crashed runs again by default", testPod(started("app"), with("web", "400m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), terminated("web")), 0, never, wait(AwaitingTrigger)},
		{"a container that never runs again is not waited for", testPod(started("app"), with("web", "400m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), terminated("web"), ownPolicy("web", corev1.ContainerRestartPolicyNever)), 0, never, lower("Startup is over: lowering CPU, app 200m to 50m, web 400m to 100m", map[string]MilliCPU{"app": 50, "web": 100})},
		{"with rules of its own nobody knows", testPod(started("app"), with("web", "400m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), terminated("web"), restartNever, container("web", func(c *corev1.Container) { c.RestartPolicyRules = make([]corev1.ContainerRestartRule, 1) })), 0, never, wait(AwaitingTrigger)},
		{"where all have ended there is nothing to lower", testPod(terminated("app"), restartNever), 0, never, wait(AwaitingTrigger)},
		{"an ended container is told of like the others", testPod(twoActuated, terminated("web"), restartNever, status("web", func(s *corev1.ContainerStatus) { s.AllocatedResources = nil })), 0, never, twoDone},

		// The trigger Ready.
		{"started is not ready", testPod(annotate("trigger", "Ready"), started("app")), 0, never, wait(AwaitingTrigger)},
		{"ready", testPod(annotate("trigger", "Ready"), started("app"), ready("app")), 0, never, lowerApp()},

		// The trigger Delay: the API says that the container started at 11:59:30, so it was before 11:59:31.
		{"a nanosecond before the delay is over", testPod(annotate("trigger", "Delay", "delay-seconds", "40")), 11*second - 1, never, delayed(1)},
		{"the delay is over, whatever the probes say", testPod(annotate("trigger", "Delay", "delay-seconds", "40")), 11 * second, never, lowerApp()},
		{"the delay was over long ago", testPod(annotate("trigger", "Delay", "delay-seconds", "0")), time.Hour, never, lowerApp()},
		{"a delay of zero still cannot know which part of the second it started in", testPod(annotate("trigger", "Delay", "delay-seconds", "0"), runningFor("app", 0)), second / 2, never, delayed(second / 2)},
		{"the delay has just begun", testPod(annotate("trigger", "Delay", "delay-seconds", "40"), runningFor("app", 0)), 0, never, delayed(41 * second)},
		{"the delay counts for this leader and the next alike", testPod(annotate("trigger", "Delay", "delay-seconds", "40")), 0, noon.Add(-time.Hour), delayed(11 * second)},
		{"the delay counts anew after a restart", testPod(annotate("trigger", "Delay", "delay-seconds", "40"), runningFor("app", 2*second)), 0, never, delayed(39 * second)},
		{
			"the delay of several containers is that of the last to start",
			testPod(annotate("trigger", "Delay", "delay-seconds", "40"), with("web", "200m"), resolve(Resolved{"app": {200, 50}, "web": {200, 50}}), runningFor("app", 10*second), runningFor("web", 5*second)),
			0, never, delayed(36 * second),
		},

		// The trigger PodCondition.
		{"the pod has no such condition, whatever its probes say", testPod(annotate("trigger", "PodCondition=WarmedUp"), started("app"), ready("app")), 0, never, wait(AwaitingTrigger)},
		{"the condition is not True", testPod(annotate("trigger", "PodCondition=WarmedUp"), started("app"), warmedUp(corev1.ConditionFalse)), 0, never, wait(AwaitingTrigger)},
		{"the condition is unknown", testPod(annotate("trigger", "PodCondition=WarmedUp"), started("app"), warmedUp(corev1.ConditionUnknown)), 0, never, wait(AwaitingTrigger)},
		{"the condition is True, whatever the probes say", testPod(annotate("trigger", "PodCondition=WarmedUp"), warmedUp(corev1.ConditionTrue)), 0, never, lowerApp()},
		{"the condition is that of another pod", testPod(annotate("trigger", "PodCondition=example.com/WarmedUp"), warmedUp(corev1.ConditionTrue)), 0, never, wait(AwaitingTrigger)},
		{"the condition is True, but the container does not run", testPod(annotate("trigger", "PodCondition=WarmedUp"), warmedUp(corev1.ConditionTrue), waiting("app", "PodInitializing")), 0, never, wait(AwaitingTrigger)},
		{"the condition is True, and the container crashes in a loop", testPod(annotate("trigger", "PodCondition=WarmedUp"), warmedUp(corev1.ConditionTrue), waiting("app", "CrashLoopBackOff")), 0, never, wait(CrashLoopBackOff)},
		{"the condition comes, and its delay begins", testPod(annotate("trigger", "PodCondition=WarmedUp", "delay-seconds", "30"), warmedUp(corev1.ConditionTrue)), 0, never, delayed(30 * second)},
		{"the delay after the condition is over", testPod(annotate("trigger", "PodCondition=WarmedUp", "delay-seconds", "30"), warmedUp(corev1.ConditionTrue)), 0, noon.Add(-30 * second), lowerApp()},

		// A further delay after a trigger.
		{"the trigger comes, and its delay begins", testPod(annotate("delay-seconds", "30"), started("app")), 0, never, delayed(30 * second)},
		{"a delay before the trigger has not begun", testPod(annotate("delay-seconds", "30")), 0, never, wait(AwaitingTrigger)},
		{"a delay after the trigger counts from the trigger, not from the container's start", testPod(annotate("delay-seconds", "30"), started("app")), 0, noon.Add(-10 * second), delayed(20 * second)},
		{"a nanosecond before the delay after the trigger is over", testPod(annotate("delay-seconds", "30"), started("app")), -1, noon.Add(-30 * second), delayed(1)},
		{"the delay after the trigger is over", testPod(annotate("delay-seconds", "30"), started("app")), 0, noon.Add(-30 * second), lowerApp()},
		{"the delay is over but the trigger no longer holds", testPod(annotate("delay-seconds", "30", "trigger", "Ready")), 0, noon.Add(-30 * second), wait(AwaitingTrigger)},
		{
			"the delay after the trigger begins anew when the container has restarted since",
			testPod(annotate("delay-seconds", "30"), started("app"), runningFor("app", 5*second)), 0, noon.Add(-60 * second), delayed(30 * second),
		},

		// Crashes.
		{"the container has just crashed", testPod(started("app"), terminated("app")), 0, never, wait(AwaitingTrigger)},
		{"the container crashes in a loop", testPod(waiting("app", "CrashLoopBackOff")), 0, never, wait(CrashLoopBackOff)},
		{"the container crashes in a loop, and its last run counts as started and ready", testPod(started("app"), ready("app"), waiting("app", "CrashLoopBackOff")), 0, never, wait(CrashLoopBackOff)},
		{"the container crashes in a loop under the trigger Delay", testPod(waiting("app", "CrashLoopBackOff"), annotate("trigger", "Delay", "delay-seconds", "0")), 0, never, wait(CrashLoopBackOff)},
		{"the image cannot be pulled", testPod(waiting("app", "ImagePullBackOff")), 0, never, wait(AwaitingTrigger)},
		{"a container that is not lowered may crash in a loop", testPod(started("app"), with("log", "100m"), resolve(Resolved{"app": {200, 50}, "log": {100, 100}}), waiting("log", "CrashLoopBackOff")), 0, never, lowerApp()},

		// Several containers.
		{
			"one of two has started",
			testPod(with("web", "400m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), started("web")), 0, never, wait(AwaitingTrigger),
		},
		{
			"two have started: one resize for both, in the order of the spec",
			testPod(with("abc", "400m"), resolve(Resolved{"app": {200, 50}, "abc": {400, 100}}), started("app"), started("abc")), 0, never,
			lower("Startup is over: lowering CPU, app 200m to 50m, abc 400m to 100m", map[string]MilliCPU{"app": 50, "abc": 100}),
		},
		{
			"of two, one is at its steady CPU already",
			testPod(with("web", "100m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), started("app"), started("web")), 0, never, lowerApp(),
		},
		{
			"a container that is not lowered need not have started",
			testPod(with("log", "100m"), resolve(Resolved{"app": {200, 50}, "log": {100, 100}}), started("app")), 0, never, lowerApp(),
		},
		{
			"a container that admission did not see, such as an injected one, makes the pod Burstable and is not touched",
			testPod(started("app"), burstable, with("mesh", "100m"), container("mesh", func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{} })), 0, never, injected,
		},
		{
			"a native sidecar has not started",
			testPod(withSidecar("proxy", "100m"), resolve(Resolved{"app": {200, 50}, "proxy": {100, 20}}), started("app")), 0, never, wait(AwaitingTrigger),
		},
		{
			"a native sidecar has started too",
			testPod(withSidecar("proxy", "100m"), resolve(Resolved{"app": {200, 50}, "proxy": {100, 20}}), started("app"), started("proxy")), 0, never,
			lower("Startup is over: lowering CPU, proxy 100m to 20m, app 200m to 50m", map[string]MilliCPU{"app": 50, "proxy": 20}),
		},
		{
			"a native sidecar without a startup probe waits until it is ready",
			testPod(withSidecar("proxy", "100m"), noStartupProbe("proxy"), resolve(Resolved{"app": {200, 50}, "proxy": {100, 20}}), started("app"), started("proxy")), 0, never, wait(AwaitingTrigger),
		},
		{
			"a native sidecar without a startup probe is ready",
			testPod(withSidecar("proxy", "100m"), noStartupProbe("proxy"), resolve(Resolved{"app": {200, 50}, "proxy": {100, 20}}), started("app"), ready("proxy")), 0, never,
			lower("Startup is over: lowering CPU, proxy 100m to 20m, app 200m to 50m", map[string]MilliCPU{"app": 50, "proxy": 20}),
		},
		{
			"an init container that has ended keeps its CPU",
			testPod(withInit("migrate", "1"), terminated("migrate"), resolve(Resolved{"app": {200, 50}, "migrate": {1000, 1000}}), started("app")), 0, never, lowerApp(),
		},

		{
			"an init container is not lowered, whatever somebody wrote into resolved",
			testPod(withInit("migrate", "1"), terminated("migrate"), resolve(Resolved{"app": {200, 50}, "migrate": {1000, 100}}), started("app")), 0, never, lowerApp(),
		},

		// What must not be sent.
		{
			"a Burstable pod that the resize would make Guaranteed",
			testPod(started("app"), burstable, request("app", corev1.ResourceCPU, "100m")), 0, never,
			record(Skipped, QoSWouldChange, "The pod was created Burstable"+fmt.Sprintf(becomesOther, "Guaranteed")),
		},
		{
			"a Guaranteed pod that the resize would make Burstable",
			testPod(started("app"), request("app", corev1.ResourceMemory, "32Mi")), 0, never,
			record(Skipped, QoSWouldChange, "The pod was created Guaranteed"+fmt.Sprintf(becomesOther, "Burstable")),
		},
		{
			"a QoS class that would change is no matter before the trigger",
			testPod(burstable, request("app", corev1.ResourceCPU, "100m")), 0, never, wait(AwaitingTrigger),
		},
		{
			"a QoS class that would change is reported once",
			testPod(started("app"), burstable, request("app", corev1.ResourceCPU, "100m"), recorded(QoSWouldChange, "The pod was created Burstable"+fmt.Sprintf(becomesOther, "Guaranteed"))), 0, never,
			wait(QoSWouldChange),
		},
		{
			"a Burstable pod that stays Burstable is lowered, and its author hears why it is not Guaranteed",
			testPod(started("app"), burstable, request("app", corev1.ResourceMemory, "32Mi")), 0, never, notGuaranteed,
		},
		{
			"a Burstable pod whose request is the steady CPU already gets the limit, too",
			testPod(started("app"), burstable, request("app", corev1.ResourceMemory, "32Mi"), request("app", corev1.ResourceCPU, "50m")), 0, never, atSteadyRequest,
		},
		{
			"a request below the steady CPU is not raised, so no more than before is reserved after the startup",
			testPod(started("app"), burstable, request("app", corev1.ResourceMemory, "32Mi"), request("app", corev1.ResourceCPU, "30m")), 0, never, record(Skipped, BelowSteady, below),
		},
		{"somebody set less than the steady CPU", testPod(started("app"), cpu("app", "30m")), 0, never, record(Skipped, BelowSteady, below)},
		{"somebody set less than the steady CPU, which is reported once", testPod(started("app"), cpu("app", "30m"), recorded(BelowSteady, below)), 0, never, wait(BelowSteady)},
		{
			"somebody set less still, which is reported again",
			testPod(started("app"), cpu("app", "20m"), recorded(BelowSteady, below)), 0, never,
			record(Skipped, BelowSteady, strings.Replace(below, "30m", "20m", 1)),
		},
		{"somebody gave the startup CPU back", testPod(started("app"), recorded(BelowSteady, below)), 0, never, lowerApp()},
		{"somebody raised the CPU above that of the startup", testPod(started("app"), cpu("app", "300m")), 0, never, lower("Startup is over: lowering CPU, app 300m to 50m", map[string]MilliCPU{"app": 50})},
		{"resolved is garbage", testPod(annotate("resolved", "x")), 0, never, record(Skipped, InvalidAnnotation, notResolved)},
		{"resolved is garbage, which is reported once", testPod(annotate("resolved", "x"), recorded(InvalidAnnotation, notResolved)), 0, never, wait(InvalidAnnotation)},
		{
			"a problem is reported before a kubelet has the pod",
			testPod(annotate("trigger", "Soon"), func(p *corev1.Pod) { p.Status.StartTime = nil }), 0, never,
			record(Skipped, InvalidAnnotation, `resize.example.com/trigger: "Soon": is not a trigger; write one of StartupProbePassed, Ready, Delay, PodCondition=TYPE`),
		},
		{"a problem that was mended", testPod(started("app"), recorded(InvalidAnnotation, notResolved)), 0, never, lowerApp()},
		{"a refusal is tried again whenever something happens", testPod(started("app"), recorded(APIRefused, "exceeded quota")), 0, never, lowerApp()},

		{
			"a VPA has got at the pod since", testPod(started("app"), func(p *corev1.Pod) { p.Annotations["vpaUpdates"] = "x" }), 0, never,
			record(Skipped, InvalidAnnotation, `vpaUpdates: a VerticalPodAutoscaler sets this pod's CPU, and two would undo each other's work; take the pod out of one of them`),
		},
		{"a resize that would restart the container, with its author's consent", testPod(started("app"), annotate("allow-restart", "true"), restarting), 0, never, lowerApp()},
		{
			"a resize that would restart the container, without", testPod(started("app"), restarting), 0, never,
			record(Skipped, InvalidAnnotation, `resizePolicy: container "app": "RestartContainer": lowering its CPU would restart the container; write "NotRequired" for cpu, or resize.example.com/allow-restart: "true"`),
		},
		{"the author wants another steady CPU by now", testPod(started("app"), annotate("steady-cpu", "60m")), 0, never, lower("Startup is over: lowering CPU, app 200m to 60m", map[string]MilliCPU{"app": 60})},
		{
			"the author wants more than it started with", testPod(started("app"), annotate("steady-cpu", "300m")), 0, never,
			record(Skipped, InvalidAnnotation, `resize.example.com/steady-cpu: container "app": "300m": is more than its startup CPU, 200m; write less, or recreate the pod with more`),
		},
		{"another startup CPU is for the next pod", testPod(started("app"), annotate("steady-cpu", "50m", "startup-cpu", "9")), 0, never, lowerApp()},

		// The author wants another steady CPU after the pod was lowered.
		{"more", testPod(settled, annotate("steady-cpu", "60m")), 0, never, move(SteadyChanged, "Another steady CPU is wanted, app 50m to 60m", "app", 60)},
		{"less", testPod(settled, annotate("steady-cpu", "10%")), 0, never, move(SteadyChanged, "Another steady CPU is wanted, app 50m to 20m", "app", 20)},
		{"and has got it", testPod(settled, annotate("steady-cpu", "60m"), cpu("app", "60m"), allocated("app", "60m"), generation(3), observed(3)), 0, never, func() Decision {
			d := done("CPU lowered, app 200m to 60m; Guaranteed")
			d.Status.ReleasedMilliCPU = 140
			return d
		}()},
		{"what somebody set is left alone even so", testPod(settled, annotate("steady-cpu", "60m"), cpu("app", "100m")), 0, never, record(Skipped, SetByOthers, `container "app" has 100m, and was left with 50m: something else set it`)},
		{"somebody set what the author wants", testPod(settled, cpu("app", "100m"), left(Skipped, SetByOthers, map[string]Left{"app": {50, 0}}), annotate("steady-cpu", "100m"), allocated("app", "100m")), 0, never, func() Decision {
			d := done("CPU lowered, app 200m to 100m; Guaranteed")
			d.Status.ReleasedMilliCPU = 100
			return d
		}()},

		// The deadline: 40 s after 11:59:31 at the latest.
		{"before the deadline", testPod(annotate("deadline-seconds", "40")), 11*second - 1, never, Decision{Action: Wait, Reason: AwaitingTrigger, RequeueAfter: 1}},
		{"at the deadline", testPod(annotate("deadline-seconds", "40")), 11 * second, never, late("40s")},
		{"the deadline is no matter once the trigger has come", testPod(annotate("deadline-seconds", "40"), started("app")), 0, never, lowerApp()},
		{"the deadline cuts the delay short", testPod(annotate("deadline-seconds", "40", "delay-seconds", "60"), started("app")), 0, never, delayed(11 * second)},
		{"and then the trigger counts, not the deadline", testPod(annotate("deadline-seconds", "40", "delay-seconds", "60"), started("app")), 11 * second, noon, lowerApp()},
		{"not while it crashes in a loop", testPod(annotate("deadline-seconds", "1"), waiting("app", "CrashLoopBackOff")), 0, never, wait(CrashLoopBackOff)},
		{
			"of two containers one has a deadline left", testPod(annotate("deadline-seconds", "40"), with("web", "200m"), resolve(Resolved{"app": {200, 50}, "web": {200, 50}}), runningFor("web", 5*second)), 15 * second, never,
			Decision{Action: Wait, Reason: AwaitingTrigger, RequeueAfter: 21 * second},
		},

		// A restart after the CPU was lowered.
		{"it has crashed and does not run", testPod(restartedOnce, terminated("app")), 0, never, wait(AlreadyMarked)},
		{"it crashes in a loop", testPod(restartedOnce, waiting("app", "CrashLoopBackOff")), 0, never, wait(AlreadyMarked)},
		{"it runs again", testPod(restartedOnce), 0, never, move(Restarted, "Restarted: giving the startup CPU back, app 50m to 200m", "app", 200)},
		{"it runs again, and started is a word of the old instance", testPod(restartedOnce, started("app"), container("app", func(c *corev1.Container) { c.StartupProbe.PeriodSeconds = 10 })), 0, never, move(Restarted, "Restarted: giving the startup CPU back, app 50m to 200m", "app", 200)},
		{"it runs again, under the trigger Delay", testPod(restartedOnce, annotate("trigger", "Delay", "delay-seconds", "10")), 0, never, move(Restarted, "Restarted: giving the startup CPU back, app 50m to 200m", "app", 200)},
		{"it has run again for long enough, under the trigger Delay", testPod(restartedOnce, annotate("trigger", "Delay", "delay-seconds", "10")), 9 * second, never, done(doneMessage)},
		{"it runs again, which its author wants nothing done about", testPod(restartedOnce, annotate("on-restart", "Ignore")), 0, never, wait(AlreadyMarked)},
		{"it has started before anybody looked", testPod(restartedOnce, started("app"), runningFor("app", 20*second)), 0, never, done(doneMessage)},
		{"it runs again, with what somebody else set", testPod(restartedOnce, cpu("app", "100m")), 0, never, record(Skipped, SetByOthers, `container "app" has 100m, and was left with 50m: something else set it`)},
		{"it has its startup CPU back, which is to be recorded", testPod(restartedOnce, cpu("app", "200m"), generation(3)), 0, never, record(Boosting, Restarted, "Restarted, with the startup CPU again: app 50m to 200m")},
		{"it starts with its startup CPU", testPod(boosted), 0, never, wait(AwaitingTrigger)},
		{"it crashes again meanwhile", testPod(boosted, status("app", func(s *corev1.ContainerStatus) { s.RestartCount = 2 }), waiting("app", "CrashLoopBackOff")), 0, never, wait(CrashLoopBackOff)},
		{"its node puts the startup CPU off", testPod(boosted, allocated("app", "50m"), pending(corev1.PodReasonDeferred, "no room", 3)), 0, never, Decision{Action: Wait, Reason: AwaitingRoom, RequeueAfter: 20 * second}},
		{"its node has put it off for too long", testPod(boosted, allocated("app", "50m"), pending(corev1.PodReasonDeferred, "no room", 3)), 20 * second, never, move(NoRoom, "The node has no room for the startup CPU: taking it back, app 200m to 50m", "app", 50)},
		{"its node can never do it", testPod(boosted, allocated("app", "50m"), pending(corev1.PodReasonInfeasible, "no", 3)), 0, never, move(NoRoom, "The node has no room for the startup CPU: taking it back, app 200m to 50m", "app", 50)},
		{"it was taken back", testPod(boosted, cpu("app", "50m"), allocated("app", "50m"), generation(4), observed(4)), 0, never, noRoom("There was no room for the startup CPU, so the start goes on with the steady CPU, app 200m to 50m; Guaranteed")},
		{"it has started again", testPod(boosted, started("app"), runningFor("app", 20*second)), 0, never, lowerApp()},
		{"it has started again, or so it says", testPod(boosted, started("app"), container("app", func(c *corev1.Container) { c.StartupProbe.PeriodSeconds = 10 })), 0, never, Decision{Action: Wait, Reason: AwaitingTrigger, RequeueAfter: 10 * second}},
		{"it was lowered again", testPod(boosted, started("app"), runningFor("app", 20*second), cpu("app", "50m"), allocated("app", "50m"), generation(4), observed(4)), 0, noon.Add(-5 * second), startupTook(15, done(doneMessage))},
		{
			"another container restarts meanwhile", testPod(boosted, with("web", "100m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), status("web", func(s *corev1.ContainerStatus) { s.RestartCount = 1 }),
				annotate("status", Status{Phase: Boosting, Reason: Restarted, Containers: map[string]Left{"app": {200, 1}, "web": {100, 0}}}.String())), 0, never,
			move(Restarted, "Restarted: giving the startup CPU back, web 100m to 400m", "web", 400),
		},
		{
			"what somebody set meanwhile on another container is left alone", testPod(boosted, started("app"), runningFor("app", 20*second), with("web", "300m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}),
				annotate("status", Status{Phase: Boosting, Reason: Restarted, Containers: map[string]Left{"app": {200, 1}, "web": {100, 0}}}.String())), 0, never, lowerApp(),
		},

		// No node has room.
		{"for want of CPU, not long enough", testPod(unschedulable("0/1 nodes are available: 1 Insufficient cpu.", 299*second)), 0, never, Decision{Action: Wait, Reason: AwaitingStart, RequeueAfter: second}},
		{"for want of CPU", testPod(unschedulable("0/1 nodes are available: 1 Insufficient cpu.", 300*second)), 0, never, move(DoesNotFit, "No node has had room for the startup CPU in 5m0s: starting with the steady CPU, app 200m to 50m", "app", 50)},
		{"for want of CPU, sooner", testPod(annotate("fit-after-seconds", "10"), unschedulable("0/1 nodes are available: 1 Insufficient cpu.", 10*second)), 0, never, move(DoesNotFit, "No node has had room for the startup CPU in 10s: starting with the steady CPU, app 200m to 50m", "app", 50)},
		{"for want of CPU, which is to be waited out", testPod(annotate("fit-after-seconds", "0"), unschedulable("0/1 nodes are available: 1 Insufficient cpu.", time.Hour)), 0, never, wait(AwaitingStart)},
		{"for want of memory", testPod(unschedulable("0/1 nodes are available: 1 Insufficient memory.", time.Hour)), 0, never, wait(AwaitingStart)},
		{"for want of more CPU still", testPod(cpu("app", "50m"), unschedulable("0/1 nodes are available: 1 Insufficient cpu.", time.Hour)), 0, never, wait(AwaitingStart)},
		{"it starts with its steady CPU", testPod(cpu("app", "50m"), allocated("app", "50m"), generation(2), observed(2)), 0, never, noRoom("There was no room for the startup CPU, so the start goes on with the steady CPU, app 200m to 50m; Guaranteed")},

		// Pods that were created with their steady CPU.
		{"no kubelet has it yet", testPod(opportunistic, func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSGuaranteed}
		}), 0, never, wait(AwaitingStart)},
		{"a kubelet has it", testPod(opportunistic, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }), 0, never, move(Raised, "Starting: raising CPU, app 50m to 200m", "app", 200)},
		{"a kubelet has it, and it runs", testPod(opportunistic), 0, never, move(Raised, "Starting: raising CPU, app 50m to 200m", "app", 200)},
		{"raised", testPod(opportunistic, cpu("app", "200m"), generation(2)), 0, never, wait(AwaitingTrigger)},
		{"raised, and the kubelet puts it off", testPod(opportunistic, cpu("app", "200m"), generation(2), pending(corev1.PodReasonDeferred, "no room", 2)), 0, never, move(NoRoom, "The node has no room for the startup CPU: taking it back, app 200m to 50m", "app", 50)},
		{"raised, and the kubelet had put another resize off", testPod(opportunistic, cpu("app", "200m"), generation(2), pending(corev1.PodReasonDeferred, "no room", 1)), 0, never, wait(AwaitingTrigger)},
		{"raised and taken back", testPod(opportunistic, generation(3), observed(3)), 0, never, noRoom("There was no room for the startup CPU, so the start goes on with the steady CPU, app 200m to 50m; Guaranteed")},
		{"a kubelet has it, and it runs, under the trigger Delay", testPod(opportunistic, annotate("trigger", "Delay", "delay-seconds", "40")), 0, never, move(Raised, "Starting: raising CPU, app 50m to 200m", "app", 200)},
		{"raised and started", testPod(opportunistic, cpu("app", "200m"), generation(2), started("app")), 0, never, lowerApp()},
		{"nothing was lowered, because it had started before anybody looked", testPod(opportunistic, started("app")), 0, never, record(Steady, NothingToLower, "Created with the steady CPU; Guaranteed")},
		{"the kubelet has yet to allocate it", testPod(opportunistic, started("app"), allocated("app", "200m")), 0, never, wait(AwaitingKubelet)},
		{"somebody raised it", testPod(opportunistic, started("app"), cpu("app", "100m"), generation(2)), 0, never, lower("Startup is over: lowering CPU, app 100m to 50m", map[string]MilliCPU{"app": 50})},
		{"somebody raised it, and it was lowered", testPod(opportunistic, started("app"), generation(3), observed(3)), 0, never, done(doneMessage)},
		{"somebody raised it, and this leader saw its startup end", testPod(opportunistic), 0, noon.Add(-10 * second), startupTook(20, done(doneMessage))},

		// Pods that admission missed.
		{"an amount in short", testPod(missed("x"), short("50m", ""), started("app")), 0, never, lowerApp()},
		{"a part of an amount", testPod(missed("x"), short("25%", "200m"), started("app")), 0, never, lowerApp()},
		{"the startup CPU was to be another than it is", testPod(missed("x"), short("50m", "3x"), started("app")), 0, never, lowerApp()},
		{"the startup CPU was to be another than it was", testPod(missed("x"), short("50m", "3x"), actuated), 0, never, missedDone},
		{"it was to have more, and has its steady CPU from the start", testPod(missed("x"), short("50m", "3x"), cpu("app", "50m"), allocated("app", "50m")), 0, never, record(Steady, NothingToLower, "Startup and steady CPU are the same; Guaranteed")},
		{
			"a part of what it has would be less each time", testPod(missed("x"), short("25%", ""), started("app")), 0, never,
			record(Skipped, InvalidAnnotation, `resize.example.com/steady-cpu: container "app": "25%": is a part of a startup CPU that admission did not see; recreate the pod, or write an amount such as "50m"`),
		},
		{"a Guaranteed pod that admission missed is lowered", testPod(missed(app50m), started("app")), 0, never, lowerApp()},
		{
			"a Guaranteed pod that admission missed was lowered; how much it had is forgotten",
			testPod(missed(app50m), actuated), 0, never, missedDone,
		},
		{
			"a Burstable pod that admission missed would become Guaranteed",
			testPod(missed(app50m), started("app"), burstable, request("app", corev1.ResourceCPU, "100m")), 0, never,
			record(Skipped, QoSWouldChange, "The pod was created Burstable"+fmt.Sprintf(becomesOther, "Guaranteed")),
		},
		{
			"a Burstable pod that admission missed stays Burstable",
			testPod(missed(app50m), started("app"), burstable, request("app", corev1.ResourceMemory, "32Mi")), 0, never, notGuaranteed,
		},
		{
			"somebody set less than the steady CPU on a pod that admission missed: its startup CPU is what it has",
			testPod(missed(app50m), started("app"), cpu("app", "30m")), 0, never,
			record(Skipped, InvalidAnnotation, `resize.example.com/steady-resources: container "app": "50m": is more than its startup CPU, 30m; write less, or raise resources.limits.cpu`),
		},
		{
			"a pod that admission missed says nothing about its steady CPU",
			testPod(func(p *corev1.Pod) { delete(p.Annotations, DefaultDomain+"/resolved") }), 0, never,
			record(Skipped, InvalidAnnotation, `resize.example.com/steady-resources: is missing; write {"app":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}, or in short resize.example.com/steady-cpu: "50m"`),
		},
		{
			"a pod that admission missed would be restarted by the resize",
			testPod(missed(app50m), started("app"), container("app", func(c *corev1.Container) {
				c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
			})), 0, never,
			record(Skipped, InvalidAnnotation, `resizePolicy: container "app": "RestartContainer": lowering its CPU would restart the container; write "NotRequired" for cpu, or resize.example.com/allow-restart: "true"`),
		},

		// Accepted is not actuated.
		{"the kubelet has not seen the resize", testPod(resized), 0, never, wait(AwaitingKubelet)},
		{"the kubelet has not seen the resize, though the allocation is equal", testPod(actuated, observed(1)), 0, never, wait(AwaitingKubelet)},
		{"the kubelet has seen the resize and allocated nothing yet", testPod(resized, observed(2)), 0, never, wait(AwaitingKubelet)},
		{"the kubelet reports no allocation", testPod(actuated, status("app", func(s *corev1.ContainerStatus) { s.AllocatedResources = nil })), 0, never, wait(AwaitingKubelet)},
		{"the kubelet reports no container", testPod(actuated, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }), 0, never, wait(AwaitingKubelet)},
		{"the resize is in progress", testPod(actuated, inProgress("", 2)), 0, never, wait(AwaitingKubelet)},
		{"the resize is in progress for an older generation, which the kubelet does not advance", testPod(actuated, inProgress("", 1)), 0, never, wait(AwaitingKubelet)},
		{"the resize runs into an error, which the kubelet retries", testPod(actuated, inProgress(corev1.PodReasonError, 2)), 0, never, wait(AwaitingKubelet)},
		{"the resize was in progress", testPod(actuated, condition(corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionFalse})), 0, never, done(doneMessage)},
		{"the kubelet has put the resize off", testPod(resized, observed(2), pending(corev1.PodReasonDeferred, "no room", 2)), 0, never, wait(AwaitingRoom)},
		{"the kubelet had put another resize off", testPod(actuated, pending(corev1.PodReasonDeferred, "no room", 1)), 0, never, wait(AwaitingKubelet)},
		{"the kubelet found another resize infeasible", testPod(resized, pending(corev1.PodReasonInfeasible, infeasible, 1)), 0, never, wait(AwaitingKubelet)},
		{"the resize was put off", testPod(actuated, condition(corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionFalse, Reason: corev1.PodReasonDeferred, ObservedGeneration: 2})), 0, never, done(doneMessage)},
		{"the kubelet finds the resize infeasible", testPod(resized, observed(2), pending(corev1.PodReasonInfeasible, infeasible, 2)), 0, never, record(Infeasible, NodeCannotResize, infeasible)},
		{"the kubelet finds the resize infeasible while an older one is in progress", testPod(resized, observed(2), pending(corev1.PodReasonInfeasible, infeasible, 2), inProgress("", 1)), 0, never, record(Infeasible, NodeCannotResize, infeasible)},
		{"the kubelet finds the resize infeasible while an older one is in progress, conditions the other way round", testPod(resized, observed(2), inProgress("", 1), pending(corev1.PodReasonInfeasible, infeasible, 2)), 0, never, record(Infeasible, NodeCannotResize, infeasible)},
		{"the kubelet of Kubernetes 1.33 finds the resize infeasible, for no generation", testPod(resized, observed(0), pending(corev1.PodReasonInfeasible, infeasible, 0)), 0, never, record(Infeasible, NodeCannotResize, infeasible)},
		{"the kubelet of Kubernetes 1.33 has put the resize off, for no generation", testPod(resized, observed(0), pending(corev1.PodReasonDeferred, "no room", 0)), 0, never, wait(AwaitingRoom)},
		{"infeasible and recorded: the spec is to say again what the node holds", testPod(resized, observed(2), pending(corev1.PodReasonInfeasible, infeasible, 2), left(Infeasible, NodeCannotResize, map[string]Left{"app": {50, 0}})), 0, never, move(PutBack, "The node cannot resize the pod: putting back what it holds, app 50m to 200m", "app", 200)},
		{"infeasible and put back", testPod(started("app"), generation(3), observed(3), left(Infeasible, NodeCannotResize, map[string]Left{"app": {50, 0}})), 0, never, wait(NodeCannotResize)},
		{"infeasible and put back, and its author wants another steady CPU", testPod(started("app"), generation(3), observed(3), left(Infeasible, NodeCannotResize, map[string]Left{"app": {50, 0}}), annotate("steady-cpu", "60m")), 0, never, lower("Startup is over: lowering CPU, app 200m to 60m", map[string]MilliCPU{"app": 60})},
		{"infeasible for another cause is recorded again", testPod(resized, observed(2), pending(corev1.PodReasonInfeasible, "node is full", 2), recorded(NodeCannotResize, infeasible)), 0, never, record(Infeasible, NodeCannotResize, "node is full")},
		{"infeasible no more: the kubelet came back with another policy", testPod(actuated, recorded(NodeCannotResize, infeasible)), 0, never, done(doneMessage)},
		{"the kubelet reports the steady CPU", testPod(actuated), 0, never, done(doneMessage)},
		{
			"somebody removed the marker, but not the condition", testPod(actuated, condition(corev1.PodCondition{
				Type: DefaultDomain + "/Steady", Status: corev1.ConditionTrue, Reason: string(CPULowered), Message: doneMessage,
			})), 0, never, done(doneMessage),
		},
		{
			"an init container has ended, and its allocation does not matter",
			testPod(actuated, withInit("migrate", "1"), terminated("migrate"), allocated("migrate", "2"), resolve(Resolved{"app": {200, 50}, "migrate": {1000, 1000}})), 0, never, done(doneMessage),
		},
		{"the kubelet reports the steady CPU in other words", testPod(actuated, allocated("app", "0.05")), 0, never, done(doneMessage)},
		{"somebody wrote the steady CPU in other words", testPod(actuated, cpu("app", "0.05")), 0, never, done(doneMessage)},
		{"the kubelet of Kubernetes 1.33 reports no generation", testPod(actuated, observed(0)), 0, never, done(doneMessage)},
		{"the kubelet is ahead", testPod(actuated, observed(3)), 0, never, done(doneMessage)},
		{"what the runtime reports does not matter: rounding may keep it from ever being equal", testPod(actuated, status("app", func(s *corev1.ContainerStatus) {
			s.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("60m")}}
		})), 0, never, done(doneMessage)},
		{"the container crashed after its CPU was lowered", testPod(actuated, waiting("app", "CrashLoopBackOff")), 0, noon.Add(-10 * second), done(doneMessage)},
		{
			"of two containers one is allocated",
			testPod(actuated, with("web", "100m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), allocated("web", "400m")), 0, never, wait(AwaitingKubelet),
		},
		{"a container that admission did not see may lack an allocation", testPod(actuated, with("mesh", "100m"), status("mesh", func(s *corev1.ContainerStatus) { s.AllocatedResources = nil })), 0, never, done(doneMessage)},
		{
			"the kubelet allocates requests, which may be less than the limit in a container that is not lowered",
			testPod(actuated, burstable, with("log", "200m"), resolve(Resolved{"app": {200, 50}, "log": {200, 200}}), request("log", corev1.ResourceCPU, "100m"), allocated("log", "100m")), 0, never,
			done("CPU lowered, app 200m to 50m; Burstable"),
		},
		{"the startup took as long as from the container's start to the trigger", testPod(actuated), 0, noon.Add(-10*second - 460*time.Millisecond), startupTook(19.5, done(doneMessage))},
		{"the startup began with the first container that is lowered", testPod(twoActuated, runningFor("web", 25*second), runningFor("log", 35*second)), 0, noon, startupTook(30, twoDone)},
		{"the startup began with the first container that is lowered, wherever it stands", testPod(twoActuated, runningFor("web", 32*second), runningFor("log", 35*second)), 0, noon, startupTook(32, twoDone)},
		{"the container restarted after the trigger, so how long its startup took is not known", testPod(actuated, runningFor("app", 2*second)), 0, noon.Add(-10 * second), done(doneMessage)},

		// Steady is startup.
		{"the steady CPU is the startup CPU", testPod(resolve(Resolved{"app": {200, 200}})), 0, never, record(Steady, NothingToLower, "Startup and steady CPU are the same; Guaranteed")},
		{"the steady CPU is the startup CPU, and no kubelet has the pod", testPod(resolve(Resolved{"app": {200, 200}}), func(p *corev1.Pod) { p.Status.StartTime = nil }), 0, never, wait(AwaitingStart)},
	}
}

func (c decideCase) input(t *testing.T) Input {
	return Input{Keys: testKeys(t), Pod: c.pod, Now: noon.Add(c.at), TriggeredAt: c.triggeredAt}
}

func TestDecide(t *testing.T) {
	for _, c := range decideCases() {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(c.input(t))
			// TestTriggeredAt and TestMatrix look at these.
			got.TriggeredAt, got.Phase, got.Status.Containers, got.Reserved, got.Released = time.Time{}, "", nil, 0, 0
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("\ngot  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestTriggeredAt: what the caller is to remember of the trigger, from decision to decision.
func TestTriggeredAt(t *testing.T) {
	earlier := noon.Add(-10 * time.Second)
	for _, c := range []struct {
		name         string
		pod          *corev1.Pod
		before, want time.Time
	}{
		{"not yet: there is nothing to remember", testPod(), time.Time{}, time.Time{}},
		{"seen for the first time: now", testPod(started("app")), time.Time{}, noon},
		{"seen for the first time, with a delay: now", testPod(annotate("delay-seconds", "30"), started("app")), time.Time{}, noon},
		{"seen before: then", testPod(started("app")), earlier, earlier},
		{"seen before, with a delay: then", testPod(annotate("delay-seconds", "30"), started("app")), earlier, earlier},
		{"not any more: forgotten", testPod(), earlier, time.Time{}},
		{"seen of a container that has restarted since: now", testPod(started("app"), runningFor("app", 5*time.Second)), earlier, noon},
		{"the trigger Delay: when it is over", testPod(annotate("trigger", "Delay", "delay-seconds", "1")), time.Time{}, noon},
		{"the trigger Delay, which is not over: nothing", testPod(annotate("trigger", "Delay", "delay-seconds", "60")), time.Time{}, time.Time{}},
		{"while the kubelet is at it: then", testPod(resized), earlier, earlier},
		{"when it is recorded: then", testPod(actuated), earlier, earlier},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(Input{Keys: testKeys(t), Pod: c.pod, Now: noon, TriggeredAt: c.before}).TriggeredAt
			if !got.Equal(c.want) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// The pod is the informer's, which others read at the same time; the race detector looks on.
func TestDecideOnlyReadsThePod(t *testing.T) {
	for _, c := range decideCases() {
		t.Run(c.name, func(t *testing.T) {
			in, before := c.input(t), c.pod.DeepCopy()
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					Decide(in)
					in.Refuse(Decision{}, "no")
				})
			}
			wg.Wait()
			if !reflect.DeepEqual(in.Pod, before) {
				t.Errorf("\nwas %+v\nis  %+v", before, in.Pod)
			}
		})
	}
}

// What the pod says after a Record must be enough for the next look, by whatever leader, to write nothing.
func TestARecordIsItsOwnLatch(t *testing.T) {
	keys := testKeys(t)
	for _, c := range decideCases() {
		if c.want.Action != Record {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			in := c.input(t)
			d := Decide(in)
			write(keys, in.Pod, d)
			in.TriggeredAt = time.Time{}
			again := Decide(in)
			if again.Reason == PutBack {
				for name, amount := range again.Target {
					cpu(name, amount.String())(in.Pod)
				}
				in.Pod.Generation++
				in.Pod.Status.Conditions = slices.DeleteFunc(in.Pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending })
				again = Decide(in)
			}
			if again.Action != Wait {
				t.Errorf("again: %+v", again)
			}
			if want := d.Reason; again.Reason != want && slices.Contains([]Phase{Skipped, Refused, Infeasible}, d.Status.Phase) {
				t.Errorf("waits for %s, want %s", again.Reason, want)
			}
			if got := keys.StatusOf(in.Pod); !reflect.DeepEqual(got, d.Status) {
				t.Errorf("the status reads back as %+v, want %+v", got, d.Status)
			}
		})
	}
}

// write is what the resizer does with a Record.
func write(keys Keys, pod *corev1.Pod, d Decision) {
	delete(pod.Annotations, keys.Status)
	delete(pod.Annotations, keys.Resized)
	put(pod.Annotations, d.Unguard)
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == keys.Steady })
	if d.Clear {
		return
	}
	pod.Annotations[keys.Status] = d.Status.String()
	if d.Status.Phase == Steady {
		pod.Annotations[keys.Resized] = "true"
	}
	condition := d.Condition(keys)
	condition.LastTransitionTime = metav1.Time{Time: noon}
	pod.Status.Conditions = append(pod.Status.Conditions, condition)
}

func TestRefuse(t *testing.T) {
	cases := []struct {
		name string
		pod  *corev1.Pod
		want Decision
	}{
		{"the first refusal is recorded", testPod(started("app")), record(Refused, APIRefused, "used: 2001m")},
		{"a refusal is recorded once, though its text counts", testPod(started("app"), recorded(APIRefused, "used: 1999m")), wait(APIRefused)},
		{"a refusal after another trouble is recorded", testPod(started("app"), recorded(BelowSteady, "used: 2001m")), record(Refused, APIRefused, "used: 2001m")},
		{"a refusal of a pod that was steady is recorded", testPod(started("app"), condition(corev1.PodCondition{Type: DefaultDomain + "/Steady", Status: corev1.ConditionTrue, Reason: string(APIRefused)})), record(Refused, APIRefused, "used: 2001m")},
		{"the condition of another domain is not ours", testPod(started("app"), condition(corev1.PodCondition{Type: "other.example.com/Steady", Status: corev1.ConditionFalse, Reason: string(APIRefused)})), record(Refused, APIRefused, "used: 2001m")},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := Input{Keys: testKeys(t), Pod: c.pod, Now: noon}
			got := in.Refuse(Decision{}, "used: 2001m")
			got.Phase = ""
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("\ngot  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestRefuseARaise: the pod goes on as it is, and the same start is not raised again.
func TestRefuseARaise(t *testing.T) {
	keys := testKeys(t)
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want Status
	}{
		{"of an opportunistic start", testPod(opportunistic), Status{Phase: Steady, Reason: NoRoom, Containers: map[string]Left{"app": {50, 0}}}},
		{"after a restart", testPod(restartedOnce), Status{Phase: Steady, Reason: NoRoom, Containers: map[string]Left{"app": {50, 1}}}},
		{
			"after a restart, while another container still starts", testPod(boosted, with("web", "100m"), resolve(Resolved{"app": {200, 50}, "web": {400, 100}}), status("web", func(s *corev1.ContainerStatus) { s.RestartCount = 1 }),
				annotate("status", Status{Phase: Boosting, Reason: Restarted, Containers: map[string]Left{"app": {200, 1}, "web": {100, 0}}}.String())),
			Status{Phase: Boosting, Reason: Restarted, Containers: map[string]Left{"app": {200, 1}, "web": {100, 1}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := Input{Keys: keys, Pod: c.pod, Now: noon}
			d := Decide(in)
			if d.Action != Resize {
				t.Fatalf("decided %+v", d)
			}
			refusal := in.Refuse(d, "no room")
			if refusal.Action != Record || refusal.Message != "no room" || !reflect.DeepEqual(refusal.Status, c.want) {
				t.Fatalf("got %+v", refusal)
			}
			write(keys, in.Pod, refusal)
			if again := Decide(in); again.Action != Wait {
				t.Errorf("again: %+v", again)
			}
		})
	}
}

func TestEveryReasonIsReached(t *testing.T) {
	reached := map[Reason]bool{}
	recordedNow := map[Reason]bool{}
	see := func(d Decision) {
		reached[d.Reason] = true
		if d.Warning != "" {
			reached[NotGuaranteed] = true
		}
		if d.Action == Record {
			recordedNow[d.Reason] = true
			if !d.Clear && (d.Status.Reason != d.Reason || d.Status.Phase == "") {
				t.Errorf("the status %+v does not tell the reason %s", d.Status, d.Reason)
			}
		}
	}
	for _, c := range decideCases() {
		see(Decide(c.input(t)))
	}
	see(Input{Keys: testKeys(t), Pod: testPod(), Now: noon}.Refuse(Decision{}, "no"))
	for _, reason := range declaredReasons(t) {
		if !reached[reason] {
			t.Errorf("no case reaches the reason %s", reason)
		}
		delete(reached, reason)
		if listed := slices.Contains(RecordedReasons(), reason); listed != recordedNow[reason] {
			t.Errorf("%s: in RecordedReasons is %v, recorded is %v", reason, listed, recordedNow[reason])
		}
	}
	if len(reached) > 0 {
		t.Errorf("not declared: %v", reached)
	}
}

// declaredReasons are all constants of the type Reason in status.go.
func declaredReasons(t *testing.T) []Reason {
	file, err := parser.ParseFile(token.NewFileSet(), "status.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Reason" {
			for _, value := range spec.Values {
				all = append(all, Reason(strings.Trim(value.(*ast.BasicLit).Value, `"`)))
			}
		}
		return true
	})
	if len(all) < 18 {
		t.Fatalf("found only %v in status.go", all)
	}
	return all
}

func TestStatusIsReadBack(t *testing.T) {
	s := Status{Phase: Steady, Reason: CPULowered, StartupSeconds: 2.5, ReleasedMilliCPU: 150}
	const want = `{"phase":"Steady","reason":"CPULowered","startupSeconds":2.5,"releasedMilliCPU":150}`
	if got := s.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	cases := []struct {
		name, value string
		want        Status
	}{
		{"our own", want, s},
		{"without figures", `{"phase":"Refused","reason":"APIRefused"}`, Status{Phase: Refused, Reason: APIRefused}},
		{"empty", ``, Status{}},
		{"half of it", `{"phase":"Steady","reason":`, Status{}},
		{"another type", `{"phase":"Steady","startupSeconds":"long"}`, Status{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := testKeys(t).StatusOf(testPod(annotate("status", c.value))); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// FuzzStatusOf: what is ours survives, and what is not is nothing.
func FuzzStatusOf(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, value string) {
		s := keys.StatusOf(testPod(annotate("status", value)))
		if !reflect.DeepEqual(s, Status{}) && !json.Valid([]byte(value)) {
			t.Errorf("read as %+v", s)
		}
		if again := keys.StatusOf(testPod(annotate("status", s.String()))); !reflect.DeepEqual(again, s) {
			t.Errorf("%+v does not survive its own text: %+v", s, again)
		}
	})
}

func TestCondition(t *testing.T) {
	keys := testKeys(t)
	for phase, want := range map[Phase]corev1.ConditionStatus{
		Steady: corev1.ConditionTrue, Refused: corev1.ConditionFalse, Infeasible: corev1.ConditionFalse, Skipped: corev1.ConditionFalse,
	} {
		got := record(phase, BelowSteady, "why").Condition(keys)
		if want := (corev1.PodCondition{Type: "resize.example.com/Steady", Status: want, Reason: "BelowSteady", Message: "why"}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", phase, got, want)
		}
	}
}
