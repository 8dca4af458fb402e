package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/deploy"
)

// TestLeaderIsKilled: the leader dies of SIGKILL in the middle of 20 pods, when at least one is untouched and at least one is
// resized but not marked. Nothing releases its lease. The other replica takes over and finishes, knowing nothing but what is
// on the pods, and resizes none twice.
func TestLeaderIsKilled(t *testing.T) {
	l := shared
	l.needsRealNode(t, "it kills a container")
	namespace := l.namespace(t)
	watcher, err := l.client.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	const n = 20
	for i := range n {
		pod := l.samplePod(map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"20m"}}}`})
		pod.Name = fmt.Sprintf("sample-%d", i)
		pod.Spec.Containers[0].Args = []string{"-burn", "20ms"}
		cpu := *plan.MilliCPU(40).Quantity()
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = cpu
		pod.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = cpu
		if _, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	leader := l.leader(t.Context(), t)
	victim, err := l.client.CoreV1().Pods(deploy.Namespace).Get(t.Context(), leader, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	deadline := time.After(patience)
	pods := map[string]*corev1.Pod{}
	// A pod that is only about to be resized may be so by the time the leader is dead: two leave a margin.
	for untouched, unmarked := 0, 0; untouched < 2 || unmarked < 1; untouched, unmarked = l.progress(pods) {
		select {
		case <-deadline:
			t.Fatalf("no moment with pods both untouched and unmarked: %s", mustJSON(t, pods))
		case event := <-watcher.ResultChan():
			if pod, ok := event.Object.(*corev1.Pod); ok {
				pods[pod.Name] = pod
			}
		}
	}
	killed := time.Now()
	if err := l.cluster.Kill(victim.UID, victim.Status.ContainerStatuses[0].ContainerID); err != nil {
		t.Fatal(err)
	}
	list := func(ctx context.Context) map[string]*corev1.Pod {
		all, err := l.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pods := map[string]*corev1.Pod{}
		for i := range all.Items {
			pods[all.Items[i].Name] = &all.Items[i]
		}
		return pods
	}
	untouched, unmarked := l.progress(list(t.Context()))
	if untouched < 1 || unmarked < 1 {
		t.Fatalf("when the leader was dead, %d pods were untouched and %d resized but not marked", untouched, unmarked)
	}
	// For good: its container would start again under the same name, and go on leading.
	now := int64(0)
	if err := l.client.CoreV1().Pods(deploy.Namespace).Delete(t.Context(), leader, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another leader", func(ctx context.Context) (bool, string) {
		next := l.leader(ctx, t)
		return next != "" && next != leader, next
	})
	t.Logf("killed with %d of %d pods untouched and %d resized but not marked; another leader after %s",
		untouched, n, unmarked, time.Since(killed).Round(100*time.Millisecond))
	eventually(t, "all steady", func(ctx context.Context) (bool, string) {
		pods = list(ctx)
		for _, pod := range pods {
			if conditionOf(pod, l.keys.Steady).Reason != string(plan.CPULowered) {
				return false, mustJSON(t, pod)
			}
		}
		return len(pods) == n, fmt.Sprint(len(pods), " pods")
	})
	for name, pod := range pods {
		l.checkQuota(t, pod, 20)
		if writes := l.writes(t, namespace, name); count(writes, "patch pods/resize 200") != 1 || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: restarts %d, writes %q", name, pod.Status.ContainerStatuses[0].RestartCount, writes)
		}
	}
	if err := deploy.AwaitProduct(t.Context(), l.cluster); err != nil {
		t.Error(err)
	}
}

// leader is the name of the pod that holds the lease.
func (l lab) leader(ctx context.Context, t *testing.T) string {
	t.Helper()
	lease, err := l.client.CoordinationV1().Leases(deploy.Namespace).Get(ctx, deploy.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// progress counts the pods that still have their startup CPU, and those that are resized but not marked.
func (l lab) progress(pods map[string]*corev1.Pod) (untouched, unmarked int) {
	for _, pod := range pods {
		switch _, limit := cpuOf(pod); {
		case limit > 20:
			untouched++
		case pod.Annotations[l.keys.Resized] != "true":
			unmarked++
		}
	}
	return untouched, unmarked
}
