package webhook

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestPodTemplate(t *testing.T) {
	const template = `{metadata: {annotations: {a: b}}, spec: {containers: [{name: app}]}}`
	for _, tc := range []struct {
		name, object string
		path         string
		found        bool
		err          string
	}{
		{"a pod is its own", `{apiVersion: v1, kind: Pod, metadata: {name: x, annotations: {a: b}}, spec: {containers: [{name: app}]}}`, "", true, ""},
		{"a pod of somebody else's API is none", `{apiVersion: example.com/v1, kind: Pod, spec: {containers: [{name: app}]}}`, "", false, ""},
		{"a Deployment", `{apiVersion: apps/v1, kind: Deployment, spec: {template: ` + template + `}}`, "/spec/template", true, ""},
		{"a kind nobody knows", `{kind: Whatever, spec: {template: ` + template + `}}`, "/spec/template", true, ""},
		{"a CronJob", `{apiVersion: batch/v1, kind: CronJob, spec: {jobTemplate: {spec: {template: ` + template + `}}}}`, "/spec/jobTemplate/spec/template", true, ""},
		{"a KEDA ScaledJob", `{kind: ScaledJob, spec: {jobTargetRef: {template: ` + template + `}}}`, "/spec/jobTargetRef/template", true, ""},
		{"a Rollout with a workloadRef has none", `{kind: Rollout, spec: {workloadRef: {kind: Deployment, name: x}}}`, "", false, ""},
		{"a template of something else is none", `{kind: NodePool, spec: {template: {spec: {requirements: []}}}}`, "", false, ""},
		{"null is none", `{kind: Rollout, spec: {template: null}}`, "", false, ""},
		{"a spec that is no object has none", `{kind: Odd, spec: [1]}`, "", false, ""},
		{"a list has none", `{kind: List, apiVersion: v1, items: []}`, "", false, ""},
		{"fields are told by case", `{kind: Odd, spec: {Template: ` + template + `}}`, "", false, ""},
		{"a template that is none of Kubernetes is an error", `{kind: Deployment, spec: {template: {spec: {containers: {name: app}}}}}`, "/spec/template", true, "spec.template.spec.containers: object: is of the wrong type; write a list"},
		{"a quantity that is none is an error that names it", `{kind: Deployment, spec: {template: {spec: {containers: [{name: a}, {name: b, resources: {limits: {cpu: 50 m}}}]}}}}`, "/spec/template", true,
			`resources.limits.cpu: container "b": "50 m": is not a quantity; write`},
		{"what is no object is an error", `[1]`, "", false, "decoding the object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			object, err := yaml.YAMLToJSON([]byte(tc.object))
			if err != nil {
				t.Fatal(err)
			}
			got, found, err := PodTemplate(object)
			if found != tc.found || got.Path != tc.path || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("got %q, %t, %v; want %q, %t, %q", got.Path, found, err, tc.path, tc.found, tc.err)
			}
			if found && err == nil && (got.Pod.Annotations["a"] != "b" || got.Pod.Spec.Containers[0].Name != "app") {
				t.Errorf("got the pod %+v", got.Pod)
			}
		})
	}
}

func TestMisplaced(t *testing.T) {
	const annotations = `{annotations: {resize.example.com/enabled: "true", other/key: x}}`
	for _, tc := range []struct {
		name, object string
		want         []string
	}{
		{"on a Deployment", `{kind: Deployment, metadata: ` + annotations + `, spec: {template: {spec: {containers: []}}}}`, []string{"metadata.annotations"}},
		{"on a Rollout without a template", `{kind: Rollout, metadata: ` + annotations + `}`, []string{"metadata.annotations"}},
		{"on a CronJob's Job", `{kind: CronJob, spec: {jobTemplate: {metadata: ` + annotations + `}}}`, []string{"spec.jobTemplate.metadata.annotations"}},
		{"on a template, where it belongs", `{kind: Deployment, spec: {template: {metadata: ` + annotations + `, spec: {containers: []}}}}`, nil},
		{"on a pod, where it belongs", `{apiVersion: v1, kind: Pod, metadata: ` + annotations + `}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			object, err := yaml.YAMLToJSON([]byte(tc.object))
			if err != nil {
				t.Fatal(err)
			}
			got := mutator(t).Misplaced(object)
			if !slices.EqualFunc(got, tc.want, func(got, want string) bool { return strings.Contains(got, "stands in "+want+",") }) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
