package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"pod-resizer/resizer/plan"
)

// What the README says under "Limits", so far as Kubernetes decides it.

func TestAQuotaHasToHoldTheStartupCPU(t *testing.T) {
	t.Parallel()
	l := shared
	namespace := l.namespace(t)
	if _, err := l.client.CoreV1().ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse("100m")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), l.samplePod(nil), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "requested: requests.cpu=200m") {
		t.Errorf("wanted the quota to refuse 200m: %v", err)
	}
}

func TestABarePodsManifestCannotBeAppliedAgain(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.samplePod(nil)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	manifest := []byte(mustJSON(t, pod))
	pod.Namespace = l.namespace(t)
	apply := func() error {
		force := true
		_, err := l.client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.ApplyPatchType, manifest,
			metav1.PatchOptions{FieldManager: "author", Force: &force})
		return err
	}
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	l.awaitCondition(t, pod, plan.CPULowered, "")
	if err := apply(); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "pod updates may not change fields other than") {
		t.Errorf("wanted the API server to refuse it: %v", err)
	}
}

func TestTheKubeletGrantsAtLeast10m(t *testing.T) {
	t.Parallel()
	l := shared
	l.needsRealNode(t, "KWOK grants what is asked for")
	pod := l.create(t, l.samplePod(map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"5m"}}}`}))
	pod = l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, app 200m to 5m; Guaranteed")
	l.checkQuota(t, pod, 10)
}
