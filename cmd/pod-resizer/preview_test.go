package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	previewed = `# Source: shop/templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    metadata:
      annotations:
        resize.example.com/enabled: "true"
        resize.example.com/steady-resources: '{"app":{"limits":{"cpu":"50m"}}}'
        resize.example.com/trigger: Ready
        resize.example.com/delay-seconds: "5"
    spec:
      initContainers:
        - name: migrate
          resources: {limits: {cpu: 20m, memory: 64Mi}}
      containers:
        - name: app
          readinessProbe: {httpGet: {port: 80}}
          resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {cpu: 200m, memory: 64Mi}}
`
	notOptedIn = `apiVersion: v1
kind: Pod
metadata: {name: other}
spec: {containers: [{name: app}]}
`
)

func TestPreviewOutput(t *testing.T) {
	invalid := strings.NewReplacer("50m", "fast", "name: web", "name: wrong").Replace(previewed)
	input := previewed + "---\n" + notOptedIn + "---\n" + invalid + "---\na: b: c\n"
	for _, tc := range []struct{ output, stdout, stderr string }{
		{"table", `Deployment/web in shop (standard input line 2): opted in
  QoS class       Burstable -> Guaranteed
  trigger         Ready + 5s
  CONTAINER       CPU AS WRITTEN  STARTUP  STEADY
  migrate (init)  20m             20m      20m
  app             50m/200m        200m     50m

Pod/other (standard input line 22): not opted in
Deployment/wrong in shop (standard input line 28): invalid
  error: resources.requests.cpu: container "app": "fast": is not a quantity; write one such as "50m" or "64Mi"

error: standard input: document 4, line 48: is no YAML: mapping values are not allowed in this context
`, ""},
		{"diff", `--- standard input Deployment/web spec.template
+++ standard input Deployment/web spec.template, as admitted
@@ -2,20 +2,26 @@
   annotations:
`, "error: standard input: document 3, line 28: Deployment/wrong: resources.requests.cpu: container \"app\": \"fast\": is not a quantity; "},
	} {
		t.Run(tc.output, func(t *testing.T) {
			stdout, stderr, err := runPreview(t, input, "-f", "-", "-o", tc.output)
			if err == nil {
				t.Error("the input is invalid, but there is no error")
			}
			if !strings.HasPrefix(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("got\n%s%swant\n%s%s", stdout, stderr, tc.stdout, tc.stderr)
			}
		})
	}
}

// TestPreviewIsDocumented holds the output for programs against the fields' names, which are an interface.
func TestPreviewIsDocumented(t *testing.T) {
	var fromJSON, fromYAML struct {
		Workloads []struct {
			File, Kind, Namespace, Name, Template, Outcome, Trigger, Boost string
			QOSClassBefore                                                 string `json:"qosClassBefore"`
			QOSClassAfter                                                  string `json:"qosClassAfter"`
			Document, Line, DelaySeconds                                   int
			OptedIn                                                        bool `json:"optedIn"`
			Containers                                                     []struct {
				Name, Type              string
				Before, Startup, Steady struct{ Request, Limit string }
			}
			Patch []any
		}
		Others int
	}
	stdout, _, err := runPreview(t, previewed, "-f", "-", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&fromJSON); err != nil {
		t.Fatalf("%v:\n%s", err, stdout)
	}
	w := fromJSON.Workloads[0]
	app := w.Containers[1]
	if w.Document != 1 || w.Line != 2 || !w.OptedIn || w.Outcome != "mutated" || w.QOSClassBefore != "Burstable" || w.QOSClassAfter != "Guaranteed" ||
		w.DelaySeconds != 5 || app.Before.Request != "50m" || app.Before.Limit != "200m" || app.Startup.Request != "200m" || app.Steady.Limit != "50m" {
		t.Errorf("got %+v", w)
	}
	if stdout, _, err = runPreview(t, previewed, "-f", "-", "-o", "yaml"); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(stdout), &fromYAML); err != nil || len(fromYAML.Workloads) != 1 {
		t.Errorf("%v:\n%s", err, stdout)
	}
}

func TestPreviewExitCode(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"web.yaml": previewed, "sub/other.yml": notOptedIn, "wrong/wrong.yaml": "{{ template }}", "notes/README.md": "x",
		"warned/warned.yaml": strings.Replace(previewed, "trigger:", "triger:", 1),
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	for _, tc := range []struct {
		name   string
		args   []string
		err    string // Empty for exit code 0.
		stderr string
	}{
		{"a good file", []string{"-f", in("web.yaml")}, "", ""},
		{"a folder without those in it", []string{"-f", folder}, "", ""},
		{"a folder and those in it", []string{"-f", folder, "-R"}, "the input is invalid: 1 error", ""},
		{"a folder without manifests", []string{"-f", in("notes")}, "has no *.yaml", ""},
		{"several files", []string{"-f", in("web.yaml"), "-f", in("wrong")}, "the input is invalid: 1 error", ""},
		{"invalid as JSON", []string{"-f", in("wrong"), "-o", "json"}, "the input is invalid: 1 error", ""},
		{"invalid as a diff", []string{"-f", in("wrong"), "-o", "diff"}, "the input is invalid: 1 error", "wrong.yaml: document 1, line 1: is no YAML"},
		{"no such file", []string{"-f", in("absent.yaml")}, "reading manifests", ""},
		{"a warning", []string{"-f", in("warned")}, "", ""},
		{"a warning that counts", []string{"-f", in("warned"), "--warnings-as-errors"}, "--warnings-as-errors: 1 warning", ""},
		{"nothing opted in", []string{"-f", in("sub")}, "", "None of 1 workload opts in"},
		{"another domain", []string{"-f", in("web.yaml"), "--domain", "cpu.example.org"}, "", `cpu.example.org/enabled: "true"`},
		{"a wrong domain", []string{"-f", in("web.yaml"), "--domain", "a b"}, "--domain", ""},
		{"a wrong output", []string{"-f", in("web.yaml"), "-o", "xml"}, `--output "xml": write one of table, json, yaml, diff`, ""},
		{"no file", nil, "--filename (-f) is missing", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, stderr, err := runPreview(t, "", tc.args...)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
			if !strings.Contains(stderr, tc.stderr) || tc.stderr == "" && stderr != "" {
				t.Errorf("got on stderr %q, want %q", stderr, tc.stderr)
			}
		})
	}
}

func runPreview(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := rootCommand()
	root.SetArgs(append([]string{"preview"}, args...))
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.Execute()
	return out.String(), errs.String(), err
}
