package webhook

import (
	"encoding/json"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"pod-resizer/resizer/plan"
)

// The outcomes for workloads, which are never Mutated or Unchanged.
const (
	Valid Outcome = "valid" // Its pods will be resized.
	// Unsure is what has to be Invalid for all that the template says, but its pods may get at their creation what they lack: CPU
	// from a LimitRange, or the container that an annotation names from whatever injects sidecars. It is never denied.
	Unsure Outcome = "unsure"
)

// maxMisplaced bounds the warnings about annotations in the wrong place. The other warnings come bounded.
const maxMisplaced = 10

// Validate answers an admission request for a workload with what Mutate has to say to its pods, so that the author hears it
// before there is one. It changes nothing. Pods themselves are Review's; what makes none is left alone.
func (m Mutator) Validate(request *Request[json.RawMessage]) (Result, error) {
	result := Result{Outcome: Ignored}
	if request.Operation != admissionv1.Create && request.Operation != admissionv1.Update || request.SubResource != "" {
		return result, nil
	}
	if request.Object == nil {
		return Result{}, errNoObject
	}
	object := *request.Object
	template, found, err := PodTemplate(object)
	switch {
	case err != nil:
		return Result{}, err
	case found && template.Path == "":
		return result, nil
	case found:
		result = m.template(template)
	}
	misplaced := m.Misplaced(object)
	result.Warnings = append(result.Warnings, misplaced[:min(len(misplaced), maxMisplaced)]...)
	return result, nil
}

func (m Mutator) template(t Template) Result {
	mutated := m.Doubt(t.Pod, m.Mutate(t.Pod))
	result := Result{Outcome: mutated.Outcome}
	if result.Outcome == Mutated || result.Outcome == Unchanged {
		result.Outcome = Valid
	}
	for _, text := range mutated.Warnings {
		result.Warnings = append(result.Warnings, within(t, text))
	}
	return result
}

// Doubt makes what is Invalid Unsure, if it may yet become right when pods are made of the template.
func (m Mutator) Doubt(template *corev1.Pod, result Result) Result {
	if result.Outcome != Invalid || m.certain(template) {
		return result
	}
	result.Outcome = Unsure
	for i := range result.Warnings {
		result.Warnings[i] += "; or leave it, if it is added to the pods when they are created"
	}
	return result
}

// namesAbsent says whether a container is named that is not there: whatever injects sidecars may come after us.
func namesAbsent(err error, pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(plan.Problems(err), func(p plan.Problem) bool { return p.Container != "" && !has(pod, p.Container) })
}

func has(pod *corev1.PodSpec, container string) bool {
	return slices.ContainsFunc(plan.Containers(pod), func(c *corev1.Container) bool { return c.Name == container })
}

// certain says of an invalid pod template whether nothing that is added to its pods could make them valid.
func (m Mutator) certain(pod *corev1.Pod) bool {
	spec, err := m.Keys.Parse(pod.Annotations, &pod.Spec)
	if err == nil {
		_, err = m.Keys.Resolve(&pod.Spec, spec)
	}
	return slices.ContainsFunc(plan.Problems(err), func(p plan.Problem) bool {
		// Neither of these two, nor the line that counts further problems.
		return p.Field != "resources" && (p.Container == "" || has(&pod.Spec, p.Container)) && p.Field != "and more"
	})
}

// within says where in the workload a warning's field is, as Kubernetes' own warnings do.
func within(t Template, text string) string {
	path := fieldPath(t.Path)
	switch field, rest, _ := strings.Cut(text, ": "); {
	case strings.HasPrefix(field, "spec."):
		return path + "." + text
	case strings.Contains(field, "/"):
		return path + ".metadata.annotations[" + field + "]: " + rest
	default:
		return path + ": " + text
	}
}
