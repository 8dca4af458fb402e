package e2e

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"pod-resizer/test/cluster"
)

// owners are the kinds of workload that make pods, each with how to create one of a pod.
func (l lab) owners() map[string]func(ctx context.Context, namespace string, pod *corev1.Pod) error {
	template := func(pod *corev1.Pod) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
	}
	meta := func(pod *corev1.Pod) metav1.ObjectMeta { return metav1.ObjectMeta{Name: pod.Name} }
	selector := func(pod *corev1.Pod) *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: pod.Labels} }
	deployment := func(pod *corev1.Pod) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: meta(pod), Spec: appsv1.DeploymentSpec{Selector: selector(pod), Template: template(pod)}}
	}
	return map[string]func(context.Context, string, *corev1.Pod) error{
		"Pod": func(ctx context.Context, namespace string, pod *corev1.Pod) error {
			_, err := l.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		},
		"Deployment": func(ctx context.Context, namespace string, pod *corev1.Pod) error {
			_, err := l.client.AppsV1().Deployments(namespace).Create(ctx, deployment(pod), metav1.CreateOptions{})
			return err
		},
		"StatefulSet": func(ctx context.Context, namespace string, pod *corev1.Pod) error {
			_, err := l.client.AppsV1().StatefulSets(namespace).Create(ctx, &appsv1.StatefulSet{
				ObjectMeta: meta(pod), Spec: appsv1.StatefulSetSpec{Selector: selector(pod), Template: template(pod)},
			}, metav1.CreateOptions{})
			return err
		},
		"DaemonSet": func(ctx context.Context, namespace string, pod *corev1.Pod) error {
			if l.cluster.Node() == cluster.Simulated { // Of which there are several.
				pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "simulated-0"}
			}
			_, err := l.client.AppsV1().DaemonSets(namespace).Create(ctx, &appsv1.DaemonSet{
				ObjectMeta: meta(pod), Spec: appsv1.DaemonSetSpec{Selector: selector(pod), Template: template(pod)},
			}, metav1.CreateOptions{})
			return err
		},
		"Job": func(ctx context.Context, namespace string, pod *corev1.Pod) error {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			_, err := l.client.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{
				ObjectMeta: meta(pod), Spec: batchv1.JobSpec{Template: template(pod)},
			}, metav1.CreateOptions{})
			return err
		},
		// It needs deploy.ArgoRollouts. Argo's own Go types would bring along another Kubernetes; but for its strategy, a
		// Rollout is written as a Deployment.
		"Rollout": func(ctx context.Context, namespace string, pod *corev1.Pod) error {
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(deployment(pod))
			if err != nil {
				return err
			}
			if err := unstructured.SetNestedMap(object, map[string]any{"canary": map[string]any{}}, "spec", "strategy"); err != nil {
				return err
			}
			rollout := &unstructured.Unstructured{Object: object}
			rollouts := schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}
			rollout.SetGroupVersionKind(rollouts.GroupVersion().WithKind("Rollout"))
			client, err := dynamic.NewForConfig(l.config)
			if err != nil {
				return err
			}
			_, err = client.Resource(rollouts).Namespace(namespace).Create(ctx, rollout, metav1.CreateOptions{})
			return err
		},
	}
}

// owner is the kind of workload that made a pod, itself or through a ReplicaSet.
func (l lab) owner(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	owner := metav1.GetControllerOf(pod)
	if owner != nil && owner.Kind == "ReplicaSet" {
		replicaSet, err := l.client.AppsV1().ReplicaSets(pod.Namespace).Get(t.Context(), owner.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		owner = metav1.GetControllerOf(replicaSet)
	}
	if owner == nil {
		return "Pod"
	}
	return owner.Kind
}
