package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/deploy"
)

// TestManyContainers: an init container, a native sidecar and two app containers, of which all but the first are lowered, in
// one resize, when the slowest of them has started. Their order is not that of the alphabet: the API server refuses a patch
// that has containers in another order than the pod.
func TestManyContainers(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.samplePod(map[string]string{l.keys.SteadyResources: `{"agent":{"limits":{"cpu":"30m"}},"app":{"limits":{"cpu":"50m"}},"proxy":{"limits":{"cpu":"20m"}}}`})
	resources := func(request, limit plan.MilliCPU) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: *request.Quantity(), corev1.ResourceMemory: resource.MustParse("16Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: *limit.Quantity(), corev1.ResourceMemory: resource.MustParse("32Mi")},
		}
	}
	container := func(name string, r corev1.ResourceRequirements, args ...string) corev1.Container {
		return corev1.Container{Name: name, Image: deploy.SampleImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: args, Resources: r}
	}
	always := corev1.ContainerRestartPolicyAlways
	proxy := container("proxy", resources(20, 100), "-burn", "10ms", "-listen", ":8081")
	proxy.RestartPolicy = &always
	// -help ends at once, well. Its 100m are what the pod's cgroup keeps at least, as much as the others' steady CPU.
	pod.Spec.InitContainers = []corev1.Container{container("migrate", resources(50, 100), "-help"), proxy}
	pod.Spec.Containers = append(pod.Spec.Containers, container("agent", resources(10, 40), "-burn", "10ms", "-listen", ":8082"))

	pod = l.checkLife(t, pod, l.owners()["Pod"], life{
		cpu: plan.Resolved{
			"migrate": {Startup: 100, Steady: 100}, "proxy": {Startup: 100, Steady: 20},
			"app": {Startup: 200, Steady: 50}, "agent": {Startup: 40, Steady: 30},
		},
		says: "CPU lowered, proxy 100m to 20m, app 200m to 50m, agent 40m to 30m; Guaranteed",
		over: func(o observation) bool {
			migrate, proxy := o.pod.Status.InitContainerStatuses[0], o.pod.Status.InitContainerStatuses[1]
			return migrate.State.Terminated != nil && *proxy.Started && *o.Started
		},
	})
	for _, c := range plan.Containers(&pod.Spec) {
		if request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory(); !request.Equal(*limit) || limit.String() != "32Mi" {
			t.Errorf("%s has memory %s and %s", c.Name, request, limit)
		}
	}
}
