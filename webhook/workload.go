package webhook

import (
	"bytes"
	gojson "encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"

	"pod-resizer/resizer/plan"
)

// Template is what the pods of a workload are made from.
type Template struct {
	Pod  *corev1.Pod // Metadata and spec of the template; of a pod, the pod itself.
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
// nothing but the template is decoded. A list has none; its items have.
func PodTemplate(object []byte) (Template, bool, error) {
	var meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(object, &meta); err != nil {
		return Template{}, false, fmt.Errorf("decoding the object: %w", err)
	}
	t := Template{Pod: &corev1.Pod{}}
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
	if err := json.UnmarshalCaseSensitivePreserveInts(t.Raw, t.Pod); err != nil {
		return Template{}, false, fmt.Errorf("decoding the pod at %q: %w", t.Path, err)
	}
	return t, true, nil
}

// Misplaced warns of annotations that stand where no pod gets them: on the workload instead of its pod template.
func (m Mutator) Misplaced(object []byte) []string {
	if t, found, err := PodTemplate(object); err != nil || found && t.Path == "" {
		return nil
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
