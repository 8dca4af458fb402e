package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/deploy"
)

// TestDenyWaitsForTheSidecar: with --on-invalid=deny, a container that an annotation names and that is injected after pod-resizer's
// first look is no reason to refuse the pod, as it is none to refuse the workload: README, "a container from whatever injects
// sidecars".
func TestDenyWaitsForTheSidecar(t *testing.T) {
	l := shared
	namespace := l.namespace(t)
	pod := l.samplePod(map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"50m"}},"proxy":{"limits":{"cpu":"10m"}}}`})
	l.injector(t, namespace, nil, map[string]injection{pod.Name: last(equal("proxy"))})
	if err := deploy.Process(t.Context(), l.cluster, "--on-invalid=deny"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := deploy.Process(context.Background(), l.cluster); err != nil {
			t.Error(err)
		}
	})
	created, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if created.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("created as %s", mustJSON(t, created))
	}
}

// TestASidecarThatGoesFirst: a value without a container's name is meant for the container that was first when its author wrote it,
// and when pod-resizer saw the pod first; not for a sidecar that is put before it in between.
func TestASidecarThatGoesFirst(t *testing.T) {
	t.Parallel()
	l := shared
	namespace := l.namespace(t)
	pod := l.samplePod(map[string]string{l.keys.SteadyCPU: "50m"})
	delete(pod.Annotations, l.keys.SteadyResources)
	l.injector(t, namespace, nil, map[string]injection{pod.Name: first(equal("proxy"))})
	created, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := plan.Resolved{"app": {Startup: startupCPU, Steady: steadyCPU}, "proxy": {Startup: 100, Steady: 100}}.String()
	if got := created.Annotations[l.keys.Resolved]; got != want {
		t.Errorf("resolved is %s, not %s", got, want)
	}
}

// TestRaisedForNothing: a container that no annotation names is made equal only where that makes the pod Guaranteed. A sidecar
// without resources, injected afterwards, keeps the pod from it.
func TestRaisedForNothing(t *testing.T) {
	t.Parallel()
	l := shared
	namespace := l.namespace(t)
	pod := l.samplePod(nil)
	pod.Spec.Containers = append(pod.Spec.Containers, helper("agent"))
	l.injector(t, namespace, nil, map[string]injection{pod.Name: last(corev1.Container{Name: "proxy", Image: deploy.SampleImage})})
	created, err := l.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if agent := created.Spec.Containers[1]; agent.Resources.Requests.Cpu().String() != "20m" || created.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("the pod is %s, and agent has %s", created.Status.QOSClass, mustJSON(t, agent.Resources))
	}
}
