package e2e

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// owners are the kinds of workload that make pods, each with how to create one of a pod.
func owners() map[string]func(context.Context, *kubernetes.Clientset, string, *corev1.Pod) error {
	template := func(pod *corev1.Pod) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
	}
	meta := func(pod *corev1.Pod) metav1.ObjectMeta { return metav1.ObjectMeta{Name: pod.Name} }
	selector := func(pod *corev1.Pod) *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: pod.Labels} }
	return map[string]func(context.Context, *kubernetes.Clientset, string, *corev1.Pod) error{
		"Pod": func(ctx context.Context, c *kubernetes.Clientset, namespace string, pod *corev1.Pod) error {
			_, err := c.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		},
		"Deployment": func(ctx context.Context, c *kubernetes.Clientset, namespace string, pod *corev1.Pod) error {
			_, err := c.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
				ObjectMeta: meta(pod), Spec: appsv1.DeploymentSpec{Selector: selector(pod), Template: template(pod)},
			}, metav1.CreateOptions{})
			return err
		},
		"StatefulSet": func(ctx context.Context, c *kubernetes.Clientset, namespace string, pod *corev1.Pod) error {
			_, err := c.AppsV1().StatefulSets(namespace).Create(ctx, &appsv1.StatefulSet{
				ObjectMeta: meta(pod), Spec: appsv1.StatefulSetSpec{Selector: selector(pod), Template: template(pod)},
			}, metav1.CreateOptions{})
			return err
		},
		"DaemonSet": func(ctx context.Context, c *kubernetes.Clientset, namespace string, pod *corev1.Pod) error {
			_, err := c.AppsV1().DaemonSets(namespace).Create(ctx, &appsv1.DaemonSet{
				ObjectMeta: meta(pod), Spec: appsv1.DaemonSetSpec{Selector: selector(pod), Template: template(pod)},
			}, metav1.CreateOptions{})
			return err
		},
		"Job": func(ctx context.Context, c *kubernetes.Clientset, namespace string, pod *corev1.Pod) error {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			_, err := c.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{
				ObjectMeta: meta(pod), Spec: batchv1.JobSpec{Template: template(pod)},
			}, metav1.CreateOptions{})
			return err
		},
	}
}
