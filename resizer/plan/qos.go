package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// QoS is the class that Kubernetes gives a pod with this spec (pkg/apis/core/helper/qos of Kubernetes: app, init and
// sidecar containers count, ephemeral ones and overhead do not), and what keeps it from being Guaranteed.
//
// Unlike Kubernetes, which has defaulted requests from limits long before, it does that defaulting itself, so that it
// may be asked about a manifest as well as about a stored pod.
func QoS(spec *corev1.PodSpec) (corev1.PodQOSClass, []Culprit) {
	if r := spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		// Pod-level resources alone decide (KEP-2837).
		return QoS(&corev1.PodSpec{Containers: []corev1.Container{{Resources: *r}}})
	}
	var culprits []Culprit
	bestEffort := true
	for _, c := range Containers(spec) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, limited := c.Resources.Limits[name]
			request, requested := c.Resources.Requests[name]
			if !requested {
				request = limit
			}
			if !request.IsZero() || !limit.IsZero() {
				bestEffort = false
			}
			switch {
			case limited && limit.IsZero():
				culprits = append(culprits, Culprit{c.Name, "limits." + string(name), "is 0"})
			case limit.IsZero():
				culprits = append(culprits, Culprit{c.Name, "limits." + string(name), "is not set"})
			case request.Cmp(limit) != 0:
				culprits = append(culprits, Culprit{c.Name, "requests." + string(name),
					fmt.Sprintf("is %s, its limit %s", &request, &limit)})
			}
		}
	}
	switch {
	case bestEffort:
		return corev1.PodQOSBestEffort, culprits
	case len(culprits) > 0:
		return corev1.PodQOSBurstable, culprits
	default:
		return corev1.PodQOSGuaranteed, nil
	}
}

// Culprit is a field that keeps a pod from being Guaranteed.
type Culprit struct {
	Container string
	Field     string // Below the container's resources, such as "limits.memory".
	Is        string // What is wrong with it.
}

// String reads "container \"proxy\": resources.limits.memory is not set".
func (c Culprit) String() string {
	return fmt.Sprintf("container %q: resources.%s %s", c.Container, c.Field, c.Is)
}

// Containers are the containers that count for the QoS class, in the order of the spec: init containers (sidecars are
// among them) and app containers.
func Containers(spec *corev1.PodSpec) []*corev1.Container {
	all := make([]*corev1.Container, 0, len(spec.InitContainers)+len(spec.Containers))
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			all = append(all, &containers[i])
		}
	}
	return all
}

// IsSidecar tells a native sidecar (an init container that goes on running, KEP-753) from other init containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
