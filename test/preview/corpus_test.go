// Package preview_test puts manifests that other projects ship through `pod-resizer preview`.
package preview_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"pod-resizer/resizer/plan"
	"pod-resizer/webhook"
	"pod-resizer/webhook/preview"
)

// TestCorpus previews every workload that the modules pinned beside this test bring along: as it stands, then opted in, with
// the resources it has, with CPU and memory for its first container, and for all of them. What comes out must be what this
// test works out by itself.
func TestCorpus(t *testing.T) {
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	c := corpus{mutator: webhook.Mutator{Keys: keys}, kinds: map[string]int{}, outcomes: map[string]int{}}
	for _, pins := range []struct {
		folder  string
		modules []string
	}{
		{"corpus", []string{
			"github.com/cert-manager/cert-manager", "github.com/kedacore/keda/v2",
			"k8s.io/autoscaler/vertical-pod-autoscaler", "sigs.k8s.io/karpenter",
		}},
		{"../cluster/pins/argo-rollouts", []string{"github.com/argoproj/argo-rollouts"}},
	} {
		for _, m := range modules(t, pins.folder, pins.modules) {
			before := c.workloads
			for _, path := range manifests(t, m.Dir) {
				name, err := filepath.Rel(m.Dir, path)
				if err != nil {
					t.Fatal(err)
				}
				t.Run(filepath.Base(m.Path)+"/"+name, func(t *testing.T) {
					data, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					c.file(t, path, data)
				})
			}
			for _, chart := range charts(t, m.Dir) {
				t.Run(filepath.Base(m.Path)+"/"+filepath.Base(chart), func(t *testing.T) { c.file(t, chart, render(t, chart)) })
			}
			if c.workloads == before {
				t.Errorf("%s has no workload any more", m.Path)
			}
			t.Logf("%s %s: %d workloads", m.Path, m.Version, c.workloads-before)
		}
	}
	t.Logf("%d files with %d workloads: %v; opted in: %v", c.files, c.workloads, c.kinds, c.outcomes)
	if c.workloads < 100 {
		t.Errorf("only %d workloads were found; the modules may keep their manifests elsewhere now", c.workloads)
	}
}

type module struct{ Path, Version, Dir string }

// modules downloads modules in the versions that a folder's go.mod pins.
func modules(t *testing.T, folder string, names []string) []module {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", append([]string{"mod", "download", "-json"}, names...)...)
	download.Dir, download.Stderr = folder, os.Stderr
	out, err := download.Output()
	if err != nil {
		t.Fatalf("downloading the modules of %s: %v", folder, err)
	}
	var all []module
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var m module
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// manifests are the files that may hold some. Those in the templates folder of a chart are none until Helm has rendered them.
func manifests(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "templates":
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), "Chart.yaml")); err == nil {
				return fs.SkipDir
			}
		case slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(path)):
			all = append(all, path)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// charts are the folders of Helm charts.
func charts(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "Chart.yaml" {
			all = append(all, filepath.Dir(path))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// render does what `helm template` does, with the chart's own values.
func render(t *testing.T, dir string) []byte {
	t.Helper()
	chart, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	values, err := util.ToRenderValues(chart, nil, common.ReleaseOptions{Name: "release", Namespace: "default"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(chart, values)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Ext(name) == ".yaml" { // The others are notes and helpers.
			fmt.Fprintf(&text, "---\n# Source: %s\n%s\n", name, files[name])
		}
	}
	return text.Bytes()
}

type corpus struct {
	mutator          webhook.Mutator
	files, workloads int
	kinds, outcomes  map[string]int
}

func (c *corpus) file(t *testing.T, path string, data []byte) {
	var report preview.Report
	report.Read(c.mutator, path, data)
	objects, err := read(data)
	if (err == nil) != (len(report.Errors) == 0) {
		t.Errorf("preview says %q, another reader %v", report.Errors, err)
	}
	if wrong, _, optedIn := report.Count(); optedIn > 0 || wrong > len(report.Errors) {
		t.Errorf("preview finds %d that opt in and %d errors, though nobody has opted in", optedIn, wrong)
	}
	for _, w := range report.Workloads {
		if !remedied(w.Warnings) {
			t.Errorf("one of %q has no remedy", w.Warnings)
		}
	}
	c.files++
	found := 0
	for _, object := range objects {
		if path := template(object); path != nil {
			found++
			c.kinds[object["kind"].(string)]++
			for _, v := range variants() {
				c.workload(t, object, path, v)
			}
		}
	}
	c.workloads += found
	if found != len(report.Workloads) {
		t.Errorf("preview finds %d workloads, this test %d", len(report.Workloads), found)
	}
}

// read is another reader than preview's: that of apimachinery, which stops at the first error.
func read(data []byte) ([]map[string]any, error) {
	var all []map[string]any
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		var object map[string]any
		if err := yaml.Unmarshal(document, &object); err != nil {
			return all, err
		}
		if object != nil {
			all = append(all, object)
		}
	}
}

// template is where a kind has its pod template; nil if it has none.
func template(object map[string]any) []string {
	kind, _ := object["kind"].(string)
	path, known := map[string][]string{
		"Pod":                   {},
		"CronJob":               {"spec", "jobTemplate", "spec", "template"},
		"ScaledJob":             {"spec", "jobTargetRef", "template"},
		"Deployment":            {"spec", "template"},
		"StatefulSet":           {"spec", "template"},
		"DaemonSet":             {"spec", "template"},
		"ReplicaSet":            {"spec", "template"},
		"ReplicationController": {"spec", "template"},
		"Job":                   {"spec", "template"},
		"Rollout":               {"spec", "template"},
	}[kind]
	if !known {
		return nil
	}
	for _, key := range append(slices.Clone(path), "spec", "containers") {
		inner, _ := object[key].(map[string]any)
		if _, list := object[key].([]any); key == "containers" && list {
			return path
		}
		object = inner
	}
	return nil
}

// variant is what is done to the resources of a pod before it opts in.
type variant struct {
	name   string
	change func(*corev1.PodSpec)
}

func variants() []variant {
	give := func(c *corev1.Container) {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		c.Resources.Limits = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("128Mi"),
		}
	}
	return []variant{
		{"as it is", func(*corev1.PodSpec) {}},
		{"first container with resources", func(s *corev1.PodSpec) { give(&s.Containers[0]) }},
		{"all containers with resources", func(s *corev1.PodSpec) {
			for _, containers := range [][]corev1.Container{s.InitContainers, s.Containers} {
				for i := range containers {
					give(&containers[i])
				}
			}
		}},
	}
}

// workload opts a workload in and compares what preview says of it with what this test thinks of it.
func (c *corpus) workload(t *testing.T, object map[string]any, path []string, v variant) {
	var owner map[string]any
	mustConvert(t, object, &owner) // A copy.
	object = owner
	for _, key := range path {
		owner = owner[key].(map[string]any)
	}
	var pod corev1.Pod
	if err := convert(owner, &pod); err != nil {
		c.undecodable(t, object, owner)
		return
	}
	if len(pod.Spec.Containers) == 0 {
		return
	}
	v.change(&pod.Spec)
	app := &pod.Spec.Containers[0]
	startup := startupCPU(app.Resources)
	steady := resource.NewMilliQuantity(max(startup.MilliValue()/4, 1), resource.DecimalSI)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["resize.example.com/enabled"] = "true"
	pod.Annotations["resize.example.com/steady-resources"] = fmt.Sprintf(`{%q:{"limits":{"cpu":%q}}}`, app.Name, steady)
	var changed map[string]any
	mustConvert(t, pod, &changed)
	owner["metadata"], owner["spec"] = changed["metadata"], changed["spec"]
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}

	var report preview.Report
	report.Read(c.mutator, "opted-in.yaml", text)
	if len(report.Workloads) != 1 || !report.Workloads[0].OptedIn {
		t.Fatalf("%s: preview finds %+v in\n%s", v.name, report, text)
	}
	w := &report.Workloads[0]
	c.outcomes[fmt.Sprintf("%s -> %s", w.Outcome, w.QOSClassAfter)]++
	if notes := slices.Concat(w.Errors, w.Warnings); !remedied(notes) {
		t.Errorf("%s: one of %q has no remedy", v.name, notes)
	}
	wrong, _, _ := report.Count()
	before, after := expected(&pod.Spec)
	if w.QOSClassBefore != before {
		t.Errorf("%s: preview says %s before, this test %s:\n%s", v.name, w.QOSClassBefore, before, text)
	}
	if startup.IsZero() { // Nothing can be lowered: the one reason to refuse that these manifests give.
		if w.Outcome != webhook.Invalid || wrong != 1 || w.QOSClassAfter != before || !strings.Contains(w.Errors[0], "neither a CPU limit nor a CPU request") {
			t.Errorf("%s: without CPU, preview says %+v", v.name, w)
		}
		return
	}
	if w.Outcome != webhook.Mutated || wrong != 0 || w.QOSClassAfter != after {
		t.Errorf("%s: preview says %s, %s afterwards, %q; this test %s:\n%s", v.name, w.Outcome, w.QOSClassAfter, w.Errors, after, text)
		return
	}
	i := slices.IndexFunc(w.Containers, func(c preview.Container) bool { return c.Name == app.Name })
	want := func(q *resource.Quantity) string { return preview.CPU{Request: q.String(), Limit: q.String()}.String() }
	if got := w.Containers[i]; got.Startup.String() != want(&startup) || got.Steady.String() != want(steady) {
		t.Errorf("%s: preview says %s -> %s, this test %s -> %s", v.name, got.Startup, got.Steady, &startup, steady)
	}
	if diff, err := w.Diff(); err != nil || !strings.Contains(diff, "\n+") {
		t.Errorf("%s: the diff is %q, %v", v.name, diff, err)
	}
}

// undecodable opts a workload in whose pod template the API server would refuse; some projects test with such.
func (c *corpus) undecodable(t *testing.T, object, owner map[string]any) {
	metadata, _ := owner["metadata"].(map[string]any)
	metadata["annotations"] = map[string]any{"resize.example.com/enabled": "true"}
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var report preview.Report
	report.Read(c.mutator, "opted-in.yaml", text)
	if len(report.Workloads) != 1 || report.Workloads[0].Outcome != webhook.Invalid || !remedied(report.Workloads[0].Errors) {
		t.Errorf("preview says %+v of\n%s", report, text)
	}
	c.outcomes["undecodable"]++
}

// remedied says whether each note tells what to write instead.
func remedied(notes []string) bool {
	return !slices.ContainsFunc(notes, func(note string) bool {
		_, remedy, _ := strings.Cut(note, "; ")
		return remedy == ""
	})
}

func mustConvert(t *testing.T, from, to any) {
	t.Helper()
	if err := convert(from, to); err != nil {
		t.Fatal(err)
	}
}

func convert(from, to any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, to)
}

func startupCPU(r corev1.ResourceRequirements) resource.Quantity {
	if limit := r.Limits.Cpu(); !limit.IsZero() {
		return *limit
	}
	return *r.Requests.Cpu()
}

// expected are the QoS classes of a pod whose first container is to be lowered, without and with pod-resizer. It follows
// Kubernetes' documentation, not the product's code.
func expected(spec *corev1.PodSpec) (before, after corev1.PodQOSClass) {
	all := slices.Concat(spec.InitContainers, spec.Containers)
	something, guaranteed, could := false, true, true
	for _, c := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
			if request.IsZero() {
				request = limit // As the API server does.
			}
			something = something || !request.IsZero()
			guaranteed = guaranteed && !limit.IsZero() && request.Cmp(limit) == 0
			if limit.IsZero() && (name == corev1.ResourceMemory || request.IsZero()) {
				could = false // No limit, and none may be made up.
			}
		}
	}
	after = corev1.PodQOSBurstable // It has some CPU.
	if could {
		after = corev1.PodQOSGuaranteed
	}
	switch {
	case guaranteed:
		return corev1.PodQOSGuaranteed, after
	case something:
		return corev1.PodQOSBurstable, after
	default:
		return corev1.PodQOSBestEffort, after
	}
}
