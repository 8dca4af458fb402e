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
)

// awaitCondition waits until the pod's condition Steady has a reason and a message that begins so.
func (l lab) awaitCondition(t *testing.T, pod *corev1.Pod, reason plan.Reason, message string) *corev1.Pod {
	t.Helper()
	var now *corev1.Pod
	eventually(t, string(reason), func(ctx context.Context) (bool, string) {
		var err error
		if now, err = l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return false, err.Error()
		}
		c := conditionOf(now, l.keys.Steady)
		return c.Reason == string(reason) && strings.HasPrefix(c.Message, message), mustJSON(t, now)
	})
	return now
}

func (l lab) create(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := l.client.CoreV1().Pods(l.namespace(t)).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// annotate opts a running pod in, which admission therefore has not seen.
func (l lab) annotate(t *testing.T, pod *corev1.Pod, annotations map[string]string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":%s}}`, mustJSON(t, annotations))
	if _, err := l.client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func cpuOf(pod *corev1.Pod) (request, limit plan.MilliCPU) {
	r := pod.Spec.Containers[0].Resources
	return plan.MilliCPU(r.Requests.Cpu().MilliValue()), plan.MilliCPU(r.Limits.Cpu().MilliValue())
}

// TestRefusedByALimitRange: the API server's reason is on the pod, written once however often the resize is tried, and the
// resize happens when the LimitRange is gone.
func TestRefusedByALimitRange(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.create(t, l.samplePod(map[string]string{l.keys.Trigger: string(plan.Delay), l.keys.DelaySeconds: "1"}))
	ranges := l.client.CoreV1().LimitRanges(pod.Namespace)
	if _, err := ranges.Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "at-least"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Min: corev1.ResourceList{corev1.ResourceCPU: *plan.MilliCPU(100).Quantity()},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused := l.awaitCondition(t, pod, plan.APIRefused, "")
	condition := conditionOf(refused, l.keys.Steady)
	if condition.Status != corev1.ConditionFalse || !strings.Contains(condition.Message, "minimum cpu usage per Container is 100m, but request is 50m") ||
		l.keys.StatusOf(refused).Phase != plan.Refused {
		t.Errorf("condition %+v, status %+v", condition, l.keys.StatusOf(refused))
	}
	eventually(t, "several tries", func(context.Context) (bool, string) {
		writes := l.writes(t, pod.Namespace, pod.Name)
		return len(writes) >= 4, strings.Join(writes, ", ")
	})
	if writes := l.writes(t, pod.Namespace, pod.Name); count(writes, "patch pods/status 200") != 1 {
		t.Errorf("the refusal was written more than once: %q", writes)
	}
	if err := ranges.Delete(t.Context(), "at-least", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	steady := l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, app 200m to 50m; Guaranteed")
	l.checkQuota(t, steady, steadyCPU)
	if events := l.events(t.Context(), t, pod); len(events) > 2 {
		t.Errorf("more than one event for the refusal and one for the end: %q", events)
	}
}

// TestOptedInWhileRunning: admission has not seen the pod. A Guaranteed one is lowered all the same; one whose QoS class
// the resize would change is left alone, and told why.
func TestOptedInWhileRunning(t *testing.T) {
	optIn := func(l lab) (*corev1.Pod, map[string]string) {
		pod := l.samplePod(nil)
		annotations := pod.Annotations
		pod.Annotations = nil
		return pod, annotations
	}
	t.Run("Guaranteed", func(t *testing.T) {
		t.Parallel()
		l := shared
		pod, annotations := optIn(l)
		pod.Spec.Containers[0].Resources.Requests = pod.Spec.Containers[0].Resources.Limits
		pod = l.create(t, pod)
		l.annotate(t, pod, annotations)
		steady := l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered; Guaranteed")
		l.checkQuota(t, steady, steadyCPU)
		if request, limit := cpuOf(steady); request != steadyCPU || limit != steadyCPU {
			t.Errorf("request %s, limit %s", request, limit)
		}
	})
	t.Run("Burstable", func(t *testing.T) {
		t.Parallel()
		l := shared
		pod, annotations := optIn(l)
		pod = l.create(t, pod)
		l.annotate(t, pod, annotations)
		skipped := l.awaitCondition(t, pod, plan.QoSWouldChange, "The pod was created Burstable, and the steady CPU would make it Guaranteed")
		if request, limit := cpuOf(skipped); request != steadyCPU || limit != startupCPU {
			t.Errorf("request %s, limit %s", request, limit)
		}
		if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/status 200"}; !slices.Equal(writes, want) {
			t.Errorf("the product wrote %q, not %q", writes, want)
		}
	})
}

// TestNothingToLower: startup and steady CPU are the same.
func TestNothingToLower(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.create(t, l.samplePod(map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"0.2"}}}`}))
	l.awaitCondition(t, pod, plan.NothingToLower, "Startup and steady CPU are the same; Guaranteed")
	if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/status 200"}; !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
}

// TestLoweredBySomebodyElse: a person takes a starting pod below its steady CPU; it is left alone.
func TestLoweredBySomebodyElse(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.create(t, l.samplePod(map[string]string{l.keys.Trigger: string(plan.Delay), l.keys.DelaySeconds: "3600"}))
	eventually(t, "the container runs", func(ctx context.Context) (bool, string) {
		now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return len(now.Status.ContainerStatuses) == 1 && now.Status.ContainerStatuses[0].State.Running != nil, mustJSON(t, now)
	})
	l.resizeTo(t, pod, "30m")
	skipped := l.awaitCondition(t, pod, plan.BelowSteady, `container "app" has 30m, less than its steady CPU 50m`)
	if request, limit := cpuOf(skipped); request != 30 || limit != 30 {
		t.Errorf("request %s, limit %s", request, limit)
	}
}

func count(all []string, one string) int {
	n := 0
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}
