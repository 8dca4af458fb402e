package webhook

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	applier "gopkg.in/evanphx/json-patch.v4" // The API server applies patches with it too.
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"pod-resizer/resizer/plan"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGolden compares the Result for every NAME.pod.yaml with NAME.patch.json.
func TestGolden(t *testing.T) {
	pods := goldenPods(t)
	for name, raw := range pods {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			encoder := json.NewEncoder(&got)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			if err := encoder.Encode(mutator(t).Mutate(decodePod(t, raw))); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".patch.json")
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v; run with -update and read what it writes", err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("got:\n%s\nwant (run with -update if the golden file is wrong):\n%s", &got, want)
			}
		})
	}
	answers, err := filepath.Glob("testdata/*.patch.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range answers {
		if name := strings.TrimSuffix(filepath.Base(path), ".patch.json"); pods[name] == nil {
			t.Errorf("%s belongs to no pod; remove it", path)
		}
	}
}

// TestPatchKeepsItsPromises holds every golden pod against what no patch may do, whatever its golden file says.
func TestPatchKeepsItsPromises(t *testing.T) {
	m := mutator(t)
	for name, raw := range goldenPods(t) {
		t.Run(name, func(t *testing.T) {
			// Fields that no library of today knows must outlive the patch.
			raw = bytes.Replace(raw, []byte(`"image":`), []byte(`"fromTheFuture":{"amount":1.50},"image":`), 1)
			before := decodePod(t, raw)
			result := m.Mutate(before)
			patched := apply(t, raw, result)
			after := decodePod(t, patched)

			again := m.Mutate(after)
			if len(again.Patch) > 0 || again.Outcome == Mutated || !slices.Equal(again.Warnings, result.Warnings) {
				t.Errorf("not idempotent: the patched pod gives %+v", again)
			}
			if result.Outcome != Invalid && (result.Outcome == Mutated) != (len(result.Patch) > 0) {
				t.Errorf("outcome %s with %d operations", result.Outcome, len(result.Patch))
			}
			changed := map[string]bool{}
			for _, op := range result.Patch {
				changed[op.Path] = true
			}
			for _, path := range lost(t, raw, patched) {
				if !changed[path] {
					t.Errorf("%s changed, which the patch does not name", path)
				}
			}
			containersAfter := plan.Containers(&after.Spec)
			for i, c := range plan.Containers(&before.Spec) {
				was, is := c.Resources, containersAfter[i].Resources
				if !was.Limits.Memory().Equal(*is.Limits.Memory()) {
					t.Errorf("container %s: memory limit was %v, is %v", c.Name, was.Limits.Memory(), is.Limits.Memory())
				}
				if !was.Limits.Cpu().IsZero() && !was.Limits.Cpu().Equal(*is.Limits.Cpu()) {
					t.Errorf("container %s: CPU limit was %v, is %v", c.Name, was.Limits.Cpu(), is.Limits.Cpu())
				}
				for _, name := range resized() {
					if w, i := was.Requests[name], is.Requests[name]; w.Cmp(i) > 0 {
						t.Errorf("container %s: request of %s was lowered from %v to %v", c.Name, name, &w, &i)
					}
				}
			}
			warned := slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "will not be Guaranteed") })
			if class, _ := plan.QoS(&after.Spec); result.Outcome == Mutated && (class == corev1.PodQOSGuaranteed) == warned {
				t.Errorf("the pod becomes %s, but the warnings are %q", class, result.Warnings)
			}
		})
	}
}

func TestReview(t *testing.T) {
	request := func(change func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionRequest {
		r := podRequest(goldenPods(t)["guaranteed"])
		change(r)
		return r
	}
	for _, tc := range []struct {
		name    string
		request *admissionv1.AdmissionRequest
		want    Outcome
		err     string
	}{
		{"the creation of a pod is answered", request(func(*admissionv1.AdmissionRequest) {}), Mutated, ""},
		{"a resize, sent by a rule for pods/*, is left alone", request(func(r *admissionv1.AdmissionRequest) {
			r.SubResource, r.Operation = "resize", admissionv1.Update
		}), Ignored, ""},
		{"an update of a pod is left alone", request(func(r *admissionv1.AdmissionRequest) {
			r.Operation = admissionv1.Update
		}), Ignored, ""},
		{"the creation of something else is left alone", request(func(r *admissionv1.AdmissionRequest) {
			r.Resource = metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
		}), Ignored, ""},
		{"a pod that cannot be decoded is an error", request(func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = []byte(`{"spec":[]}`)
		}), "", "decoding the pod"},
		{"a request without a pod is an error", request(func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = nil
		}), "", "decoding the pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			result, err := mutator(t).Review(tc.request)
			if result.Outcome != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %q, %v; want %q, %q", result.Outcome, err, tc.want, tc.err)
			}
		})
	}
}

func BenchmarkMutate(b *testing.B) {
	m, pod := mutator(b), decodePod(b, goldenPods(b)["deployment"])
	b.ReportAllocs()
	for b.Loop() {
		if m.Mutate(pod).Outcome != Mutated {
			b.Fatal("not mutated")
		}
	}
}

func mutator(t testing.TB) Mutator {
	t.Helper()
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	return Mutator{Keys: keys}
}

// goldenPods returns testdata/NAME.pod.yaml as JSON by NAME.
func goldenPods(t testing.TB) map[string][]byte {
	t.Helper()
	const suffix = ".pod.yaml"
	paths, err := filepath.Glob("testdata/*" + suffix)
	if err != nil || len(paths) == 0 {
		t.Fatalf("finding golden pods: %v, %v", paths, err)
	}
	pods := map[string][]byte{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict(text, &pod); err != nil {
			t.Fatalf("%s: %v", path, err) // A misspelt field would test nothing.
		}
		pods[strings.TrimSuffix(filepath.Base(path), suffix)] = raw
	}
	return pods
}

func decodePod(t testing.TB, raw []byte) *corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := json.Unmarshal(raw, &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}

// podRequest is what the API server asks when a pod is created.
func podRequest(pod []byte) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{
		UID:       "705ab4f5-6393-11e8-b7cc-42010a800002",
		Kind:      metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Namespace: "default", Operation: admissionv1.Create,
		Object: runtime.RawExtension{Raw: pod},
	}
}

func apply(t testing.TB, raw []byte, result Result) []byte {
	t.Helper()
	encoded, err := json.Marshal(result.Patch)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Patch) == 0 {
		return raw
	}
	patch, err := applier.DecodePatch(encoded)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := patch.Apply(raw)
	if err != nil {
		t.Fatalf("applying %s: %v", encoded, err)
	}
	return patched
}

// lost returns JSON pointers to what differs in or is missing from after; additions to a map or list do not count.
func lost(t testing.TB, before, after []byte) []string {
	t.Helper()
	var paths []string
	var walk func(path string, a, b any)
	walk = func(path string, a, b any) {
		switch a := a.(type) {
		case map[string]any:
			if b, ok := b.(map[string]any); ok {
				for key, value := range a {
					walk(path+"/"+escape(key), value, b[key])
				}
				return
			}
		case []any:
			if b, ok := b.([]any); ok && len(b) >= len(a) {
				for i, value := range a {
					walk(fmt.Sprintf("%s/%d", path, i), value, b[i])
				}
				return
			}
		}
		if !reflect.DeepEqual(a, b) {
			paths = append(paths, path)
		}
	}
	var a, b any
	if err := json.Unmarshal(before, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(after, &b); err != nil {
		t.Fatal(err)
	}
	walk("", a, b)
	return paths
}
