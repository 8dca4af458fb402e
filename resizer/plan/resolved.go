package plan

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Resolved is the CPU of every container, as admission worked it out when the pod was created. It stands on the pod, so
// that whatever happens later (percent, factors and limits that are long gone, another leader) starts from the same
// numbers.
type Resolved map[string]CPU

// CPU is what one container has while it starts and afterwards. The two are equal for a container that is not lowered.
type CPU struct {
	Startup MilliCPU `json:"startupMilliCPU"`
	Steady  MilliCPU `json:"steadyMilliCPU"`
}

// Resolve works out the CPU of every container that has any. The startup CPU is the container's limit, else its request:
// the most that its author let it burn. The error joins Problems.
func (k Keys) Resolve(spec *corev1.PodSpec, steady map[string]MilliCPU) (Resolved, error) {
	resolved := Resolved{}
	var errs []error
	for _, c := range Containers(spec) {
		target, named := steady[c.Name]
		startup := startupCPU(&c)
		switch {
		case startup == 0 && !named:
			continue
		case startup == 0:
			errs = append(errs, Problem{"resources", c.Name, "", "has neither a CPU limit nor a CPU request, so there is nothing to lower",
				"set resources.limits.cpu to what it needs while it starts"})
		case startup > maxCPU:
			errs = append(errs, Problem{"resources", c.Name, startup.String(), "is more CPU than any node has", "write less"})
		case !named:
			resolved[c.Name] = CPU{startup, startup}
		case target > startup:
			errs = append(errs, Problem{k.SteadyResources, c.Name, target.String(),
				fmt.Sprintf("is more than its startup CPU, %s", startup), "write less, or raise resources.limits.cpu"})
		default:
			resolved[c.Name] = CPU{startup, target}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return resolved, nil
}

func startupCPU(c *corev1.Container) MilliCPU {
	// A limit of zero is none, to the kubelet as well as here.
	if limit := c.Resources.Limits[corev1.ResourceCPU]; !limit.IsZero() {
		return milliCPU(limit)
	}
	return milliCPU(c.Resources.Requests[corev1.ResourceCPU])
}

// String is the annotation's value. Keys are sorted, so equal values have equal text.
func (r Resolved) String() string { return mustJSON(r) }

// parseResolved reads the annotation back. It may have been written by hand, so it is checked like any input.
func (k Keys) parseResolved(value string) (Resolved, error) {
	problem := func(message string) error {
		return Problem{Field: k.Resolved, Value: value, Message: message,
			Remedy: "remove it: admission writes it when the pod is created"}
	}
	var resolved Resolved
	if err := json.Unmarshal([]byte(value), &resolved); err != nil {
		return nil, problem(fmt.Sprintf("is not the JSON that admission writes (%v)", err))
	}
	for name, cpu := range resolved {
		if cpu.Steady <= 0 || cpu.Steady > cpu.Startup || cpu.Startup > maxCPU {
			return nil, problem(fmt.Sprintf("container %q: the steady CPU must be more than zero and at most the startup CPU", name))
		}
	}
	return resolved, nil
}

// Released is the CPU that a pod gives back by going from startup to steady.
func (r Resolved) Released() MilliCPU {
	var sum MilliCPU
	for _, cpu := range r {
		sum += cpu.Startup - cpu.Steady
	}
	return sum
}

// mustJSON encodes a value of this package; none of them has a field that could fail.
func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}
