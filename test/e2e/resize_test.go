package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"pod-resizer/resizer/plan"
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
	for kind, create := range owners() {
		for i, trigger := range triggers {
			if kind != "Pod" && kind != "Deployment" && i > 0 {
				continue // The resizer looks at pods only: one trigger shows that the kind makes no difference.
			}
			t.Run(kind+"/"+trigger.name, func(t *testing.T) {
				t.Parallel()
				l := shared
				namespace := l.namespace(t)
				// Watching begins first, so that no state of the pod is missed.
				watcher, err := l.client.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer watcher.Stop()
				if err := create(t.Context(), l.client, namespace, l.samplePod(trigger.annotations)); err != nil {
					t.Fatal(err)
				}
				l.checkLife(t, watcher, trigger.over)
			})
		}
	}
}

// observation is what Kubernetes reports of the container, from which over says whether its startup is over.
type observation struct {
	corev1.ContainerStatus
	now          time.Time
	firstStarted time.Time // When it was first seen with started true.
}

// checkLife follows one pod from its creation to its steady CPU and checks every promise on the way.
func (l lab) checkLife(t *testing.T, watcher watch.Interface, over func(observation) bool) {
	t.Helper()
	var pod *corev1.Pod
	var containerID string
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
			cpu := pod.Spec.Containers[0].Resources
			request, limit := plan.MilliCPU(cpu.Requests.Cpu().MilliValue()), plan.MilliCPU(cpu.Limits.Cpu().MilliValue())
			switch {
			case request != limit:
				t.Fatalf("request %s, limit %s", request, limit)
			case first && limit != startupCPU:
				t.Fatalf("created at %s, not at its startup CPU", limit)
			case pod.Status.QOSClass != corev1.PodQOSGuaranteed:
				t.Fatalf("QoS class %s", pod.Status.QOSClass)
			}
			if len(pod.Status.ContainerStatuses) == 0 {
				continue
			}
			status := pod.Status.ContainerStatuses[0]
			if status.RestartCount != 0 || containerID != "" && status.ContainerID != containerID {
				t.Fatalf("restarted: container %s, then %s, restarts %d", containerID, status.ContainerID, status.RestartCount)
			}
			containerID = status.ContainerID
			if firstStarted.IsZero() && status.Started != nil && *status.Started {
				firstStarted = time.Now()
			}
			if limit == steadyCPU && !lowered {
				lowered = true
				// What the resizer saw is what the API server had before this event; startup must have been over in it.
				if status.State.Running == nil || !over(observation{status, time.Now(), firstStarted}) {
					t.Fatalf("lowered before its startup was over: %s", mustJSON(t, status))
				}
			}
			if limit == startupCPU && status.State.Running != nil && !quotaRead {
				quotaRead = true
				l.checkQuota(t, pod, startupCPU)
			}
			done = pod.Annotations[l.keys.Resized] == "true"
		}
	}
	if !quotaRead || !lowered {
		t.Errorf("quota read at startup: %t; seen lowered: %t", quotaRead, lowered)
	}
	l.checkQuota(t, pod, steadyCPU)
	l.checkMarks(t, pod)
	// Time for a write too many, or an event of a moment ago, to show.
	eventually(t, "one event", func(ctx context.Context) (bool, string) {
		events := l.events(ctx, t, pod)
		return len(events) == 1 && strings.HasPrefix(events[0], "Normal CPULowered CPU lowered, app 200m to 50m; Guaranteed"),
			strings.Join(events, "\n")
	})
	if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/resize 200", "patch pods/status 200"}; !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
}

// checkQuota reads what the kernel grants the container and the pod.
func (l lab) checkQuota(t *testing.T, pod *corev1.Pod, want plan.MilliCPU) {
	t.Helper()
	container, group, err := l.cluster.CPUQuota(pod.UID, pod.Status.ContainerStatuses[0].ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	if container.MilliCPU() != int64(want) || group.MilliCPU() != int64(want) {
		t.Errorf("cgroup quota of the container %dm, of the pod %dm, not %s", container.MilliCPU(), group.MilliCPU(), want)
	}
}

// checkMarks looks at all that admission and the resizer leave on a pod.
func (l lab) checkMarks(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if pod.Labels[l.keys.Managed] != "true" {
		t.Errorf("labels %v", pod.Labels)
	}
	if got, want := pod.Annotations[l.keys.Resolved], `{"app":{"startupMilliCPU":200,"steadyMilliCPU":50}}`; got != want {
		t.Errorf("resolved is %s, not %s", got, want)
	}
	want := []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}}
	if got := pod.Spec.Containers[0].ResizePolicy; !slices.Equal(got, want) {
		t.Errorf("resize policy %v", got)
	}
	status := l.keys.StatusOf(pod)
	if status.Phase != plan.Steady || status.Reason != plan.CPULowered || status.ReleasedMilliCPU != 150 ||
		status.StartupSeconds < 1 || status.StartupSeconds > patience.Seconds() {
		t.Errorf("status %+v", status)
	}
	condition := conditionOf(pod, l.keys.Steady)
	if condition.Status != corev1.ConditionTrue || condition.Reason != string(plan.CPULowered) ||
		!strings.Contains(condition.Message, "app 200m to 50m") || condition.LastTransitionTime.IsZero() {
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
