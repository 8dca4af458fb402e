package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/test/deploy"
)

// TestLeaderIsKilled: the leader dies of SIGKILL while a pod starts, so that nothing releases its lease; the other replica
// takes over and finishes the job, knowing nothing but what is on the pod.
func TestLeaderIsKilled(t *testing.T) {
	l := shared
	leader := func(ctx context.Context) string {
		lease, err := l.client.CoordinationV1().Leases(deploy.Namespace).Get(ctx, deploy.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	namespace := l.namespace(t)
	pod, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), l.samplePod(nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := leader(t.Context())
	victim, err := l.client.CoreV1().Pods(deploy.Namespace).Get(t.Context(), first, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cluster.Kill(victim.UID, victim.Status.ContainerStatuses[0].ContainerID); err != nil {
		t.Fatal(err)
	}
	// For good: its container would start again under the same name, and go on leading.
	now := int64(0)
	if err := l.client.CoreV1().Pods(deploy.Namespace).Delete(t.Context(), first, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "steady under another leader", func(ctx context.Context) (bool, string) {
		pod, err = l.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		second := leader(ctx)
		return conditionOf(pod, l.keys.Steady).Status == corev1.ConditionTrue && second != "" && second != first,
			"leader " + second + "; " + mustJSON(t, pod)
	})
	l.checkQuota(t, pod, steadyCPU)
	if err := deploy.AwaitProduct(t.Context(), l.cluster); err != nil {
		t.Error(err)
	}
}
