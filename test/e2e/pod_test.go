package e2e

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/deploy"
)

// The CPU of all test pods.
const (
	startupCPU plan.MilliCPU = 200
	steadyCPU  plan.MilliCPU = 50
)

// samplePod is an opted-in pod of the sample workload, written as teams write it: request below limit. It burns 0.3 s of CPU
// before it answers: 1.5 s at its startup CPU.
func (l lab) samplePod(annotations map[string]string) *corev1.Pod {
	healthz := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}
	all := map[string]string{
		l.keys.Enabled:         "true",
		l.keys.SteadyResources: `{"app":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}`,
	}
	maps.Copy(all, annotations)
	grace := int64(1)
	memory := resource.MustParse("32Mi")
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sample", Labels: map[string]string{"app": "sample"}, Annotations: all},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			DNSPolicy:                     corev1.DNSDefault,
			Containers: []corev1.Container{{
				Name: "app", Image: deploy.SampleImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"-burn", "300ms"},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: *steadyCPU.Quantity(), corev1.ResourceMemory: memory},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: *startupCPU.Quantity(), corev1.ResourceMemory: memory},
				},
				StartupProbe:   &corev1.Probe{ProbeHandler: healthz, PeriodSeconds: 1, FailureThreshold: 60},
				ReadinessProbe: &corev1.Probe{ProbeHandler: healthz, PeriodSeconds: 1, InitialDelaySeconds: 2},
			}},
		},
	}
}
