package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
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
	// PodCondition waits for the pod's condition Spec.Condition to be True, while the container runs. An author writes
	// "PodCondition=TYPE".
	PodCondition Trigger = "PodCondition"
)

// Triggers are the values of the trigger annotation as an author writes them, the default first.
func Triggers() []Trigger { return []Trigger{StartupProbePassed, Ready, Delay, PodCondition + "=TYPE"} }

// Boost says how a pod comes by its startup CPU.
type Boost string

// The kinds of boost.
const (
	Reserve       Boost = "Reserve"       // It is created with it, so the scheduler reserves it.
	Opportunistic Boost = "Opportunistic" // It is created with its steady CPU, and raised if the node has room.
)

// OnRestart says what a container gets that restarts later.
type OnRestart string

// What there is to get.
const (
	BoostAgain OnRestart = "Boost"  // Its startup CPU, until it has started again.
	Ignore     OnRestart = "Ignore" // What it has.
)

const (
	// maxSeconds bounds every time to a day: whoever writes more has most likely written milliseconds.
	maxSeconds = 24 * 60 * 60
	// defaultFitAfter is longer than a cluster autoscaler takes to bring a node.
	defaultFitAfter = 300 * time.Second
)

// Spec is what the author of a pod asked for, validated against the containers of that pod.
type Spec struct {
	Trigger Trigger
	// Condition is the type that the trigger PodCondition waits for, else empty.
	Condition corev1.PodConditionType
	// Delay is, for the trigger Delay, the time since the container started; for the others, a further wait after the
	// trigger.
	Delay time.Duration
	// Deadline is when the CPU is lowered at the latest, since the container started; zero for never.
	Deadline time.Duration
	Boost    Boost
	// FitAfter is how long a pod may be unschedulable for want of CPU before it starts at its steady CPU; zero for ever.
	FitAfter   time.Duration
	OnRestart  OnRestart
	PinRuntime map[string]Runtime // By container name.
	// ProtectStartup is the wish that nobody evicts the pod while it starts.
	ProtectStartup bool
	// AllowRestart is the consent to restart a container by lowering its CPU, where its resizePolicy says so.
	AllowRestart bool

	Steady  map[string]Want  // CPU after startup by container name; never empty.
	Startup map[string]Want  // CPU at startup, of containers that are in Steady; the others have what they have.
	Memory  map[string]Bytes // Request and limit from the start on, of containers that are in Steady.

	// Warnings are for the author: what can be followed, but is most likely not what was meant.
	Warnings []Problem

	carried Resolved // What the pod carries already; see Resolve.
}

// Created is the CPU that a container in Steady is created with.
func (s Spec) Created(cpu CPU) MilliCPU {
	if s.Boost == Opportunistic {
		return cpu.Steady
	}
	return cpu.Startup
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

// maxField is longer than any annotation's key that the API server takes: 253 + 1 + 63 characters.
const maxField = 320

// maxProblemValue keeps an event or warning readable when an annotation is long. The API server itself cuts warnings to
// 256 characters only once there are 4,096 of them (apiserver pkg/endpoints/filters/warning.go).
const maxProblemValue = 80

// Error says field, container, value and remedy in one line.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(cut(p.Field, maxField))
	if p.Container != "" {
		fmt.Fprintf(&b, ": container %s", quote(p.Container))
	}
	if p.Value != "" {
		fmt.Fprintf(&b, ": %s", p.Value)
	}
	fmt.Fprintf(&b, ": %s; %s", p.Message, p.Remedy)
	return oneLine(b.String())
}

// oneLine escapes what is not to be printed: the API server drops a warning with a line break. Names may hold any of it, because
// admission sees a pod before the API server has validated it.
func oneLine(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	escaped := strconv.Quote(text)
	return strings.ReplaceAll(escaped[1:len(escaped)-1], `\"`, `"`)
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

// CheckEnabled returns the Problem of a pod whose author most likely meant to opt in: it carries the enabled annotation with a value
// that is neither "true" nor "false", or others without it.
func (k Keys) CheckEnabled(annotations map[string]string) error {
	switch value, present := annotations[k.Enabled]; {
	case !present:
		return k.checkMissing(annotations)
	case value == "true", value == "false":
		return nil
	default:
		return Problem{Field: k.Enabled, Value: quote(value), Message: "is not a boolean, so the pod is not opted in",
			Remedy: `write "true" or remove the annotation`}
	}
}

// checkMissing returns the Problem of a pod that carries other annotations of ours, or misspelt ones, without the one that opts in.
func (k Keys) checkMissing(annotations map[string]string) error {
	domain := strings.TrimSuffix(k.Enabled, "enabled")
	first := "" // The resizer asks this of every pod in the cluster, so nothing is sorted for it.
	for key := range annotations {
		if strings.HasPrefix(key, domain) && !k.written(key) && (first == "" || key < first) {
			first = key
		}
	}
	if first == "" {
		return nil
	}
	return Problem{Field: first, Message: "has no effect, because the pod is not opted in",
		Remedy: fmt.Sprintf(`add %s: "true" (or "false", which is silent)`, k.Enabled)}
}

// Parse reads the author's annotations and validates them against the pod's containers. The error, if any, joins every
// Problem found, so that an author mends them all at once; Problems takes it apart again.
func (k Keys) Parse(annotations map[string]string, pod *corev1.PodSpec) (Spec, error) {
	return k.parse(reading{Keys: k, annotations: annotations, pod: pod})
}

func (k Keys) parse(r reading) (Spec, error) {
	var s Spec
	r.course(&s)
	r.resources(&s)
	r.checkPod(s.AllowRestart, sorted(s.Steady))
	if err := join(r.problems...); err != nil {
		return Spec{}, err
	}
	if value, present := r.annotations[k.Resolved]; present {
		s.carried, _ = k.parseResolved(value) // Admission overwrites it, whatever is wrong with it.
	}
	s.Warnings = Problems(join(r.warnings...))
	return s, nil
}

// Bounded are the first of many problems, and a count of the others.
func Bounded(all []Problem) []Problem {
	more := len(all) - maxProblems
	if more <= 0 {
		return all
	}
	return append(all[:maxProblems:maxProblems], Problem{Field: "and more",
		Message: fmt.Sprintf("%d further problems", more), Remedy: "mend the first ones"})
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

// reading is one look at a pod's annotations; it collects what is wrong and what is odd.
type reading struct {
	Keys
	annotations        map[string]string
	pod                *corev1.PodSpec
	stored             bool // The pod is past admission.
	problems, warnings []error
}

func (r *reading) has(key string) bool {
	_, present := r.annotations[key]
	return present
}

func (r *reading) problem(field, container, value, message, remedy string) {
	r.problems = append(r.problems, Problem{field, container, value, message, remedy})
}

func (r *reading) warn(field, container, value, message, remedy string) {
	r.warnings = append(r.warnings, Problem{field, container, value, message, remedy})
}

// course reads what is to happen when: all but amounts. Those are settled once the pod is created; this is read anew each time.
func (r *reading) course(s *Spec) {
	s.Trigger, s.Condition = r.trigger()
	s.Delay = r.seconds(r.DelaySeconds, 0, 0)
	if s.Trigger == Delay && !r.has(r.DelaySeconds) {
		r.problem(r.DelaySeconds, "", "", "is needed by the trigger Delay",
			`write the whole seconds from the container's start to the end of its startup, such as "30"`)
	}
	s.Deadline = r.seconds(r.DeadlineSeconds, 1, 0)
	if s.Trigger == Delay && s.Deadline > 0 && s.Deadline < s.Delay {
		r.problem(r.DeadlineSeconds, "", quote(r.annotations[r.DeadlineSeconds]), fmt.Sprintf("comes before the trigger Delay, whose %s is %s",
			r.DelaySeconds, quote(r.annotations[r.DelaySeconds])), "write no less, or remove it")
	}
	if s.Trigger == Delay && s.Deadline > 0 {
		r.warn(r.DeadlineSeconds, "", "", "has no effect, because the trigger Delay comes before it", "remove it")
	}
	s.Boost = oneOf(r, r.Boost, Reserve, Opportunistic)
	s.FitAfter = r.seconds(r.FitAfterSeconds, 0, defaultFitAfter)
	if s.Boost == Opportunistic && r.has(r.FitAfterSeconds) {
		r.warn(r.FitAfterSeconds, "", "", "has no effect, because a pod with the boost Opportunistic asks for no more than its steady CPU", "remove it")
	}
	s.OnRestart = oneOf(r, r.OnRestart, BoostAgain, Ignore)
	s.PinRuntime = r.pinRuntime()
	s.ProtectStartup = oneOf(r, r.ProtectStartup, "false", "true") == "true"
	s.AllowRestart = oneOf(r, r.AllowRestart, "false", "true") == "true"
}

func (r *reading) trigger() (Trigger, corev1.PodConditionType) {
	value, present := r.annotations[r.Trigger]
	if !present {
		return Triggers()[0], ""
	}
	kind, condition, related := strings.Cut(value, "=")
	switch trigger := Trigger(kind); {
	case !related && slices.Contains([]Trigger{StartupProbePassed, Ready, Delay}, trigger):
		return trigger, ""
	case !related || trigger != PodCondition:
		r.problem(r.Trigger, "", quote(value), "is not a trigger", "write one of "+list(Triggers()))
	case len(validation.IsQualifiedName(condition)) > 0: // As Kubernetes checks the types of readiness gates.
		r.problem(r.Trigger, "", quote(value), "does not name a condition that a pod can have", `write its type, such as "PodCondition=example.com/WarmedUp"`)
	case condition == string(r.Steady):
		r.problem(r.Trigger, "", quote(value), "waits for what pod-resizer says only after the resize", "name a condition that something else sets")
	default:
		if early := []string{string(corev1.PodScheduled), string(corev1.PodReadyToStartContainers), string(corev1.PodInitialized)}; slices.Contains(early, condition) {
			r.warn(r.Trigger, "", quote(value), "is true before the container has started, so the CPU will be lowered as soon as it runs",
				"name a condition that comes after the startup")
		}
		return PodCondition, corev1.PodConditionType(condition)
	}
	return "", ""
}

// seconds reads whole seconds, from least to a day.
func (r *reading) seconds(key string, least int64, otherwise time.Duration) time.Duration {
	value, present := r.annotations[key]
	if !present {
		return otherwise
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if err != nil || seconds < least || seconds > maxSeconds {
		r.problem(key, "", quote(value), fmt.Sprintf("is not a whole number of seconds from %d to %d, a day", least, maxSeconds), `write seconds, such as "30"`)
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// oneOf reads one of several values, the first of which is the default.
func oneOf[S ~string](r *reading, key string, values ...S) S {
	value, present := r.annotations[key]
	switch {
	case !present:
		return values[0]
	case !slices.Contains(values, S(value)):
		r.problem(key, "", quote(value), "is not one of its values", "write one of "+list(values))
	}
	return S(value)
}

func (r *reading) pinRuntime() map[string]Runtime {
	var pins map[string]Runtime
	byContainer := r.perContainer(r.PinRuntime)
	for _, name := range sorted(byContainer) {
		runtime := Runtime(byContainer[name])
		if !slices.Contains(Runtimes(), runtime) {
			r.problem(r.PinRuntime, name, quote(byContainer[name]), "is not a runtime that pod-resizer knows", "write one of "+list(Runtimes()))
		}
		if pins == nil {
			pins = map[string]Runtime{}
		}
		pins[name] = runtime
	}
	r.checkNames(r.PinRuntime, sorted(byContainer))
	return pins
}

// checkPod names what no annotation of ours can mend.
func (r *reading) checkPod(allowRestart bool, lowered []string) {
	if r.pod.Resources != nil { // Where it is empty, a pod is BestEffort until Kubernetes 1.36.
		r.problem("spec.resources", "", "", "pod-level resources alone would decide the QoS class and the reserved CPU", "move them to the containers")
	}
	if os := r.pod.OS; os != nil && os.Name == corev1.Windows {
		r.problem("spec.os.name", "", quote(string(os.Name)), "Kubernetes cannot resize Windows pods in place", "remove the opt-in")
	}
	if os := r.pod.NodeSelector[corev1.LabelOSStable]; os == string(corev1.Windows) {
		r.problem("spec.nodeSelector["+corev1.LabelOSStable+"]", "", quote(os), "Kubernetes cannot resize Windows pods in place", "remove the opt-in")
	}
	if r.has(corev1.MirrorPodAnnotationKey) {
		r.problem(corev1.MirrorPodAnnotationKey, "", "", "Kubernetes cannot resize static pods", "remove the opt-in")
	}
	for _, key := range []string{"vpaUpdates", "vpaObservedContainers"} { // Of the VerticalPodAutoscaler's admission.
		if r.has(key) {
			r.problem(key, "", "", "a VerticalPodAutoscaler sets this pod's CPU, and two would undo each other's work",
				"take the pod out of one of them")
			break
		}
	}
	restarts := false
	for _, c := range Containers(r.pod) {
		if !slices.Contains(lowered, c.Name) {
			continue
		}
		for _, p := range c.ResizePolicy {
			switch {
			case p.ResourceName != corev1.ResourceCPU || p.RestartPolicy != corev1.RestartContainer:
			case allowRestart:
				restarts = true
				r.warn("resizePolicy", c.Name, quote(string(p.RestartPolicy)), "lowering its CPU will restart the container",
					fmt.Sprintf(`write "NotRequired" for cpu if %s was not meant so`, r.AllowRestart))
			default:
				r.problem("resizePolicy", c.Name, quote(string(p.RestartPolicy)), "lowering its CPU would restart the container",
					fmt.Sprintf(`write "NotRequired" for cpu, or %s: "true"`, r.AllowRestart))
			}
		}
	}
	if allowRestart && !restarts && len(lowered) > 0 {
		r.warn(r.AllowRestart, "", "", "has no effect, because no container that is lowered has a resizePolicy that would restart it", "remove it")
	}
}

// join makes one error of several, on one line for conditions and events; Problems takes it apart.
func join(errs ...error) error {
	var all problems
	for _, err := range errs {
		all = append(all, Problems(err)...)
	}
	if len(all) == 0 {
		return nil
	}
	return problems(Bounded(all))
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
