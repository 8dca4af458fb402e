package e2e

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/deploy"
)

// TestManyContainers: an init container, a native sidecar and two app containers, of which the sidecar and one are lowered,
// both in one resize, when the slower of them has started.
func TestManyContainers(t *testing.T) {
	t.Parallel()
	l := shared
	pod := l.samplePod(map[string]string{l.keys.SteadyResources: `{"app":{"limits":{"cpu":"50m"}},"proxy":{"limits":{"cpu":"20m"}}}`})
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
	// -help ends at once, well.
	pod.Spec.InitContainers = []corev1.Container{container("migrate", resources(50, 100), "-help"), proxy}
	pod.Spec.Containers = append(pod.Spec.Containers, container("log", resources(10, 40), "-burn", "10ms", "-listen", ":8082"))
	pod = l.create(t, pod)

	want := map[string][2]plan.MilliCPU{"migrate": {100, 100}, "proxy": {100, 20}, "app": {200, 50}, "log": {40, 40}}
	check := func(pod *corev1.Pod, phase int) {
		t.Helper()
		if pod.Status.QOSClass != corev1.PodQOSGuaranteed {
			t.Errorf("QoS class %s", pod.Status.QOSClass)
		}
		for _, c := range plan.Containers(&pod.Spec) {
			request, limit := c.Resources.Requests.Cpu().MilliValue(), c.Resources.Limits.Cpu().MilliValue()
			if cpu := int64(want[c.Name][phase]); request != cpu || limit != cpu {
				t.Errorf("%s has %dm and %dm, not %dm", c.Name, request, limit, cpu)
			}
			if !c.Resources.Requests.Memory().Equal(*c.Resources.Limits.Memory()) || c.Resources.Limits.Memory().String() != "32Mi" {
				t.Errorf("%s has memory %s and %s", c.Name, c.Resources.Requests.Memory(), c.Resources.Limits.Memory())
			}
		}
	}
	check(pod, 0)
	l.awaitCondition(t, pod, plan.CPULowered, "CPU lowered, proxy 100m to 20m, app 200m to 50m; Guaranteed")
	steady, err := l.client.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(steady, 1)
	for _, s := range slices.Concat(steady.Status.InitContainerStatuses, steady.Status.ContainerStatuses) {
		if s.RestartCount != 0 {
			t.Errorf("%s restarted", s.Name)
		}
		if s.Name == "migrate" {
			continue // It has no cgroup any more.
		}
		quota, _, err := l.cluster.CPUQuota(steady.UID, s.ContainerID)
		if err != nil {
			t.Fatal(err)
		}
		if quota.MilliCPU() != int64(want[s.Name][1]) {
			t.Errorf("cgroup quota of %s: %dm", s.Name, quota.MilliCPU())
		}
	}
	if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/resize 200", "patch pods/status 200"}; !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
}
