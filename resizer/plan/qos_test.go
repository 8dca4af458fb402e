package plan

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sized is a container with requests "cpu memory" and limits "cpu memory"; "-" leaves one out.
func sized(name, requests, limits string) corev1.Container {
	list := func(text string) corev1.ResourceList {
		var cpu, memory string
		if _, err := fmt.Sscan(text, &cpu, &memory); err != nil {
			panic(err)
		}
		all := corev1.ResourceList{}
		for name, amount := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if amount != "-" {
				all[name] = resource.MustParse(amount)
			}
		}
		return all
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}
}

func TestQoS(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	guaranteed := sized("app", "1 1Gi", "1 1Gi")
	sidecar := func(c corev1.Container) corev1.Container {
		c.RestartPolicy = &always
		return c
	}
	type containers = []corev1.Container
	cases := []struct {
		name     string
		spec     corev1.PodSpec
		class    corev1.PodQOSClass
		culprits []string
	}{
		{"no containers", corev1.PodSpec{}, corev1.PodQOSBestEffort, nil},
		{"equal requests and limits", corev1.PodSpec{Containers: containers{guaranteed}}, corev1.PodQOSGuaranteed, nil},
		{"limits alone, whose requests Kubernetes fills in", corev1.PodSpec{Containers: containers{sized("app", "- -", "1 1Gi")}}, corev1.PodQOSGuaranteed, nil},
		{"equal by amount, not by text", corev1.PodSpec{Containers: containers{sized("app", "1000m 1Gi", "1 1024Mi")}}, corev1.PodQOSGuaranteed, nil},
		{"nothing at all", corev1.PodSpec{Containers: containers{sized("app", "- -", "- -")}}, corev1.PodQOSBestEffort, []string{
			`container "app": resources.limits.cpu is not set`, `container "app": resources.limits.memory is not set`,
		}},
		{"zeros are nothing", corev1.PodSpec{Containers: containers{sized("app", "0 0", "0 0")}}, corev1.PodQOSBestEffort, []string{
			`container "app": resources.limits.cpu is 0`, `container "app": resources.limits.memory is 0`,
		}},
		{"no memory limit", corev1.PodSpec{Containers: containers{sized("app", "1 1Gi", "1 -")}}, corev1.PodQOSBurstable, []string{
			`container "app": resources.limits.memory is not set`,
		}},
		{"no memory", corev1.PodSpec{Containers: containers{sized("app", "1 -", "1 -")}}, corev1.PodQOSBurstable, []string{
			`container "app": resources.limits.memory is not set`,
		}},
		{"no CPU", corev1.PodSpec{Containers: containers{sized("app", "- 1Gi", "- 1Gi")}}, corev1.PodQOSBurstable, []string{
			`container "app": resources.limits.cpu is not set`,
		}},
		{"zero CPU", corev1.PodSpec{Containers: containers{sized("app", "0 1Gi", "0 1Gi")}}, corev1.PodQOSBurstable, []string{
			`container "app": resources.limits.cpu is 0`,
		}},
		{"a request of zero below its limit", corev1.PodSpec{Containers: containers{sized("app", "0 1Gi", "1 1Gi")}}, corev1.PodQOSBurstable, []string{
			`container "app": resources.requests.cpu is 0, its limit 1`,
		}},
		{"requests below limits", corev1.PodSpec{Containers: containers{sized("app", "500m 1Gi", "1 2Gi")}}, corev1.PodQOSBurstable, []string{
			`container "app": resources.requests.cpu is 500m, its limit 1`, `container "app": resources.requests.memory is 1Gi, its limit 2Gi`,
		}},
		{"the init container counts", corev1.PodSpec{InitContainers: containers{sized("init", "1 1Gi", "2 1Gi")}, Containers: containers{guaranteed}}, corev1.PodQOSBurstable, []string{
			`container "init": resources.requests.cpu is 1, its limit 2`,
		}},
		{"the native sidecar counts", corev1.PodSpec{InitContainers: containers{sidecar(sized("proxy", "- -", "- -"))}, Containers: containers{guaranteed}}, corev1.PodQOSBurstable, []string{
			`container "proxy": resources.limits.cpu is not set`, `container "proxy": resources.limits.memory is not set`,
		}},
		{"a container with nothing beside one with everything", corev1.PodSpec{Containers: containers{guaranteed, sized("log", "- -", "- -")}}, corev1.PodQOSBurstable, []string{
			`container "log": resources.limits.cpu is not set`, `container "log": resources.limits.memory is not set`,
		}},
		{"an ephemeral container does not count", corev1.PodSpec{
			Containers:          containers{guaranteed},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
		}, corev1.PodQOSGuaranteed, nil},
		{"overhead does not count", corev1.PodSpec{
			Containers: containers{sized("app", "- -", "- -")}, Overhead: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}, corev1.PodQOSBestEffort, []string{
			`container "app": resources.limits.cpu is not set`, `container "app": resources.limits.memory is not set`,
		}},
		{"other resources do not count", corev1.PodSpec{Containers: containers{{Name: "app", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"example.com/gpu": resource.MustParse("1"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")},
		}}}}, corev1.PodQOSBestEffort, []string{
			`container "app": resources.limits.cpu is not set`, `container "app": resources.limits.memory is not set`,
		}},
		{"pod-level resources alone decide", corev1.PodSpec{
			Resources:  &guaranteed.Resources,
			Containers: containers{sized("app", "500m -", "- -")},
		}, corev1.PodQOSGuaranteed, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := c.spec.DeepCopy()
			class, culprits := QoS(&c.spec)
			if class != c.class {
				t.Errorf("got %s, want %s", class, c.class)
			}
			var got []string
			for _, culprit := range culprits {
				got = append(got, culprit.String())
			}
			if !reflect.DeepEqual(got, c.culprits) {
				t.Errorf("culprits:\ngot  %q\nwant %q", got, c.culprits)
			}
			if !reflect.DeepEqual(&c.spec, before) {
				t.Error("the spec was changed")
			}
		})
	}
}

// TestQoSAgreesWithKubernetes compares the class of every pod of one init and one app container, whose requests and
// limits are each missing, 0, 1 or 2, with what Kubernetes says.
func TestQoSAgreesWithKubernetes(t *testing.T) {
	var all []corev1.Container
	amounts := []string{"-", "0", "1", "2"}
	for _, cpuRequest := range amounts {
		for _, cpuLimit := range amounts {
			for _, memoryRequest := range amounts {
				for _, memoryLimit := range amounts {
					all = append(all, sized("app", cpuRequest+" "+memoryRequest, cpuLimit+" "+memoryLimit))
				}
			}
		}
	}
	for i := range all {
		for j := range all {
			spec := corev1.PodSpec{InitContainers: all[i : i+1], Containers: all[j : j+1]}
			class, culprits := QoS(&spec)
			if want := kubernetesQoS(&all[i], &all[j]); class != want {
				t.Errorf("init %v, app %v: got %s, Kubernetes says %s", all[i].Resources, all[j].Resources, class, want)
			}
			if (class == corev1.PodQOSGuaranteed) != (len(culprits) == 0) {
				t.Errorf("init %v, app %v: %s with culprits %v", all[i].Resources, all[j].Resources, class, culprits)
			}
		}
	}
}

// kubernetesQoS is ComputePodQOS of pkg/apis/core/helper/qos of Kubernetes 1.37, without pod-level resources, after the
// defaulting of requests in pkg/apis/core/v1/defaults.go.
func kubernetesQoS(containers ...*corev1.Container) corev1.PodQOSClass {
	var class corev1.PodQOSClass
	for _, c := range containers {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit := c.Resources.Limits[name]
			request, requested := c.Resources.Requests[name]
			if !requested {
				request = limit
			}
			of := corev1.PodQOSGuaranteed
			switch {
			case !request.Equal(limit):
				return corev1.PodQOSBurstable
			case request.IsZero():
				of = corev1.PodQOSBestEffort
			}
			if class != "" && class != of {
				return corev1.PodQOSBurstable
			}
			class = of
		}
	}
	return class
}

func TestIsSidecar(t *testing.T) {
	never := corev1.ContainerRestartPolicyNever
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		policy *corev1.ContainerRestartPolicy
		want   bool
	}{"no policy": {nil, false}, "Never": {&never, false}, "Always": {&always, true}} {
		t.Run(name, func(t *testing.T) {
			if got := IsSidecar(&corev1.Container{RestartPolicy: c.policy}); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
