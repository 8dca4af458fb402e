package e2e

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

// TestResize is the main job, for each kind of owner and trigger: the same checks, one table.
func TestResize(t *testing.T) {
	triggers := []struct {
		name        string
		annotations map[string]string
		over        func(observation) bool
	}{
		{
			name: "StartupProbePassed by default",
			over: func(o observation) bool { return *o.Started },
		},
		{
			name:        "StartupProbePassed and two seconds more",
			annotations: map[string]string{shared.keys.Trigger: string(plan.StartupProbePassed), shared.keys.DelaySeconds: "2"},
			over: func(o observation) bool {
				// The resizer may have seen it started a little before this test did.
				return *o.Started && o.now.Sub(o.firstStarted) > 1500*time.Millisecond
			},
		},
		{
			name:        "Ready",
			annotations: map[string]string{shared.keys.Trigger: string(plan.Ready)},
			over:        func(o observation) bool { return o.Ready },
		},
		{
			name:        "Delay of four seconds",
			annotations: map[string]string{shared.keys.Trigger: string(plan.Delay), shared.keys.DelaySeconds: "4"},
			over: func(o observation) bool {
				return o.now.Sub(o.State.Running.StartedAt.Time) >= 4*time.Second
			},
		},
	}
	l := shared
	for kind, create := range l.owners() {
		t.Run(kind, func(t *testing.T) {
			if kind == "Rollout" {
				l.needsRealNode(t, "the controller of Argo Rollouts runs in a pod")
				// Before anything runs in parallel: a build would slow the pods that start.
				if err := deploy.ArgoRollouts(t.Context(), l.cluster, deploy.Steps(t.Output())); err != nil {
					t.Fatal(err)
				}
			}
			t.Parallel()
			for _, trigger := range triggers {
				t.Run(trigger.name, func(t *testing.T) {
					t.Parallel()
					pod := l.checkLife(t, l.samplePod(trigger.annotations), create, life{
						cpu:  plan.Resolved{"app": {Startup: startupCPU, Steady: steadyCPU}},
						says: "CPU lowered, app 200m to 50m; Guaranteed",
						over: trigger.over,
					})
					if owner := l.owner(t, pod); owner != kind {
						t.Errorf("made by a %s", owner)
					}
				})
			}
		})
	}
}

// life is what is to become of a pod.
type life struct {
	cpu  plan.Resolved          // Of each container, while it starts and afterwards.
	says string                 // How the condition's and the event's messages begin.
	over func(observation) bool // Whether the startup is over.
}

// observation is what Kubernetes reports of a pod that runs, from which over says whether its startup is over.
type observation struct {
	corev1.ContainerStatus // Of the container app.
	pod                    *corev1.Pod
	now                    time.Time
	firstStarted           time.Time // When app was first seen with started true.
}

// checkLife creates a pod, follows it from its creation to its steady CPU, checks every promise on the way and returns it.
func (l lab) checkLife(t *testing.T, pod *corev1.Pod, create func(context.Context, string, *corev1.Pod) error, want life) *corev1.Pod {
	t.Helper()
	startup, steady := map[string]plan.MilliCPU{}, map[string]plan.MilliCPU{}
	for name, cpu := range want.cpu {
		startup[name], steady[name] = cpu.Startup, cpu.Steady
	}
	namespace := l.namespace(t)
	// Watching begins first, so that no state of the pod is missed.
	watcher, err := l.client.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	if err := create(t.Context(), namespace, pod); err != nil {
		t.Fatal(err)
	}
	pod = nil
	containerIDs := map[string]string{}
	var firstStarted time.Time
	var quotaRead, lowered bool
	deadline := time.After(patience)
	for done := false; !done; {
		select {
		case <-deadline:
			t.Fatalf("not steady within %s; the pod is %s", patience, mustJSON(t, pod))
		case event, open := <-watcher.ResultChan():
			next, ok := event.Object.(*corev1.Pod)
			if !open || !ok {
				t.Fatalf("the watch ended: %v", event)
			}
			first := pod == nil
			pod = next
			cpu := map[string]plan.MilliCPU{}
			for _, c := range plan.Containers(&pod.Spec) {
				request, limit := plan.MilliCPU(c.Resources.Requests.Cpu().MilliValue()), plan.MilliCPU(c.Resources.Limits.Cpu().MilliValue())
				if request != limit {
					t.Fatalf("%s: request %s, limit %s", c.Name, request, limit)
				}
				cpu[c.Name] = limit
			}
			switch {
			case first && !maps.Equal(cpu, startup):
				t.Fatalf("created at %v, not at its startup CPU %v", cpu, startup)
			case !maps.Equal(cpu, startup) && !maps.Equal(cpu, steady):
				t.Fatalf("it has %v, neither its startup CPU %v nor its steady CPU %v", cpu, startup, steady)
			case pod.Status.QOSClass != corev1.PodQOSGuaranteed:
				t.Fatalf("QoS class %s", pod.Status.QOSClass)
			}
			if len(pod.Status.ContainerStatuses) == 0 {
				continue
			}
			begun := true // Each container, though an init container may have ended.
			for _, status := range statuses(pod) {
				if id := containerIDs[status.Name]; status.RestartCount != 0 || id != "" && status.ContainerID != id {
					t.Fatalf("%s restarted: container %s, then %s, restarts %d", status.Name, id, status.ContainerID, status.RestartCount)
				}
				containerIDs[status.Name] = status.ContainerID
				begun = begun && (status.State.Running != nil || status.State.Terminated != nil)
			}
			app := pod.Status.ContainerStatuses[0]
			if firstStarted.IsZero() && app.Started != nil && *app.Started {
				firstStarted = time.Now()
			}
			if maps.Equal(cpu, steady) && !lowered {
				lowered = true
				// What the resizer saw is what the API server had before this event; startup must have been over in it.
				if app.State.Running == nil || !want.over(observation{app, pod, time.Now(), firstStarted}) {
					t.Fatalf("lowered before its startup was over: %s", mustJSON(t, pod.Status))
				}
			}
			if begun && !lowered && !quotaRead {
				quotaRead = true
				l.checkQuotas(t, pod, startup)
			}
			done = pod.Annotations[l.keys.Resized] == "true"
		}
	}
	if !quotaRead || !lowered {
		t.Errorf("quota read at startup: %t; seen lowered: %t", quotaRead, lowered)
	}
	l.checkQuotas(t, pod, steady)
	l.checkMarks(t, pod, want)
	time.Sleep(time.Second) // For a write too many to show: a retry loop begins at a tenth of a second.
	eventually(t, "one event", func(ctx context.Context) (bool, string) {
		events := l.events(ctx, t, pod)
		return len(events) == 1 && strings.HasPrefix(events[0], "Normal CPULowered "+want.says), strings.Join(events, "\n")
	})
	if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/resize 200", "patch pods/status 200"}; !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
	return pod
}

// statuses are those of all containers, as plan.Containers has them.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// checkQuota reads what the kernel grants the container and the pod.
func (l lab) checkQuota(t *testing.T, pod *corev1.Pod, want plan.MilliCPU) {
	t.Helper()
	l.checkQuotas(t, pod, map[string]plan.MilliCPU{"app": want})
}

// checkQuotas reads what the kernel grants each container that runs, and the pod: as much as all of these together.
func (l lab) checkQuotas(t *testing.T, pod *corev1.Pod, want map[string]plan.MilliCPU) {
	t.Helper()
	got, running := map[string]plan.MilliCPU{}, map[string]plan.MilliCPU{}
	for _, status := range statuses(pod) {
		if status.State.Running == nil {
			continue // An init container that has ended has no cgroup any more.
		}
		got[status.Name], got["the pod"] = l.granted(t, pod, status, got["the pod"])
		running[status.Name] = want[status.Name]
		running["the pod"] += want[status.Name]
	}
	if len(running) == 0 || !maps.Equal(got, running) {
		t.Errorf("cgroup quotas %v, not %v", got, running)
	}
}

// granted is the CPU of a container, and of its pod, in their cgroups. A simulated node has none: there it is what the node
// says in the container's status, and the sum so far.
func (l lab) granted(t *testing.T, pod *corev1.Pod, status corev1.ContainerStatus, sum plan.MilliCPU) (container, group plan.MilliCPU) {
	t.Helper()
	if l.cluster.Node() == cluster.Simulated {
		container = plan.MilliCPU(status.Resources.Limits.Cpu().MilliValue())
		return container, sum + container
	}
	quota, groupQuota, err := l.cluster.CPUQuota(pod.UID, status.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	return plan.MilliCPU(quota.MilliCPU()), plan.MilliCPU(groupQuota.MilliCPU())
}

// checkMarks looks at all that admission and the resizer leave on a pod.
func (l lab) checkMarks(t *testing.T, pod *corev1.Pod, want life) {
	t.Helper()
	if pod.Labels[l.keys.Managed] != "true" {
		t.Errorf("labels %v", pod.Labels)
	}
	if got := pod.Annotations[l.keys.Resolved]; got != want.cpu.String() {
		t.Errorf("resolved is %s, not %s", got, want.cpu)
	}
	for _, c := range plan.Containers(&pod.Spec) {
		var policy []corev1.ContainerResizePolicy
		if cpu := want.cpu[c.Name]; cpu.Steady < cpu.Startup {
			policy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}}
		}
		if !slices.Equal(c.ResizePolicy, policy) {
			t.Errorf("%s: resize policy %v, not %v", c.Name, c.ResizePolicy, policy)
		}
	}
	status := l.keys.StatusOf(pod)
	if status.Phase != plan.Steady || status.Reason != plan.CPULowered || status.ReleasedMilliCPU != want.cpu.Released() ||
		status.StartupSeconds < 1 || status.StartupSeconds > patience.Seconds() {
		t.Errorf("status %+v", status)
	}
	condition := conditionOf(pod, l.keys.Steady)
	if condition.Status != corev1.ConditionTrue || condition.Reason != string(plan.CPULowered) ||
		!strings.HasPrefix(condition.Message, want.says) || condition.LastTransitionTime.IsZero() {
		t.Errorf("condition %+v", condition)
	}
}

func conditionOf(pod *corev1.Pod, name corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == name {
			return c
		}
	}
	return corev1.PodCondition{}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
