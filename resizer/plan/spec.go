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
	Value     string // What stands there, as quote shows it; empty where that says nothing.
	Message   string // What is wrong with it.
	Remedy    string // What to write instead.
}

// Everything an author writes comes back in warnings, an event, a condition and a log line, so each part of it is bounded: a
// pod with thousands of containers and of wrong names must cost no more than one with ten.
const (
	maxAnnotation = 32 << 10 // Bytes; 300 containers with names of 40 characters.
	maxProblems   = 10       // More are counted.
	maxNames      = 10       // In a remedy.
	maxMessage    = 1024     // Bytes, of a Decision: the API server refuses an event with more.
)

// maxProblemValue keeps an event or warning readable when an annotation is long. The API server itself cuts warnings to
// 256 characters only once there are 4,096 of them (apiserver pkg/endpoints/filters/warning.go).
const maxProblemValue = 80

// Error says field, container, value and remedy in one line.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Field)
	if p.Container != "" {
		fmt.Fprintf(&b, ": container %s", quote(p.Container))
	}
	if p.Value != "" {
		fmt.Fprintf(&b, ": %s", p.Value)
	}
	fmt.Fprintf(&b, ": %s; %s", p.Message, p.Remedy)
	return b.String()
}

// quote shows what stands somewhere: cut where it is long, escaped only where it must be, on one line whatever it holds
// (the API server drops a warning with a line break).
func quote(value string) string {
	value = cut(value, maxProblemValue)
	quoted := strconv.Quote(value)
	if raw := strings.ReplaceAll(quoted, `\"`, `"`); raw != quoted && raw == `"`+value+`"` {
		return "'" + value + "'" // Nothing but its quotes needs escaping: JSON, which reads better so.
	}
	return quoted
}

// cut shortens a text to a number of characters.
func cut(text string, characters int) string {
	n := 0
	for i := range text {
		if n == characters {
			return text[:i] + "…"
		}
		n++
	}
	return text
}

// CheckEnabled returns the Problem of a pod that carries the enabled annotation with a value that is neither "true" nor
// "false": its author most likely meant to opt in.
func (k Keys) CheckEnabled(annotations map[string]string) error {
	switch value, present := annotations[k.Enabled]; {
	case !present, value == "true", value == "false":
		return nil
	default:
		return Problem{Field: k.Enabled, Value: quote(value), Message: "is not a boolean, so the pod is not opted in",
			Remedy: `write "true" or remove the annotation`}
	}
}

// Parse reads the author's annotations and validates them against the pod's containers. The error, if any, joins every
// Problem found, so that an author mends them all at once; Problems takes it apart again.
func (k Keys) Parse(annotations map[string]string, spec *corev1.PodSpec) (Spec, error) {
	trigger, delay, err := k.parseTrigger(annotations)
	steady, steadyErr := k.parseSteady(annotations, spec)
	if err = join(err, steadyErr, checkPod(spec, steady)); err != nil {
		return Spec{}, err
	}
	return Spec{Trigger: trigger, Delay: delay, Steady: steady}, nil
}

// Problems takes apart what Parse or Resolve returned. An error of another kind becomes a Problem of its own.
func Problems(err error) []Problem {
	var one Problem
	var several problems
	switch {
	case err == nil:
		return nil
	case errors.As(err, &several):
		return several
	case errors.As(err, &one):
		return []Problem{one}
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
			errs = append(errs, Problem{Field: k.Trigger, Value: quote(value), Message: "is not a trigger",
				Remedy: "write one of " + list(Triggers())})
		}
	}
	value, present := annotations[k.DelaySeconds]
	if !present {
		if trigger == Delay {
			errs = append(errs, Problem{Field: k.DelaySeconds, Message: "is needed by the trigger Delay",
				Remedy: `write the whole seconds from the container's start to the end of its startup, such as "30"`})
		}
		return trigger, 0, join(errs...)
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if limit := int64(maxDelay / time.Second); err != nil || seconds < 0 || seconds > limit {
		errs = append(errs, Problem{Field: k.DelaySeconds, Value: quote(value),
			Message: fmt.Sprintf("is not a whole number of seconds from 0 to %d, a day", limit), Remedy: `write seconds, such as "30"`})
	}
	return trigger, time.Duration(seconds) * time.Second, join(errs...)
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
	if len(value) > maxAnnotation {
		return nil, Problem{Field: k.SteadyResources, Value: quote(value),
			Message: fmt.Sprintf("is longer than %d bytes", maxAnnotation), Remedy: "name only the containers to be lowered"}
	}
	var byContainer map[string]struct {
		Requests map[corev1.ResourceName]amount `json:"requests"`
		Limits   map[corev1.ResourceName]amount `json:"limits"`
	}
	if strict, err := json.UnmarshalStrict([]byte(value), &byContainer); err != nil || len(strict) > 0 {
		return nil, Problem{Field: k.SteadyResources, Value: quote(value),
			Message: "is not the expected JSON" + jsonErrors(append(strict, err)), Remedy: example}
	}
	if len(byContainer) == 0 {
		return nil, Problem{Field: k.SteadyResources, Value: quote(value), Message: "names no container", Remedy: example}
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
				problem(quote(string(resourceName)), "is not CPU, and only CPU is lowered", "remove it")
			}
		}
		request, requested := requests[corev1.ResourceCPU]
		limit, limited := limits[corev1.ResourceCPU]
		switch {
		case !requested && !limited:
			problem("", "has no CPU", fmt.Sprintf("write "+steadyExample, cut(name, maxProblemValue)))
			continue
		case !requested:
			request = limit
		case !limited:
			limit = request
		}
		cpu, wrong, err := equalCPU(request, limit)
		if err != nil {
			problem(quote(string(wrong)), err.Error(), `write an amount such as "50m", the same for both`)
			continue
		}
		steady[name] = cpu
	}
	return steady, join(append(errs, k.checkNames(slices.Sorted(maps.Keys(byContainer)), spec))...)
}

// equalCPU is what request and limit both come to, or else which of them is wrong. They are compared by value: "0.05" and
// "50m" are the same.
func equalCPU(request, limit amount) (cpu MilliCPU, wrong amount, err error) {
	if cpu, err = limit.cpu(); err != nil {
		return 0, limit, err
	}
	requested, err := request.cpu()
	if err != nil {
		return 0, request, err
	}
	if requested != cpu {
		return 0, request, fmt.Errorf("differs from the limit %s, so the pod would not be Guaranteed", quote(string(limit)))
	}
	return cpu, "", nil
}

// jsonErrors are the errors of a decoder in parentheses and on one line, without those that speak of this program's types.
func jsonErrors(errs []error) string {
	var texts []string
	for _, err := range errs {
		if err != nil && !strings.Contains(err.Error(), "Go ") {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + cut(strings.Join(texts, ", "), 2*maxProblemValue) + ")"
}

func mergeKeys(a, b map[corev1.ResourceName]amount) map[corev1.ResourceName]amount {
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
	runs := map[string]bool{}
	for _, c := range runningContainers(spec) {
		running = append(running, c.Name)
		runs[c.Name] = true
	}
	var errs []error
	for _, name := range names {
		message := "the pod has no such container"
		switch {
		case runs[name]:
			continue
		case slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == name }):
			message = "is an init container, which ends before startup is over"
		}
		errs = append(errs, Problem{k.SteadyResources, name, "", message, "name one of " + list(running)})
	}
	return join(errs...)
}

// checkPod names what no annotation can mend.
func checkPod(spec *corev1.PodSpec, steady map[string]MilliCPU) error {
	var errs []error
	if r := spec.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		errs = append(errs, Problem{Field: "spec.resources", Message: "pod-level resources alone would decide the QoS class and the reserved CPU",
			Remedy: "move them to the containers"})
	}
	if spec.OS != nil && spec.OS.Name == corev1.Windows {
		errs = append(errs, Problem{Field: "spec.os.name", Value: quote(string(spec.OS.Name)),
			Message: "Kubernetes cannot resize Windows pods in place", Remedy: "remove the opt-in"})
	}
	for _, c := range Containers(spec) {
		if _, named := steady[c.Name]; !named {
			continue
		}
		for _, p := range c.ResizePolicy {
			if p.ResourceName == corev1.ResourceCPU && p.RestartPolicy == corev1.RestartContainer {
				errs = append(errs, Problem{"resizePolicy", c.Name, quote(string(p.RestartPolicy)),
					"lowering its CPU would restart the container", `write "NotRequired" for cpu`})
			}
		}
	}
	return join(errs...)
}

// join makes one error of several, on one line for conditions and events; Problems takes it apart.
func join(errs ...error) error {
	var all problems
	for _, err := range errs {
		all = append(all, Problems(err)...)
	}
	switch more := len(all) - maxProblems; {
	case len(all) == 0:
		return nil
	case more > 0:
		all = append(all[:maxProblems:maxProblems], Problem{Field: "and more",
			Message: fmt.Sprintf("%d further problems", more), Remedy: "mend the first ones"})
	}
	return all
}

type problems []Problem

func (p problems) Error() string {
	texts := make([]string, len(p))
	for i := range p {
		texts[i] = p[i].Error()
	}
	return strings.Join(texts, "; ")
}

func list[S ~string](values []S) string {
	var texts []string
	for i, v := range values {
		if i == maxNames {
			return strings.Join(texts, ", ") + fmt.Sprintf(" and %d more", len(values)-i)
		}
		texts = append(texts, cut(string(v), maxProblemValue))
	}
	return strings.Join(texts, ", ")
}

func anyContainer(spec *corev1.PodSpec) string {
	if len(spec.Containers) == 0 {
		return "app"
	}
	return spec.Containers[0].Name
}
