package plan

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// contract is what a pod's annotations come to: the startup CPU that admission resolved and the steady CPU that its author wants
// today. For a pod that admission missed, it is the author's annotations as they stand.
type contract struct {
	Spec
	seen     bool // By admission.
	resolved Resolved
	admitted Resolved            // As resolved, but with the steady CPU of the time of admission; nil if it missed the pod.
	lowered  map[string]MilliCPU // The CPU after startup of the containers that have more at startup.
}

func (k Keys) contract(pod *corev1.Pod) (contract, error) {
	c := contract{}
	value, seen := pod.Annotations[k.Resolved]
	c.seen = seen
	r := reading{Keys: k, annotations: pod.Annotations, pod: &pod.Spec, stored: true}
	var err error
	if seen && !r.has(k.SteadyResources) && !r.has(k.SteadyCPU) { // Removed since: what admission resolved goes on to count.
		r.course(&c.Spec)
		err = join(r.problems...)
	} else {
		c.Spec, err = k.parse(r)
	}
	if err != nil {
		return c, err
	}
	if seen {
		if c.resolved, err = k.parseResolved(value); err != nil {
			return c, err
		}
		c.admitted = maps.Clone(c.resolved)
		err = c.today()
	} else {
		if err = k.asItStands(&c.Spec); err != nil {
			return c, err
		}
		c.resolved, err = k.Resolve(&pod.Spec, c.Spec)
	}
	if err != nil {
		return c, err
	}
	c.lowered = c.resolved.lowered()
	// Again, for what another webhook or the author has put in since.
	r = reading{Keys: k, annotations: pod.Annotations, pod: &pod.Spec}
	r.checkPod(c.AllowRestart, sorted(c.lowered))
	return c, join(r.problems...)
}

// today replaces the steady CPU that admission resolved by what the author wants now. The startup CPU is history.
func (c *contract) today() error {
	var errs []error
	for _, name := range sorted(c.Steady) {
		steady, cpu := c.Steady[name], c.resolved[name]
		switch target := steady.of(cpu.Startup); {
		case cpu.Startup == 0:
			errs = append(errs, Problem{steady.Field, name, quote(steady.Text), "had no CPU when the pod was created", "recreate the pod"})
		case target > cpu.Startup:
			errs = append(errs, Problem{steady.Field, name, quote(steady.Text), fmt.Sprintf("is more than its startup CPU, %s", cpu.Startup),
				"write less, or recreate the pod with more"})
		default:
			c.resolved[name] = CPU{cpu.Startup, target}
		}
	}
	return join(errs...)
}

// asItStands makes amounts of what the author of a pod asked for that admission missed. Such a pod starts with what it has,
// whatever it was meant to start with. A share of that would be another amount after each resize, with no end before 1m.
func (k Keys) asItStands(s *Spec) error {
	var errs []error
	for _, name := range sorted(s.Steady) {
		steady, startup := s.Steady[name], s.Startup[name]
		if steady.Share > 0 && startup.Amount == 0 {
			errs = append(errs, Problem{steady.Field, name, quote(steady.Text), "is a part of a startup CPU that admission did not see",
				`recreate the pod, or write an amount such as "50m"`})
		}
		steady.Amount, steady.Share = steady.of(startup.Amount), 0
		s.Steady[name] = steady
	}
	s.Startup = nil
	return join(errs...)
}
