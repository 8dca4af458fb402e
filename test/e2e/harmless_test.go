package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/deploy"
)

// A webhook may stand in the way of a whole cluster. This one does not.

// ownNamespaces are those where admission does nothing.
func ownNamespaces() []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, deploy.Namespace}
}

// restricted is a pod that pod-resizer's own namespace takes.
func (l lab) restricted() *corev1.Pod {
	pod := l.samplePod(nil)
	yes, no, user := true, false, int64(65532)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &user, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	return pod
}

// TestOwnNamespaces: in the cluster's own namespaces and in pod-resizer's, no pod waits for pod-resizer. Reported to KSCB as #27: a
// webhook that intercepted kube-system and itself, so that the cluster could not start.
func TestOwnNamespaces(t *testing.T) {
	t.Parallel()
	l := shared
	for _, namespace := range ownNamespaces() {
		t.Run("admission leaves "+namespace+" alone", func(t *testing.T) {
			wrote := l.restricted()
			wrote.Name = "left-alone"
			pod, warned, err := l.try(t, namespace, wrote)
			if err != nil {
				t.Fatal(err)
			}
			checkWarnings(t, warned, nil)
			if !asWritten(pod, wrote) {
				t.Errorf("changed: %s", mustJSON(t, pod))
			}
			if a := l.admission(t, namespace, pod.Name); len(a.mutated) > 0 || a.ignored {
				t.Errorf("the webhook was called: %+v", a)
			}
		})
	}
	// The resizer knows no namespaces: a pod of these is one that admission has not seen.
	for _, c := range []struct {
		name       string
		guaranteed bool
		reason     plan.Reason
		says       string
	}{
		{"the resizer lowers a Guaranteed pod in kube-system", true, plan.CPULowered, "CPU lowered; Guaranteed"},
		{"the resizer tells a Burstable pod in kube-system why not", false, plan.QoSWouldChange, "The pod was created Burstable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pod := l.samplePod(nil)
			pod.Name, pod.GenerateName = "", "e2e-"
			if c.guaranteed {
				pod.Spec.Containers[0].Resources.Requests = pod.Spec.Containers[0].Resources.Limits
			}
			pods := l.client.CoreV1().Pods(metav1.NamespaceSystem)
			created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := pods.Delete(context.Background(), created.Name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			l.awaitCondition(t, created, c.reason, c.says)
		})
	}
}

// TestNoReplica: with pod-resizer gone and its webhooks still there, pods and workloads are created as their authors wrote them:
// a cluster can start from zero. Reported to KSCB as #27. It is not parallel to any other test, for it scales pod-resizer to 0.
func TestNoReplica(t *testing.T) {
	l := shared
	namespace := l.namespace(t)
	var created *corev1.Pod
	t.Run("while it is gone", func(t *testing.T) {
		t.Cleanup(func() {
			if err := deploy.Scale(context.Background(), l.cluster, 2); err != nil {
				t.Error(err)
			}
		})
		if err := deploy.Scale(t.Context(), l.cluster, 0); err != nil {
			t.Fatal(err)
		}
		client, warned := l.withWarnings(t)
		wrote := l.samplePod(nil)
		var err error
		if created, err = client.CoreV1().Pods(namespace).Create(t.Context(), wrote, metav1.CreateOptions{}); err != nil {
			t.Fatalf("denied: %v", err)
		}
		if !asWritten(created, wrote) {
			t.Errorf("changed: %s", mustJSON(t, created))
		}
		if a := l.admission(t, namespace, created.Name); !a.ignored {
			t.Errorf("the audit log has %+v, not the webhook's failure", a)
		}
		bad := l.samplePod(map[string]string{l.keys.Trigger: "Started"}) // Whoever answered would warn.
		replicas := int32(0)
		if _, err := client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "sample"},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: bad.Labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: bad.Labels, Annotations: bad.Annotations}, Spec: bad.Spec},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Errorf("denied: %v", err)
		}
		checkWarnings(t, warned.all, nil)
		for _, own := range ownNamespaces() {
			pod := l.restricted()
			pod.Name = "from-zero"
			if _, _, err := l.try(t, own, pod); err != nil {
				t.Errorf("%s: denied: %v", own, err)
			}
			if a := l.admission(t, own, pod.Name); a.ignored {
				t.Errorf("%s: the API server has waited for pod-resizer", own)
			}
		}
	})
	// Somebody else's pod, once pod-resizer is back: it says what it cannot do.
	l.awaitCondition(t, created, plan.QoSWouldChange, "The pod was created Burstable, and the steady CPU would make it Guaranteed")
}

// TestAnErrorDeniesNothing: pod-resizer answers with an error, and the pod is created as its author wrote it. (A webhook that
// answers an error with allowed: false denies pods even with failurePolicy Ignore.) What brings about an error is a pod that is
// within the API server's bounds, and several times as long in JSON; other errors are in webhook/server_test.go.
func TestAnErrorDeniesNothing(t *testing.T) {
	t.Parallel()
	l := shared
	config := rest.CopyConfig(l.config)
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const failed = `pod_resizer_admission_reviews_total{outcome="error",webhook="mutate"}`
	before := l.metric(t, failed)
	namespace, wrote := l.namespace(t), l.samplePod(nil)
	wrote.Spec.Containers[0].Args = []string{strings.Repeat("<", 2<<20)} // Each is six bytes in JSON.
	pod, err := client.CoreV1().Pods(namespace).Create(t.Context(), wrote, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatalf("denied: %v", err)
	}
	if !asWritten(pod, wrote) {
		t.Errorf("changed: %v, %v, %s", pod.Labels, pod.Annotations, mustJSON(t, pod.Spec.Containers[0].Resources))
	}
	if a := l.admission(t, namespace, pod.Name); !a.ignored {
		t.Errorf("the audit log has %+v, not the webhook's failure", a)
	}
	// Where the API server has lost patience first, the answer comes later.
	eventually(t, failed+" has risen", func(context.Context) (bool, string) {
		now := l.metric(t, failed) //nolint:contextcheck // It takes that of the test.
		return now > before, fmt.Sprint(now)
	})
}
