package plan

import (
	"encoding/json"
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

// Resolve works out the CPU of every container that has any. Where its author did not say otherwise, the startup CPU is the
// container's limit, else its request: the most that its author let it burn. The error joins Problems.
//
// A container that stands at the very steady CPU that the pod's own Resolved tells, and that today's annotations still come to,
// has been through admission already: it was created with its steady CPU and this is the second pass, or the manifest is that
// of a pod that has been lowered. Then Resolved tells the startup CPU, too. Anything else on the pod goes before it.
func (k Keys) Resolve(pod *corev1.PodSpec, spec Spec) (Resolved, error) {
	resolved := Resolved{}
	var errs []error
	for _, c := range Containers(pod) {
		steady, named := spec.Steady[c.Name]
		has := LimitOrRequest(c)
		startup, from, text := has, "resources.limits.cpu", ""
		if want, asked := spec.Startup[c.Name]; asked {
			startup, from, text = want.of(steady.Amount), want.Field, quote(want.Text)
		} else if was := spec.carried[c.Name]; named && atSteady(c, was.Steady) && steady.of(was.Startup) == was.Steady {
			startup = was.Startup
		}
		target := steady.of(startup)
		switch {
		case startup <= 0 && !named:
			continue
		case startup <= 0:
			errs = append(errs, Problem{"resources", c.Name, "", "has neither a CPU limit nor a CPU request, so there is nothing to lower",
				fmt.Sprintf("set resources.limits.cpu, or %s, to what it needs while it starts", k.StartupCPU)})
		case startup > maxCPU:
			errs = append(errs, Problem{from, c.Name, text, fmt.Sprintf("is more than any node has (%s)", maxCPU), "write less"})
		case !named:
			resolved[c.Name] = CPU{startup, startup}
		case target > startup:
			errs = append(errs, Problem{steady.Field, c.Name, quote(steady.Text),
				fmt.Sprintf("is more than its startup CPU, %s", startup), "write less, or raise " + from})
		default:
			resolved[c.Name] = CPU{startup, target}
		}
	}
	if err := join(errs...); err != nil {
		return nil, err
	}
	return resolved, nil
}

// atSteady says whether a container's request and limit both are its steady CPU.
func atSteady(c *corev1.Container, steady MilliCPU) bool {
	return milliCPU(c.Resources.Requests[corev1.ResourceCPU]) == steady && milliCPU(c.Resources.Limits[corev1.ResourceCPU]) == steady
}

// LimitOrRequest is the most CPU that a container may use, or where that has no bound, what it is sure of.
func LimitOrRequest(c *corev1.Container) MilliCPU {
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
	for _, name := range sorted(resolved) { // In order, so that the same value gives the same message.
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
