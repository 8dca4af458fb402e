package e2e

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
)

const (
	karpenter  = "karpenter.sh/do-not-disrupt"
	autoscaler = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

func (l lab) guarded(pod *corev1.Pod) bool {
	_, kept := pod.Annotations[l.keys.Guarded]
	return kept && pod.Annotations[karpenter] == "true" && pod.Annotations[autoscaler] == "false"
}

// unguarded says whether a pod that was created with do-not-disrupt 5m has what its author wrote, and no more.
func (l lab) unguarded(pod *corev1.Pod) bool {
	_, kept := pod.Annotations[l.keys.Guarded]
	_, other := pod.Annotations[autoscaler]
	return !kept && !other && pod.Annotations[karpenter] == "5m"
}

// TestGuardedWhileStarting: the guards stand until the kubelet has lowered the CPU, and go with the write that says so; see
// checkLife for the number of writes. The runtime is pinned from the start.
func TestGuardedWhileStarting(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.samplePod(map[string]string{l.keys.ProtectStartup: "true", karpenter: "5m", l.keys.PinRuntime: "jvm"})
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "JAVA_TOOL_OPTIONS", Value: "-Xmx16m"}}
	create := func(ctx context.Context, namespace string, pod *corev1.Pod) error {
		created, err := l.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		want := []corev1.EnvVar{{Name: "JAVA_TOOL_OPTIONS", Value: "-Xmx16m -XX:ActiveProcessorCount=1"}}
		if env := created.Spec.Containers[0].Env; !slices.Equal(env, want) || !l.guarded(created) {
			t.Errorf("created with %v and %v", env, created.Annotations)
		}
		return nil
	}
	steady := l.checkLife(t, pod, create, life{
		cpu:  plan.Resolved{"app": {Startup: startupCPU, Steady: steadyCPU}},
		says: "CPU lowered, app 200m to 50m; Guaranteed",
		over: func(o observation) bool { return *o.Started && l.guarded(o.pod) },
	})
	if !l.unguarded(steady) {
		t.Errorf("steady with %v", steady.Annotations)
	}
}

// TestGuardsGoWithoutAnEnd: a pod whose annotations were spoilt keeps its startup CPU, and has to be evictable with it.
func TestGuardsGoWithoutAnEnd(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.create(t, l.samplePod(map[string]string{
		l.keys.ProtectStartup: "true", karpenter: "5m", l.keys.Trigger: string(plan.Delay), l.keys.DelaySeconds: "3600",
	}))
	if !l.guarded(pod) {
		t.Errorf("created with %v", pod.Annotations)
	}
	l.annotate(t, pod, map[string]string{l.keys.DelaySeconds: "soon"})
	if pod = l.awaitCondition(t, pod, plan.InvalidAnnotation, ""); !l.unguarded(pod) {
		t.Errorf("left with %v", pod.Annotations)
	}
}
