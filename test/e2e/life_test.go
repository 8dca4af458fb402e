package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/cluster"
)

const (
	resize200 = "patch pods/resize 200"
	status200 = "patch pods/status 200"
)

// crash ends the container's process, which its kubelet then starts anew.
func (l lab) crash(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if l.cluster.Node() == cluster.Simulated {
		l.annotate(t, pod, map[string]string{"simulate.example.com/restarts": "1"})
		return
	}
	// The answer never comes.
	_ = l.client.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name + ":8080").
		SubResource("proxy").Suffix("crash").Do(t.Context()).Error()
}

func (l lab) wantWrites(t *testing.T, pod *corev1.Pod, want ...string) {
	t.Helper()
	if writes := l.writes(t, pod.Namespace, pod.Name); !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
}

func (l lab) wantCPU(t *testing.T, pod *corev1.Pod, cpu plan.MilliCPU) {
	t.Helper()
	if request, limit := cpuOf(pod); request != cpu || limit != cpu || pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("request %s, limit %s, %s; want %s", request, limit, pod.Status.QOSClass, cpu)
	}
}

// resizeTo is what a person does with kubectl.
func (l lab) resizeTo(t *testing.T, pod *corev1.Pod, cpu string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":%q},"limits":{"cpu":%q}}}]}}`, cpu, cpu)
	if _, err := l.client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
		t.Fatal(err)
	}
}

// TestARestartedContainerGetsItsStartupCPUBack, and is lowered again. Without it, a container whose probes do not wait for a
// start at the steady CPU is killed by them for ever (google/kube-startup-cpu-boost #97).
func TestARestartedContainerGetsItsStartupCPUBack(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.awaitCondition(t, l.create(t, l.samplePod(nil)), plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed; startup took")
	l.crash(t, pod)
	boosted := l.awaitCondition(t, pod, plan.Restarted, "Restarted, with the startup CPU again: app 50m to 200m")
	l.wantCPU(t, boosted, startupCPU)
	if boosted.Annotations[l.keys.Resized] != "" || l.keys.StatusOf(boosted).Phase != plan.Boosting {
		t.Errorf("annotations %v", boosted.Annotations)
	}
	again := l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed; startup took")
	l.wantCPU(t, again, steadyCPU)
	if restarts := again.Status.ContainerStatuses[0].RestartCount; restarts != 1 || again.Annotations[l.keys.Resized] != "true" {
		t.Errorf("%d restarts, annotations %v", restarts, again.Annotations)
	}
	l.checkQuota(t, again, steadyCPU)
	l.wantWrites(t, pod, resize200, status200, resize200, status200, resize200, status200)
}

// TestARestartIsNoMatter where its author says so.
func TestARestartIsNoMatter(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.awaitCondition(t, l.create(t, l.samplePod(map[string]string{l.keys.OnRestart: string(plan.Ignore)})), plan.CPULowered, "CPU lowered")
	l.crash(t, pod)
	eventually(t, "started again", func(ctx context.Context) (bool, string) {
		now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		s := now.Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.Started != nil && *s.Started, mustJSON(t, now)
	})
	l.wantWrites(t, pod, resize200, status200)
}

// TestOpportunistic: scheduled with its steady CPU, so that a start never buys a node and a consolidating autoscaler sees what it
// will get (google/kube-startup-cpu-boost #145), and raised in place for the start.
func TestOpportunistic(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.create(t, l.samplePod(map[string]string{l.keys.Boost: string(plan.Opportunistic)}))
	l.wantCPU(t, pod, steadyCPU)
	done := l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed; startup took")
	l.wantCPU(t, done, steadyCPU)
	l.checkQuota(t, done, steadyCPU)
	l.wantWrites(t, pod, resize200, resize200, status200)
}

// TestNoNodeHasRoom: a boosted pod that fits no node would wait for ever (google/kube-startup-cpu-boost #36). After a while it
// starts with its steady CPU.
func TestNoNodeHasRoom(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.create(t, l.samplePod(map[string]string{l.keys.StartupCPU: "2000", l.keys.FitAfterSeconds: "2"}))
	l.wantCPU(t, pod, 2_000_000)
	done := l.awaitCondition(t, pod, plan.NoRoom, "There was no room for the startup CPU, so the start goes on with the steady CPU, app 2k to 50m; Guaranteed")
	l.wantCPU(t, done, steadyCPU)
	if done.Spec.NodeName == "" || done.UID != pod.UID {
		t.Errorf("not the same pod, or not scheduled: %s", mustJSON(t, done))
	}
	l.wantWrites(t, pod, resize200, status200)
	eventually(t, "an event that says why", func(ctx context.Context) (bool, string) {
		events := l.events(ctx, t, pod)
		return slices.ContainsFunc(events, func(e string) bool {
			return strings.HasPrefix(e, "Warning DoesNotFit No node has had room for the startup CPU in 2s: starting with the steady CPU, app 2k to 50m")
		}), strings.Join(events, "\n")
	})
}

// TestDeadline: a pod that never starts would be boosted for ever (google/kube-startup-cpu-boost #130).
func TestDeadline(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.samplePod(map[string]string{l.keys.DeadlineSeconds: "3", "simulate.example.com/startup": "1h"})
	pod.Spec.Containers[0].StartupProbe.HTTPGet.Path = "/never"
	created := l.create(t, pod)
	done := l.awaitCondition(t, created, plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed")
	l.wantCPU(t, done, steadyCPU)
	if s := done.Status.ContainerStatuses[0]; s.Started != nil && *s.Started {
		t.Error("it has started")
	}
	l.wantWrites(t, created, resize200, status200)
}

// TestAnotherSteadyCPU: in the annotations of a running pod.
func TestAnotherSteadyCPU(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.awaitCondition(t, l.create(t, l.samplePod(nil)), plan.CPULowered, "CPU lowered, app 200m to 50m")
	l.annotate(t, pod, map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"60m"}}}`})
	done := l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, app 200m to 60m")
	l.wantCPU(t, done, 60)
	l.wantWrites(t, pod, resize200, status200, resize200, status200)
}

// TestWhatSomebodyElseHasSetStays: two controllers that fight over the CPU would never end.
func TestWhatSomebodyElseHasSetStays(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.awaitCondition(t, l.create(t, l.samplePod(nil)), plan.CPULowered, "CPU lowered, app 200m to 50m")
	l.resizeTo(t, pod, "100m")
	l.wantCPU(t, l.awaitCondition(t, pod, plan.SetByOthers, `container "app" has 100m, and was left with 50m: something else set it`), 100)
	l.resizeTo(t, pod, "50m")
	l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, app 200m to 50m")
	l.wantWrites(t, pod, resize200, status200, status200, status200)
}

// TestOptingOut: what pod-resizer has written goes, and the CPU stays what it is.
func TestOptingOut(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		cpu         plan.MilliCPU
		writes      []string
	}{
		"while it starts": {map[string]string{shared.keys.Trigger: string(plan.Delay), shared.keys.DelaySeconds: "3600", shared.keys.ProtectStartup: "true"}, startupCPU, []string{status200}},
		"when steady":     {nil, steadyCPU, []string{resize200, status200, status200}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := shared
			pod := l.create(t, l.samplePod(c.annotations))
			if c.annotations == nil {
				l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered")
			}
			l.annotate(t, pod, map[string]string{l.keys.Enabled: "false"})
			eventually(t, "nothing of pod-resizer's is left", func(ctx context.Context) (bool, string) {
				now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
				if err != nil {
					return false, err.Error()
				}
				left := conditionOf(now, l.keys.Steady).Type != ""
				for _, key := range []string{l.keys.Resized, l.keys.Status, l.keys.Guarded, "karpenter.sh/do-not-disrupt"} {
					_, present := now.Annotations[key]
					left = left || present
				}
				request, limit := cpuOf(now)
				return !left && request == c.cpu && limit == c.cpu, mustJSON(t, now)
			})
			l.wantWrites(t, pod, c.writes...)
		})
	}
}
