package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

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
		startup := limitOrRequest(&c)
		switch {
		case startup == 0 && !named:
			continue
		case startup == 0:
			errs = append(errs, Problem{"resources", c.Name, "", "has neither a CPU limit nor a CPU request, so there is nothing to lower",
				"set resources.limits.cpu to what it needs while it starts"})
		case startup > maxCPU:
			errs = append(errs, Problem{"resources.limits.cpu", c.Name, "", fmt.Sprintf("is more than any node has (%s)", maxCPU), "write less"})
		case !named:
			resolved[c.Name] = CPU{startup, startup}
		case target > startup:
			errs = append(errs, Problem{k.SteadyResources, c.Name, quote(target.String()),
				fmt.Sprintf("is more than its startup CPU, %s", startup), "write less, or raise resources.limits.cpu"})
		default:
			resolved[c.Name] = CPU{startup, target}
		}
	}
	if err := join(errs...); err != nil {
		return nil, err
	}
	return resolved, nil
}

// limitOrRequest is the most CPU that a container may use, or where that has no bound, what it is sure of.
func limitOrRequest(c *corev1.Container) MilliCPU {
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
		return Problem{Field: k.Resolved, Value: quote(value), Message: message,
			Remedy: "remove it and recreate the pod: admission writes it"}
	}
	var resolved Resolved
	if err := json.Unmarshal([]byte(value), &resolved); err != nil {
		return nil, problem(fmt.Sprintf("is not the JSON that admission writes (%v)", err))
	}
	if len(resolved) == 0 {
		return nil, problem("names no container")
	}
	for _, name := range slices.Sorted(maps.Keys(resolved)) { // In order, so that the same value gives the same message.
		cpu := resolved[name]
		if cpu.Steady <= 0 || cpu.Steady > cpu.Startup || cpu.Startup > maxCPU {
			return nil, problem(fmt.Sprintf("container %q: the steady CPU must be more than zero and at most the startup CPU", name))
		}
	}
	return resolved, nil
}

// lowered are the containers whose CPU falls after startup, with the CPU it falls to.
func (r Resolved) lowered() map[string]MilliCPU {
	lowered := map[string]MilliCPU{}
	for name, cpu := range r {
		if cpu.Steady < cpu.Startup {
			lowered[name] = cpu.Steady
		}
	}
	return lowered
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
