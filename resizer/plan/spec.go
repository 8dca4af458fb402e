package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"
)

// Trigger is the observation that ends a pod's startup.
type Trigger string

// The triggers. Each must hold for every container that has a steady CPU; there is one resize per pod, when it does.
const (
	// StartupProbePassed waits for the container's startup probe. Kubernetes reports a container without that probe as
	// started the moment it runs (facts of the kubelet's prober), so such a container counts once it is ready.
	StartupProbePassed Trigger = "StartupProbePassed"
	// Ready waits until the container is ready. (The pod may be held back further, by a readiness gate.)
	Ready Trigger = "Ready"
	// Delay waits for Spec.Delay since the container started, whatever its probes say.
	Delay Trigger = "Delay"
)

// Triggers are the values of the trigger annotation, the default first.
func Triggers() []Trigger { return []Trigger{StartupProbePassed, Ready, Delay} }

// maxDelay bounds delay-seconds to a day: whoever writes more has most likely written milliseconds.
const maxDelay = 24 * time.Hour

// Spec is what the author of a pod asked for, validated against the containers of that pod.
type Spec struct {
	Trigger Trigger
	// Delay is, for the trigger Delay, the time since the container started; for the others, a further wait after the
	// trigger.
	Delay time.Duration
	// Steady is the CPU after startup by container name; never empty.
	Steady map[string]MilliCPU
}

// Problem is one thing in a pod that keeps it from being resized, said so that its author can mend it.
type Problem struct {
	Field     string // Annotation key or field path.
	Container string // Empty where no single container is meant.
	Value     string // What stands there; may be empty.
	Message   string // What is wrong with it.
	Remedy    string // What to write instead.
}

// maxProblemValue keeps an event or warning readable when an annotation is long. The API server itself cuts warnings to
// 256 characters only once there are 4,096 of them (apiserver pkg/endpoints/filters/warning.go).
const maxProblemValue = 80

// Error says field, container, value and remedy in one line.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Field)
	if p.Container != "" {
		fmt.Fprintf(&b, ": container %q", p.Container)
	}
	if p.Value != "" {
		value := []rune(p.Value)
		if len(value) > maxProblemValue {
			value = append(value[:maxProblemValue], '…')
		}
		fmt.Fprintf(&b, ": %q", string(value))
	}
	fmt.Fprintf(&b, ": %s; %s", p.Message, p.Remedy)
	return b.String()
}

// CheckEnabled returns the Problem of a pod that carries the enabled annotation with a value that is neither "true" nor
// "false": its author most likely meant to opt in.
func (k Keys) CheckEnabled(annotations map[string]string) error {
	switch value, present := annotations[k.Enabled]; {
	case !present, value == "true", value == "false":
		return nil
	default:
		return Problem{Field: k.Enabled, Value: value, Message: "is not a boolean, so the pod is not opted in",
			Remedy: `write "true" or remove the annotation`}
	}
}

// Parse reads the author's annotations and validates them against the pod's containers. The error, if any, joins every
// Problem found, so that an author mends them all at once; Problems takes it apart again.
func (k Keys) Parse(annotations map[string]string, spec *corev1.PodSpec) (Spec, error) {
	trigger, delay, err := k.parseTrigger(annotations)
	steady, steadyErr := k.parseSteady(annotations, spec)
	if err = errors.Join(err, steadyErr, checkPod(spec, steady)); err != nil {
		return Spec{}, err
	}
	return Spec{Trigger: trigger, Delay: delay, Steady: steady}, nil
}

// Problems takes apart what Parse or Resolve returned.
func Problems(err error) []Problem {
	switch e := err.(type) { //nolint:errorlint // This walks the tree that errors.As would search.
	case nil:
		return nil
	case Problem:
		return []Problem{e}
	case interface{ Unwrap() []error }:
		var all []Problem
		for _, err := range e.Unwrap() {
			all = append(all, Problems(err)...)
		}
		return all
	default:
		return []Problem{{Message: err.Error()}}
	}
}

func (k Keys) parseTrigger(annotations map[string]string) (Trigger, time.Duration, error) {
	trigger := Triggers()[0]
	var errs []error
	if value, present := annotations[k.Trigger]; present {
		trigger = Trigger(value)
		if !slices.Contains(Triggers(), trigger) {
			errs = append(errs, Problem{Field: k.Trigger, Value: value, Message: "is not a trigger",
				Remedy: fmt.Sprintf("write one of %q", Triggers())})
		}
	}
	value, present := annotations[k.DelaySeconds]
	if !present {
		if trigger == Delay {
			errs = append(errs, Problem{Field: k.DelaySeconds, Message: "is needed by the trigger Delay",
				Remedy: `write the whole seconds from the container's start to the end of its startup, such as "30"`})
		}
		return trigger, 0, errors.Join(errs...)
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if limit := int64(maxDelay / time.Second); err != nil || seconds < 0 || seconds > limit {
		errs = append(errs, Problem{Field: k.DelaySeconds, Value: value,
			Message: fmt.Sprintf("is not a whole number from 0 to %d", limit), Remedy: `write seconds, such as "30"`})
	}
	return trigger, time.Duration(seconds) * time.Second, errors.Join(errs...)
}

// steadyExample is what a remedy shows.
const steadyExample = `{%q:{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}`

// parseSteady reads the steady-resources annotation. It is strict: an unknown or doubled field is more likely a typing
// error than a wish.
func (k Keys) parseSteady(annotations map[string]string, spec *corev1.PodSpec) (map[string]MilliCPU, error) {
	example := fmt.Sprintf("write "+steadyExample, anyContainer(spec))
	value, present := annotations[k.SteadyResources]
	if !present {
		return nil, Problem{Field: k.SteadyResources, Message: "is missing", Remedy: example}
	}
	var byContainer map[string]struct {
		Requests map[corev1.ResourceName]string `json:"requests"`
		Limits   map[corev1.ResourceName]string `json:"limits"`
	}
	if strict, err := json.UnmarshalStrict([]byte(value), &byContainer); err != nil || len(strict) > 0 {
		return nil, Problem{Field: k.SteadyResources, Value: value,
			Message: fmt.Sprintf("is not the expected JSON (%v)", errors.Join(append(strict, err)...)), Remedy: example}
	}
	if len(byContainer) == 0 {
		return nil, Problem{Field: k.SteadyResources, Value: value, Message: "names no container", Remedy: example}
	}

	steady := make(map[string]MilliCPU, len(byContainer))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(byContainer)) {
		requests, limits := byContainer[name].Requests, byContainer[name].Limits
		problem := func(value, message, remedy string) {
			errs = append(errs, Problem{k.SteadyResources, name, value, message, remedy})
		}
		for _, resourceName := range slices.Sorted(maps.Keys(mergeKeys(requests, limits))) {
			if resourceName != corev1.ResourceCPU {
				problem(string(resourceName), "is not CPU, and only CPU is lowered", "remove it")
			}
		}
		request, requested := requests[corev1.ResourceCPU]
		limit, limited := limits[corev1.ResourceCPU]
		switch {
		case !requested && !limited:
			problem("", "has no CPU", fmt.Sprintf("write "+steadyExample, name))
			continue
		case !requested:
			request = limit
		case !limited:
			limit = request
		}
		cpu, err := parseCPU(limit)
		if err != nil {
			problem(limit, err.Error(), `write an amount such as "50m"`)
			continue
		}
		// By value: "0.05" and "50m" are the same.
		if requested, err := resource.ParseQuantity(request); err != nil || milliCPU(requested) != cpu {
			problem(request, fmt.Sprintf("the request differs from the limit %q, so the pod would not be Guaranteed", limit),
				"write the same amount for both")
			continue
		}
		steady[name] = cpu
	}
	return steady, errors.Join(append(errs, k.checkNames(slices.Sorted(maps.Keys(byContainer)), spec))...)
}

func mergeKeys(a, b map[corev1.ResourceName]string) map[corev1.ResourceName]string {
	all := maps.Clone(a)
	if all == nil {
		return b
	}
	maps.Copy(all, b)
	return all
}

// checkNames demands that every named container is one that runs on after startup.
func (k Keys) checkNames(names []string, spec *corev1.PodSpec) error {
	var running []string
	for _, c := range runningContainers(spec) {
		running = append(running, c.Name)
	}
	var errs []error
	for _, name := range names {
		message := "the pod has no such container"
		switch {
		case slices.Contains(running, name):
			continue
		case slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == name }):
			message = "is an init container, which ends before startup is over"
		}
		errs = append(errs, Problem{k.SteadyResources, name, "", message, fmt.Sprintf("name one of %q", running)})
	}
	return errors.Join(errs...)
}

// checkPod names what no annotation can mend.
func checkPod(spec *corev1.PodSpec, steady map[string]MilliCPU) error {
	var errs []error
	if r := spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		errs = append(errs, Problem{Field: "spec.resources", Message: "pod-level resources alone would decide the QoS class and the reserved CPU",
			Remedy: "move them to the containers"})
	}
	if spec.OS != nil && spec.OS.Name == corev1.Windows {
		errs = append(errs, Problem{Field: "spec.os.name", Value: string(spec.OS.Name),
			Message: "Kubernetes cannot resize Windows pods in place", Remedy: "remove the opt-in"})
	}
	for _, c := range Containers(spec) {
		if _, named := steady[c.Name]; !named {
			continue
		}
		for _, p := range c.ResizePolicy {
			if p.ResourceName == corev1.ResourceCPU && p.RestartPolicy == corev1.RestartContainer {
				errs = append(errs, Problem{"resizePolicy", c.Name, string(p.RestartPolicy),
					"lowering its CPU would restart the container", `write "NotRequired" for cpu`})
			}
		}
	}
	return errors.Join(errs...)
}

func anyContainer(spec *corev1.PodSpec) string {
	if len(spec.Containers) == 0 {
		return "app"
	}
	return spec.Containers[0].Name
}
