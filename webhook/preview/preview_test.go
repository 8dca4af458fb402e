package preview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pod-resizer/resizer/plan"
	"pod-resizer/webhook"
)

const (
	optedIn = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  template:
    metadata:
      annotations:
        resize.example.com/enabled: "true"
        resize.example.com/steady-resources: '{"app":{"limits":{"cpu":"50m"}}}'
    spec:
      containers:
        - name: app
          resources:
            requests: {cpu: 50m, memory: 64Mi}
            limits: {cpu: 0.2, memory: 64Mi}
          startupProbe: {httpGet: {port: 80}}
`
	service = "kind: Service\nmetadata: {name: web}\n"
)

// TestRead says for each input what is in the report: a workload is Kind/Name@line, outcome; an error is line, message.
func TestRead(t *testing.T) {
	pod := func(name string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"},"spec":{"containers":[{"name":"app"}]}}`
	}
	for _, tc := range []struct {
		name, input string
		want        []string
		others      int
	}{
		{"one document", optedIn, []string{"Deployment/web@1 mutated"}, 0},
		{"nothing", "", nil, 0},
		{"comments, empty documents and objects without pods", "# Hello.\n---\n---\n# Source: chart/a.yaml\n" + service + "---\n\n# More\n" + optedIn + "---\n", []string{"Deployment/web@10 mutated"}, 1},
		{"line ends of Windows", strings.ReplaceAll(service+"---\n"+optedIn, "\n", "\r\n"), []string{"Deployment/web@4 mutated"}, 1},
		{"a byte order mark", "\xef\xbb\xbf" + optedIn, []string{"Deployment/web@1 mutated"}, 0},
		{"comments and content behind a separator", "---# One\n--- # One\n" + service + "--- " + pod("a") + "\n", []string{"Pod/a@5 ignored"}, 1},
		{"what looks like a separator in a text", "kind: ConfigMap\ndata:\n  a: |\n    ---\n    b\n---x: 1\n", nil, 1},
		{"a directive", "%YAML 1.1\n---\n" + optedIn, []string{"Deployment/web@3 mutated"}, 0},
		{"JSON", pod("a"), []string{"Pod/a@1 ignored"}, 0},
		{"JSON one after the other", pod("a") + "\n" + pod("b"), []string{"Pod/a@1 ignored", "Pod/b@1 ignored"}, 0},
		{"a List", "apiVersion: v1\nkind: List\nitems:\n- " + pod("a") + "\n- {kind: Service}\n- " + pod("b") + "\n", []string{"Pod/a@1 ignored", "Pod/b@1 ignored"}, 1},
		{"a typed list", `{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"app"}]}}]}`, []string{"Pod/a@1 ignored"}, 0},
		{"an empty list, and one without items", "{kind: List, items: []}\n---\n{kind: List}\n---\n{kind: AllowList, items: 1}", nil, 2},
		{"a pod without a name", `{apiVersion: v1, kind: Pod, metadata: {generateName: a-}}`, []string{"Pod/a-*@1 ignored"}, 0},
		{"wrong YAML does not hide the next document", service + "---\na: b: c\n---\n" + optedIn,
			[]string{"Deployment/web@6 mutated", "4: is no YAML: mapping values are not allowed in this context"}, 1},
		{"a template of Helm", "---\nkind: Pod\nmetadata:\n  {{- include \"labels\" . }}\n", []string{"render it first"}, 0},
		{"a text", "---\nThe release is installed.\n", []string{"2: is no object"}, 0},
		{"UTF-16", "\xff\xfea\x00", []string{"1: is not UTF-8"}, 0},
		{"an annotation that is no string", strings.Replace(optedIn, `"true"`, "true", 1), []string{"Deployment/web@1 invalid", "spec.template.metadata.annotations[resize.example.com/enabled]: true: is not text; put it in quotes"}, 0},
		{"a template that the API server will refuse, not opted in", "kind: Rollout\nmetadata: {name: a}\nspec: {template: {spec: {containers: [{name: b, resources: {limits: {cpu: x}}}]}}}",
			[]string{"Rollout/a@1 ignored", `resources.limits.cpu: container "b": "x": is not a quantity`}, 0},
		{"an overlay, which has no kind", "spec: {template: {spec: {containers: [{name: a}]}}}", nil, 1},
		{"a kind that is no text", "{kind: 5}", nil, 1},
		{"a pod whose annotation is no string", "{apiVersion: v1, kind: Pod, metadata: {annotations: {resize.example.com/enabled: true}, name: a}}",
			[]string{"Pod/a@1 invalid", "metadata.annotations[resize.example.com/enabled]: true: is not text; put it in quotes"}, 0},
		{"a wrong annotation", strings.Replace(optedIn, "50m", "5.0.0m", 1), []string{"Deployment/web@1 invalid", "is not a quantity of CPU"}, 0},
		{"annotations on the Deployment itself", strings.NewReplacer("  name: web", "  name: web\n  annotations: {resize.example.com/enabled: \"true\"}", `enabled: "true"`, `enabled: "false"`).Replace(optedIn),
			[]string{"Deployment/web@1 ignored", "stands in metadata.annotations"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			report := read(t, tc.input)
			var got []string
			for _, w := range report.Workloads {
				got = append(got, fmt.Sprintf("%s@%d %s", w.Object(), w.Line, w.Outcome))
				got = append(got, slices.Concat(w.Errors, w.Warnings)...)
			}
			for _, e := range report.Errors {
				got = append(got, fmt.Sprintf("%d: %s", e.Line, e.Message))
			}
			if !slices.EqualFunc(got, tc.want, strings.Contains) || report.Others != tc.others {
				t.Errorf("got %d others and\n%s\nwant %d and\n%s", report.Others, strings.Join(got, "\n"), tc.others, strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestWorkload(t *testing.T) {
	report := read(t, `apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
spec:
  jobTemplate:
    spec:
      template:
        metadata:
          annotations:
            resize.example.com/enabled: "true"
            resize.example.com/steady-resources: '{"app":{"limits":{"cpu":"50m"}}}'
            resize.example.com/trigger: Delay
            resize.example.com/delay-seconds: "30"
        spec:
          initContainers:
            - {name: migrate, resources: {limits: {cpu: 100m, memory: 64Mi}}}
            - {name: proxy, restartPolicy: Always, resources: {requests: {cpu: 10m}, limits: {cpu: 20m, memory: 64Mi}}}
          containers:
            - {name: app, resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {cpu: 200m, memory: 64Mi}}}
`)
	if len(report.Workloads) != 1 {
		t.Fatalf("got %+v", report)
	}
	w := report.Workloads[0]
	if w.QOSClassBefore != "Burstable" || w.QOSClassAfter != "Guaranteed" || w.Trigger != plan.Delay || w.DelaySeconds != 30 ||
		w.Namespace != "shop" || w.Template != "/spec/jobTemplate/spec/template" {
		t.Errorf("got %+v", w)
	}
	var got []string
	for _, c := range w.Containers {
		got = append(got, fmt.Sprintf("%s %s: %s, %s, %s", c.Type, c.Name, c.Before, c.Startup, c.Steady))
	}
	want := []string{"init migrate: 100m, 100m, 100m", "sidecar proxy: 10m/20m, 20m, 20m", "app app: 50m/200m, 200m, 50m"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, o := range w.Patch {
		if !strings.HasPrefix(o.Path, w.Template+"/") {
			t.Errorf("the path %s is not one of the object", o.Path)
		}
	}
	diff, err := w.Diff()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"--- test.yaml CronJob/nightly spec.jobTemplate.spec.template\n", "\n-        cpu: 50m\n+        cpu: 200m\n", "\n+    resize.example.com/managed: \"true\"\n"} {
		if !strings.Contains(diff, line) {
			t.Errorf("the diff has no %q:\n%s", line, diff)
		}
	}
}

// TestNotGuaranteed has a container that admission leaves alone, because nothing it could do would help.
func TestNotGuaranteed(t *testing.T) {
	w := read(t, optedIn+"        - {name: other, resources: {requests: {cpu: 10m}, limits: {cpu: 20m}}}\n").Workloads[0]
	other := w.Containers[1]
	if w.QOSClassAfter != "Burstable" || other.Startup.String() != "10m/20m" || other.Steady.String() != "10m/20m" || len(w.Warnings) == 0 {
		t.Errorf("got %+v", w)
	}
}

// TestOpportunistic is created with its steady CPU, which its startup CPU is not.
func TestOpportunistic(t *testing.T) {
	w := read(t, strings.Replace(optedIn, "annotations:\n", "annotations:\n        resize.example.com/boost: Opportunistic\n", 1)).Workloads[0]
	if app := w.Containers[0]; w.Boost != plan.Opportunistic || app.Startup.String() != "200m" || app.Steady.String() != "50m" || w.QOSClassAfter != "Guaranteed" {
		t.Errorf("got %+v", w)
	}
}

// FuzzRead: any input gives one report, that can be printed in each way, about lines that are there.
func FuzzRead(f *testing.F) {
	f.Add([]byte(optedIn + "---\n" + service))
	f.Add([]byte(`{"kind":"PodList","items":[{}]} {"a":1} [`))
	f.Add([]byte("a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n"))
	f.Add([]byte(strings.Repeat("[", 20_000)))
	f.Add([]byte(`{"kind":"List","items":` + strings.Repeat(`[{"kind":"List","items":`, 2_000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		report := read(t, string(data))
		encoded, err := json.Marshal(report)
		if again, _ := json.Marshal(read(t, string(data))); err != nil || !bytes.Equal(encoded, again) {
			t.Errorf("%v; read twice, it is\n%s\nand\n%s", err, encoded, again)
		}
		lines := 1
		for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // As YAML counts.
			lines += bytes.Count(data, []byte(end))
		}
		for _, e := range report.Errors {
			if e.Line < 1 || e.Line > lines+1 || e.Document < 1 || e.Message == "" {
				t.Errorf("the error %+v, of %d lines", e, lines)
			}
		}
		for i := range report.Workloads {
			w := &report.Workloads[i]
			diff, err := w.Diff()
			if err != nil || (diff == "") != (len(w.Patch) == 0) {
				t.Errorf("%v; the patch %v gives the diff %q", err, w.Patch, diff)
			}
			lowered := w.Outcome == webhook.Mutated || w.Outcome == webhook.Unchanged
			if w.Line < 1 || w.Line > lines || w.Document < 1 || w.Kind == "" || (w.Outcome == webhook.Invalid) != (len(w.Errors) > 0) ||
				lowered && (!w.OptedIn || w.Trigger == "" || w.Boost == "") {
				t.Errorf("the workload %+v, of %d lines", w, lines)
			}
			for _, c := range w.Containers {
				if lowered != (c.Startup != nil) || lowered != (c.Steady != nil) {
					t.Errorf("%s, with the container %+v", w.Outcome, c)
				}
			}
		}
	})
}

func read(t testing.TB, input string) Report {
	t.Helper()
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	var report Report
	report.Read(webhook.Mutator{Keys: keys}, "test.yaml", []byte(input))
	return report
}
