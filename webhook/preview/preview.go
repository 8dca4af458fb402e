// Package preview tells from manifests alone what admission will do with the pods that they make. It asks the webhook's own
// Mutator, and sees what stands in a manifest: no LimitRange, no other webhook, no node.
package preview

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"gomodules.xyz/jsonpatch/v2"
	applier "gopkg.in/evanphx/json-patch.v4" // The API server applies patches with it too.
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"pod-resizer/resizer/plan"
	"pod-resizer/webhook"
)

// Report is what becomes of some manifests. Its JSON is an interface: fields are added, not renamed.
type Report struct {
	// Workloads are the objects that are pods or have a pod template, and those with annotations that pods will not get.
	Workloads []Workload `json:"workloads"`
	// Errors are of documents that cannot be read. Those of a workload are with it.
	Errors []ReadError `json:"errors,omitempty"`
	// Others counts the objects that make no pods.
	Others int `json:"others"`
}

// Count says how much there is of what decides an exit code.
func (r *Report) Count() (wrong, warnings, optedIn int) {
	wrong = len(r.Errors)
	for i := range r.Workloads {
		w := &r.Workloads[i]
		wrong += len(w.Errors)
		warnings += len(w.Warnings)
		if w.OptedIn {
			optedIn++
		}
	}
	return wrong, warnings, optedIn
}

// Place is where something stands in the input.
type Place struct {
	File     string `json:"file"`
	Document int    `json:"document"` // From 1, within the file.
	Line     int    `json:"line"`     // From 1, within the file.
}

func (p Place) String() string {
	return fmt.Sprintf("%s: document %d, line %d", p.File, p.Document, p.Line)
}

// ReadError is a document that cannot be read.
type ReadError struct {
	Place
	Message string `json:"message"`
}

func (e ReadError) Error() string { return e.String() + ": " + e.Message }

// Workload is an object and what becomes of its pods.
type Workload struct {
	Place
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Template is the JSON pointer to the pod template; empty for a pod.
	Template string `json:"template,omitempty"`
	OptedIn  bool   `json:"optedIn"`
	// Outcome is admission's: "mutated", "unchanged" (has all it needs), "ignored" (not opted in), or "invalid", because of
	// Errors; then the pods are created as written, if at all.
	Outcome  webhook.Outcome `json:"outcome"`
	Errors   []string        `json:"errors,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
	// Trigger and DelaySeconds say when startup is over; only of a pod that is going to be resized.
	Trigger      plan.Trigger `json:"trigger,omitempty"`
	DelaySeconds int          `json:"delaySeconds,omitempty"`
	// Boost says how the startup CPU is had: a pod that is Opportunistic is created with its steady CPU.
	Boost plan.Boost `json:"boost,omitempty"`
	// QOSClassBefore is without pod-resizer, QOSClassAfter with it, while starting and afterwards.
	QOSClassBefore corev1.PodQOSClass `json:"qosClassBefore,omitempty"`
	QOSClassAfter  corev1.PodQOSClass `json:"qosClassAfter,omitempty"`
	Containers     []Container        `json:"containers,omitempty"`
	// Patch is what admission changes, with paths of the object.
	Patch []jsonpatch.Operation `json:"patch,omitempty"`

	before, after []byte // The template as JSON.
}

// Container is the CPU of one container.
type Container struct {
	Name   string        `json:"name"`
	Type   ContainerType `json:"type"`
	Before CPU           `json:"before"`
	// Startup and Steady are absent where nothing is done to the pod.
	Startup *CPU `json:"startup,omitempty"`
	Steady  *CPU `json:"steady,omitempty"`
}

// ContainerType tells the containers of a pod apart.
type ContainerType string

// The types.
const (
	App     ContainerType = "app"
	Init    ContainerType = "init"    // It ends before the app containers start, and keeps the CPU it has.
	Sidecar ContainerType = "sidecar" // An init container that goes on running.
)

// CPU is a container's; empty is not set. A request that is not set is the limit, as to the API server.
type CPU struct {
	Request string `json:"request,omitempty"`
	Limit   string `json:"limit,omitempty"`
}

// String is one amount where request and limit are the same.
func (c CPU) String() string {
	switch {
	case c == CPU{}:
		return "-"
	case c.Request == c.Limit:
		return c.Limit
	case c.Limit == "":
		return c.Request + "/-"
	default:
		return c.Request + "/" + c.Limit
	}
}

// Read adds the manifests of one file, YAML or JSON.
func (r *Report) Read(mutator webhook.Mutator, file string, data []byte) {
	for place, object := range objects(file, data, func(e ReadError) { r.Errors = append(r.Errors, e) }) {
		w, found := workload(mutator, object)
		if !found {
			r.Others++
			continue
		}
		w.Place = place
		r.Workloads = append(r.Workloads, w)
	}
}

// workload is what becomes of an object; false if it makes no pods and does not look as if it meant to.
func workload(m webhook.Mutator, object []byte) (Workload, bool) {
	var meta struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Namespace    string `json:"namespace"`
			Name         string `json:"name"`
			GenerateName string `json:"generateName"`
		} `json:"metadata"`
	}
	// What is of the wrong type stays empty, so that a pod with such a name is told of its other mistakes.
	if _ = json.Unmarshal(object, &meta); meta.Kind == "" {
		return Workload{}, false // No object of Kubernetes, such as an overlay.
	}
	w := Workload{
		Kind: meta.Kind, Namespace: meta.Metadata.Namespace, Name: meta.Metadata.Name,
		Outcome: webhook.Ignored, Warnings: m.Misplaced(object),
	}
	if w.Name == "" && meta.Metadata.GenerateName != "" {
		w.Name = meta.Metadata.GenerateName + "*"
	}
	template, found, err := webhook.PodTemplate(object)
	if !found {
		return w, len(w.Warnings) > 0
	}
	w.Template, w.before, w.after = template.Path, template.Raw, template.Raw
	if err != nil {
		w.undecodable(m.Keys, err)
		return w, true
	}
	w.OptedIn = m.Keys.OptedIn(template.Pod.Annotations)
	pod := template.Pod
	w.QOSClassBefore, _ = plan.QoS(&pod.Spec)
	w.QOSClassAfter = w.QOSClassBefore
	w.Containers = containers(&pod.Spec)

	result := m.Mutate(pod)
	if result.NamesAbsent() { // They may be injected. What else a cluster may add is for its own webhook to say.
		result = m.Doubt(pod, result)
	}
	w.Outcome = result.Outcome
	if result.Outcome == webhook.Invalid {
		w.Errors = result.Warnings
	} else {
		w.Warnings = append(w.Warnings, result.Warnings...)
	}
	if err := w.apply(result.Patch); err != nil {
		w.Outcome, w.Errors = webhook.Invalid, append(w.Errors, err.Error())
	}
	if w.Outcome == webhook.Mutated || w.Outcome == webhook.Unchanged {
		w.admitted(m.Keys)
	}
	return w, true
}

// undecodable makes a pod template that is none an error if it has to do with us, such as for an annotation without quotes.
// Otherwise it is the API server's to refuse.
func (w *Workload) undecodable(keys plan.Keys, err error) {
	var template struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"annotations"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(w.before, &template) // That it is wrong somewhere is known.
	enabled, mentioned := template.Metadata.Annotations[keys.Enabled]
	w.OptedIn = string(enabled) == `"true"`
	if mentioned {
		w.Outcome, w.Errors = webhook.Invalid, []string{err.Error()}
	} else {
		w.Warnings = append(w.Warnings, err.Error())
	}
}

// apply fills Patch and after.
func (w *Workload) apply(operations []jsonpatch.Operation) error {
	if len(operations) == 0 {
		return nil
	}
	encoded, err := json.Marshal(operations)
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	patch, err := applier.DecodePatch(encoded)
	if err != nil {
		return fmt.Errorf("decoding the patch: %w", err)
	}
	if w.after, err = patch.Apply(w.before); err != nil {
		return fmt.Errorf("applying the patch: %w", err)
	}
	for _, o := range operations {
		w.Patch = append(w.Patch, jsonpatch.NewOperation(o.Operation, w.Template+o.Path, o.Value))
	}
	return nil
}

// admitted fills in what the pod will be like.
func (w *Workload) admitted(keys plan.Keys) {
	var pod corev1.Pod
	var resolved plan.Resolved
	err := json.Unmarshal(w.after, &pod)
	if err == nil {
		err = json.Unmarshal([]byte(pod.Annotations[keys.Resolved]), &resolved)
	}
	if err != nil {
		w.Outcome, w.Errors = webhook.Invalid, []string{fmt.Sprintf("decoding the patched pod: %v", err)}
		return
	}
	w.Trigger = plan.Triggers()[0]
	if trigger, set := pod.Annotations[keys.Trigger]; set {
		w.Trigger = plan.Trigger(trigger)
	}
	w.Boost = plan.Reserve
	if boost, set := pod.Annotations[keys.Boost]; set {
		w.Boost = plan.Boost(boost)
	}
	w.DelaySeconds, _ = strconv.Atoi(pod.Annotations[keys.DelaySeconds]) // Admission has checked it.
	w.QOSClassAfter, _ = plan.QoS(&pod.Spec)
	for i, c := range containers(&pod.Spec) {
		startup, steady := c.Before, c.Before
		if cpu := resolved[c.Name]; cpu.Startup != cpu.Steady {
			startup, steady = equal(cpu.Startup), equal(cpu.Steady)
		}
		w.Containers[i].Startup, w.Containers[i].Steady = &startup, &steady
	}
}

func equal(m plan.MilliCPU) CPU { return CPU{m.String(), m.String()} }

func containers(spec *corev1.PodSpec) []Container {
	var all []Container
	for i, c := range plan.Containers(spec) {
		kind := App
		switch {
		case i >= len(spec.InitContainers):
		case plan.IsSidecar(c):
			kind = Sidecar
		default:
			kind = Init
		}
		all = append(all, Container{Name: c.Name, Type: kind, Before: cpu(c.Resources)})
	}
	return all
}

func cpu(r corev1.ResourceRequirements) CPU {
	var c CPU
	if limit, set := r.Limits[corev1.ResourceCPU]; set {
		c = CPU{limit.String(), limit.String()}
	}
	if request, set := r.Requests[corev1.ResourceCPU]; set {
		c.Request = request.String()
	}
	return c
}

// Object is how kubectl names it.
func (w *Workload) Object() string { return w.Kind + "/" + w.Name }

// Diff is a unified diff of the pod template as YAML, as written and as admitted; empty where nothing changes.
func (w *Workload) Diff() (string, error) {
	before, err := yaml.JSONToYAML(w.before)
	if err != nil {
		return "", fmt.Errorf("writing %s as YAML: %w", w.Object(), err)
	}
	after, err := yaml.JSONToYAML(w.after)
	if err != nil {
		return "", fmt.Errorf("writing %s as YAML: %w", w.Object(), err)
	}
	title := strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", w.File, w.Object(), strings.ReplaceAll(strings.TrimPrefix(w.Template, "/"), "/", "."))), " ")
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(string(before)), B: difflib.SplitLines(string(after)),
		FromFile: title, ToFile: title + ", as admitted", Context: 3,
	})
}
