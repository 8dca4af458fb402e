package webhook

import (
	"bytes"
	gojson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"

	"pod-resizer/resizer/plan"
)

// Template is what the pods of a workload are made from.
type Template struct {
	Pod  *corev1.Pod // What admission reads of it, or of a pod itself; see Pod.
	Path string      // JSON pointer to it in the object, such as "/spec/template"; empty for a pod. A patch goes below it.
	Raw  []byte      // The JSON that stands there.
}

// templatePaths are where a pod template stands: in whatever makes pods (built in, Argo Rollouts, and most others that were
// modelled on them), in a CronJob, and in a KEDA ScaledJob.
func templatePaths() []string {
	return []string{"/spec/template", "/spec/jobTemplate/spec/template", "/spec/jobTargetRef/template"}
}

// PodTemplate finds the pod template of any object, given as JSON; a pod is its own. The second result is false where there
// is none, as in a Service, or in a Rollout that has a workloadRef instead. What stands there counts, not the kind, and
// nothing but the template is decoded; one that cannot be comes without its Pod, with an error. A list has none; its items have.
func PodTemplate(object []byte) (Template, bool, error) {
	var meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(object, &meta); err != nil {
		return Template{}, false, fmt.Errorf("decoding the object: %w", err)
	}
	var t Template
	if meta.APIVersion == "v1" && meta.Kind == "Pod" {
		t.Raw = object
	}
	for _, path := range templatePaths() {
		// Others have a spec.template, too, such as one for secrets or nodes.
		if raw := at(object, path); t.Raw == nil && at(raw, "/spec/containers") != nil {
			t.Path, t.Raw = path, raw
		}
	}
	if t.Raw == nil {
		return Template{}, false, nil
	}
	var pod Pod
	if err := json.UnmarshalCaseSensitivePreserveInts(t.Raw, &pod); err != nil {
		return t, true, decodeError(t, err)
	}
	t.Pod = pod.typed()
	return t, true, nil
}

// decodeError names the field, which the decoder itself does not do for a quantity.
func decodeError(t Template, err error) error {
	wrong, ok := errors.AsType[*gojson.UnmarshalTypeError](err)
	if !ok {
		if quantity := wrongQuantity(t); quantity != nil {
			return quantity
		}
		return fmt.Errorf("decoding the pod: %w", err)
	}
	remedy := "write a whole number"
	switch wrong.Type.Kind() {
	case reflect.String:
		remedy = `put it in quotes, as in "true"`
	case reflect.Slice:
		remedy = "write a list"
	case reflect.Map, reflect.Struct:
		remedy = "write fields below it"
	case reflect.Bool:
		remedy = "write true or false"
	default:
	}
	if annotation := wrongAnnotation(t); annotation != nil {
		return annotation
	}
	return plan.Problem{Field: fieldPath(t.Path + "/" + wrong.Field), Value: wrong.Value, Message: "is of the wrong type", Remedy: remedy}
}

// wrongAnnotation looks for the first annotation that is no text; nil if there is none.
func wrongAnnotation(t Template) error {
	var annotations map[string]gojson.RawMessage
	_ = gojson.Unmarshal(at(t.Raw, "/metadata/annotations"), &annotations)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if value := annotations[key]; gojson.Unmarshal(value, new(string)) != nil {
			return plan.Problem{Field: fieldPath(t.Path+"/metadata/annotations") + "[" + key + "]",
				Value: fmt.Sprintf("%.80s", value), Message: "is not text", Remedy: "put it in quotes"}
		}
	}
	return nil
}

// wrongQuantity looks for the first quantity that is none among the resources of containers; nil if there is none.
func wrongQuantity(t Template) error {
	for _, list := range []string{"/spec/initContainers", "/spec/containers"} {
		var containers []struct {
			Name      string
			Resources map[string]gojson.RawMessage
		}
		_ = gojson.Unmarshal(at(t.Raw, list), &containers) // What it cannot read, another error is about.
		for _, c := range containers {
			for _, field := range []string{"requests", "limits"} {
				var amounts map[string]gojson.RawMessage
				_ = gojson.Unmarshal(c.Resources[field], &amounts)
				for _, name := range slices.Sorted(maps.Keys(amounts)) {
					if amount := amounts[name]; gojson.Unmarshal(amount, &quantity{}) != nil {
						return plan.Problem{Field: "resources." + field + "." + name, Container: c.Name, Value: fmt.Sprintf("%.80s", amount),
							Message: "is not a quantity", Remedy: `write one such as "50m" or "64Mi"`}
					}
				}
			}
		}
	}
	return nil
}

// Misplaced warns of annotations that stand where no pod gets them: on the workload instead of its pod template.
func (m Mutator) Misplaced(object []byte) []string {
	if t, found, err := PodTemplate(object); err != nil || found && t.Path == "" {
		return nil
	}
	var meta struct{ APIVersion string }
	if gojson.Unmarshal(object, &meta) == nil && strings.HasPrefix(meta.APIVersion, "admissionregistration.k8s.io/") {
		return nil // A binding of manifests/policies/opt-in.yaml hands its annotations on.
	}
	domain, _, _ := strings.Cut(m.Keys.Enabled, "/")
	var all []string
	for _, path := range []string{"/metadata/annotations", "/spec/jobTemplate/metadata/annotations"} {
		var annotations map[string]gojson.RawMessage
		if gojson.Unmarshal(at(object, path), &annotations) != nil {
			continue // There are none.
		}
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			if strings.HasPrefix(key, domain+"/") {
				all = append(all, plan.Problem{Field: key, Message: "stands in " + fieldPath(path) + ", which pods do not get, so it has no effect",
					Remedy: "move it to the annotations of the pod template"}.Error())
			}
		}
	}
	return all
}

// at is the JSON at a pointer of plain keys; nil where there is none, or null.
func at(object []byte, pointer string) []byte {
	for key := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		var fields map[string]gojson.RawMessage
		if gojson.Unmarshal(object, &fields) != nil {
			return nil
		}
		if object = fields[key]; bytes.Equal(object, []byte("null")) {
			return nil
		}
	}
	return object
}

// fieldPath is how people write a pointer of plain keys: spec.template.
func fieldPath(pointer string) string {
	return strings.ReplaceAll(strings.TrimPrefix(pointer, "/"), "/", ".")
}
