package webhook

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
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
	for name, raw := range goldenPods(t) {
		t.Run(name, func(t *testing.T) {
			// Fields that no library of today knows must outlive the patch.
			promises(t, bytes.Replace(raw, []byte(`"image":`), []byte(`"fromTheFuture":{"amount":1.50},"image":`), 1))
		})
	}
}

// TestPatchKeepsItsPromisesToAnyPod does so with pods and annotations by chance.
func TestPatchKeepsItsPromisesToAnyPod(t *testing.T) {
	outcomes := map[Outcome]int{}
	for seed := range uint64(1000) {
		raw := anyPod(t, rand.New(rand.NewPCG(seed, 0)))
		outcomes[promises(t, raw)]++
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, raw)
		}
	}
	if outcomes[Mutated] < 250 || outcomes[Invalid] < 250 {
		t.Errorf("too much alike: %v", outcomes)
	}
}

// readsAll: what admission does not decode of a pod changes nothing.
func readsAll(t *testing.T, raw []byte) {
	t.Helper()
	var pod Pod
	if err := json.Unmarshal(raw, &pod); err != nil {
		t.Fatal(err)
	}
	got, err := mutator(t).Review(&Request[Pod]{Operation: admissionv1.Create, Resource: metav1.GroupVersionResource{Resource: "pods"}, Object: &pod})
	if want := mutator(t).Mutate(decodePod(t, raw)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("of what is decoded admission makes %+v, of the whole pod %+v", got, want)
	}
}

// paths are all that a patch may touch.
var paths = regexp.MustCompile(`^(/spec/(initC|c)ontainers/\d+/(resources(/(requests|limits)(/(cpu|memory))?)?|resizePolicy(/-)?|env(/-|/\d+/value)?)` +
	`|/metadata/annotations/resize\.example\.com~1(resolved|guarded|resized|status)` +
	`|/metadata/annotations/(karpenter\.sh~1do-not-disrupt|cluster-autoscaler\.kubernetes\.io~1safe-to-evict)|/metadata/labels(/resize\.example\.com~1managed)?)$`)

func promises(t *testing.T, raw []byte) Outcome {
	t.Helper()
	m := mutator(t)
	before := decodePod(t, raw)
	readsAll(t, raw)
	spec, _ := m.Keys.Parse(before.Annotations, &before.Spec) // For which containers it names.
	result := m.Mutate(before)
	patched := apply(t, raw, result)
	after := decodePod(t, patched)

	again := m.Mutate(defaulted(decodePod(t, patched)))
	if len(again.Patch) > 0 || again.Outcome == Mutated || !slices.Equal(again.Warnings, result.Warnings) {
		t.Errorf("not idempotent: %+v\nand then %+v", result, again)
	}
	if result.Outcome != Invalid && (result.Outcome == Mutated) != (len(result.Patch) > 0) {
		t.Errorf("outcome %s with %d operations", result.Outcome, len(result.Patch))
	}
	changed := map[string]bool{}
	for _, op := range result.Patch {
		changed[op.Path] = true
		if !paths.MatchString(op.Path) {
			t.Errorf("the patch touches %s", op.Path)
		}
	}
	for _, path := range lost(t, raw, patched) {
		if !changed[path] {
			t.Errorf("%s changed, which the patch does not name", path)
		}
	}
	var resolved plan.Resolved
	if result.Outcome != Invalid && m.Keys.OptedIn(before.Annotations) {
		if err := json.Unmarshal([]byte(after.Annotations[m.Keys.Resolved]), &resolved); err != nil {
			t.Error(err)
		}
	}
	if !maps.Equal(unguarded(m.Keys, before), unguarded(m.Keys, after)) {
		t.Errorf("without guards its author had %v, and will have %v", unguarded(m.Keys, before), unguarded(m.Keys, after))
	}
	if result.Outcome != Invalid && spec.ProtectStartup != (m.Keys.Guard(after.Annotations, true) == nil) {
		t.Errorf("protected: %t, and guards %v", spec.ProtectStartup, after.Annotations)
	}
	containersAfter := plan.Containers(&after.Spec)
	for i, c := range plan.Containers(&before.Spec) {
		was, is := c.Resources, containersAfter[i].Resources
		_, named := spec.Steady[c.Name]
		for _, name := range resized() {
			for what, lists := range map[string][2]corev1.ResourceList{"request": {was.Requests, is.Requests}, "limit": {was.Limits, is.Limits}} {
				w, i := lists[0][name], lists[1][name]
				if w.Cmp(i) > 0 && (name == corev1.ResourceMemory || !named) {
					t.Errorf("container %s: %s of %s was lowered from %v to %v", c.Name, what, name, &w, &i)
				}
				if _, asked := spec.Memory[c.Name]; what == "limit" && !w.Equal(i) && !asked && (name == corev1.ResourceMemory || !named && !w.IsZero()) {
					t.Errorf("container %s: limit of %s was %v, is %v", c.Name, name, &w, &i)
				}
			}
		}
		mistaken := was.Limits.Cpu().Cmp(*was.Requests.Cpu()) < 0 && was.Limits != nil // As the API server will say.
		if created := spec.Created(resolved[c.Name]); named && !mistaken && resolved != nil &&
			(is.Requests.Cpu().MilliValue() != int64(created) || is.Limits.Cpu().MilliValue() != int64(created)) {
			t.Errorf("container %s is created with %v, not %s", c.Name, is, created)
		}
	}
	classes := []corev1.PodQOSClass{corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed}
	was, _ := plan.QoS(&before.Spec)
	class, _ := plan.QoS(&after.Spec)
	if slices.Index(classes, class) < slices.Index(classes, was) {
		t.Errorf("the pod was %s, and becomes %s", was, class)
	}
	warned := slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "will not be Guaranteed") })
	if result.Outcome == Mutated && (class == corev1.PodQOSGuaranteed) == warned {
		t.Errorf("the pod becomes %s, but the warnings are %q", class, result.Warnings)
	}
	return result.Outcome
}

// unguarded are a pod's annotations, but for our own, once the guards are off.
func unguarded(keys plan.Keys, pod *corev1.Pod) map[string]string {
	annotations := map[string]string{}
	for key, value := range pod.Annotations {
		if !strings.HasPrefix(key, plan.DefaultDomain) || key == keys.Guarded {
			annotations[key] = value
		}
	}
	for key, value := range keys.Guard(annotations, false) {
		delete(annotations, key)
		if value != nil {
			annotations[key] = *value
		}
	}
	return annotations
}

// defaulted is the pod as the API server shows it to admission: requests are filled in from limits.
func defaulted(pod *corev1.Pod) *corev1.Pod {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			for name, limit := range r.Limits {
				if _, requested := r.Requests[name]; !requested {
					r.Requests = with(r.Requests, name, limit)
				}
			}
		}
	}
	return pod
}

// anyPod has one to four containers and any of the annotations, most of them valid, and sometimes what another pod carried.
func anyPod(t *testing.T, rng *rand.Rand) []byte {
	pick := func(values ...string) string { return values[rng.IntN(len(values))] }
	all := map[string]string{"resize.example.com/enabled": "true"}
	sometimes := func(of int, key string, values ...string) {
		if rng.IntN(of) == 0 {
			all[key] = pick(values...)
		}
	}
	if rng.IntN(6) > 0 {
		all["resize.example.com/steady-cpu"] = pick("50m", "25%", "100%", "0.01%", "app=9.5m,proxy=33.3%", "app=1m,web=10m", "1", "0.0301")
	} else {
		all["resize.example.com/steady-resources"] = pick(`{"app":{"limits":{"cpu":"50m"}}}`, `{"web":{"limits":{"cpu":"0.05"}}}`, `{"proxy":{"requests":{"cpu":"7m"}}}`)
	}
	sometimes(12, "resize.example.com/steady-resources", `{"app":{"limits":{"cpu":"50m"}}}`)
	sometimes(3, "resize.example.com/startup-cpu", "3x", "1x", "200m", "2", "1.5x", "app=50.5m,proxy=2x")
	sometimes(8, "resize.example.com/startup-resources", `{"app":{"limits":{"cpu":"1","memory":"1Gi"}}}`, `{"app":{"limits":{"memory":"64Mi"}}}`)
	sometimes(2, "resize.example.com/boost", "Opportunistic", "Reserve")
	sometimes(4, "resize.example.com/allow-restart", "true")
	sometimes(4, "resize.example.com/trigger", "Ready", "PodCondition=Ready")
	sometimes(16, "resize.example.com/deadline-seconds", "60", "0")
	sometimes(4, "resize.example.com/pin-runtime", "jvm", "jvm", "app=go", "dotnet")
	sometimes(3, "resize.example.com/protect-startup", "true", "true", "false")
	sometimes(3, "karpenter.sh/do-not-disrupt", "true", "5m")
	sometimes(3, "cluster-autoscaler.kubernetes.io/safe-to-evict", "true", "false")
	sometimes(4, "resize.example.com/guarded", "x", `{"karpenter.sh/do-not-disrupt":null}`,
		`{"karpenter.sh/do-not-disrupt":"5m","cluster-autoscaler.kubernetes.io/safe-to-evict":null}`)
	sometimes(4, "resize.example.com/resolved", `{"app":{"startupMilliCPU":200,"steadyMilliCPU":50}}`, `{"app":{"startupMilliCPU":100,"steadyMilliCPU":100}}`, "x")
	sometimes(8, "resize.example.com/resized", "true")
	sometimes(8, "kubectl.kubernetes.io/default-container", "app", "web", "proxy")
	container := func(name string) map[string]any {
		list := func() map[string]any {
			list := map[string]any{}
			if rng.IntN(5) > 0 {
				list["cpu"] = pick("10m", "50m", "0.05", "100m", "200m", "1", "1", "0", "33.3m")
			}
			if rng.IntN(4) > 0 {
				list["memory"] = pick("64Mi", "67108864", "256Mi", "1Gi")
			}
			if rng.IntN(8) == 0 {
				list["example.com/gpu"] = "1"
			}
			return list
		}
		c := map[string]any{"name": name, "image": name}
		variable := map[string]any{"name": pick("A", "JAVA_TOOL_OPTIONS", "GOMAXPROCS"), "value": pick("", "1", "-Xmx1g", "-XX:ActiveProcessorCount=1", "-XX:ActiveProcessorCount=9")}
		switch rng.IntN(6) {
		case 0:
			c["env"] = []any{variable}
		case 1:
			c["env"] = anyOf(rng, nil, []any{}, []any{map[string]any{"name": "B"}, variable}, []any{map[string]any{"name": "JAVA_TOOL_OPTIONS", "valueFrom": map[string]any{}}})
		case 2:
			c["envFrom"] = []any{map[string]any{"prefix": pick("", "JAVA_", "DB_")}}
		}
		switch r := list(); rng.IntN(9) {
		case 0: // Nothing at all.
		case 1:
			c["resources"] = anyOf(rng, nil, map[string]any{}, map[string]any{"requests": nil}, map[string]any{"claims": []any{map[string]any{"name": "x"}}})
		case 2:
			c["resources"] = map[string]any{"limits": r, "requests": r}
		case 3, 4, 5:
			c["resources"] = map[string]any{"limits": r}
		default:
			c["resources"] = map[string]any{"requests": r, "limits": list()}
		}
		if rng.IntN(8) == 0 {
			c["resizePolicy"] = []any{map[string]any{"resourceName": pick("cpu", "memory"), "restartPolicy": pick("RestartContainer", "NotRequired")}}
		}
		return c
	}
	inits, containers := []any{}, []any{container("app")}
	if rng.IntN(3) == 0 {
		containers = append(containers, container("web"))
	}
	if rng.IntN(3) == 0 {
		c := container("proxy")
		c["restartPolicy"] = "Always"
		inits = append(inits, c)
	}
	if rng.IntN(3) == 0 {
		inits = append(inits, container("migrate"))
	}
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": all},
		"spec":     map[string]any{"initContainers": inits, "containers": containers},
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func anyOf(rng *rand.Rand, values ...any) any { return values[rng.IntN(len(values))] }

// What comes between two passes of admission, such as a sidecar, changes nothing of what the first one gave.
func TestASidecarInjectedBetweenTwoPassesChangesNothing(t *testing.T) {
	m := mutator(t)
	for name, raw := range goldenPods(t) {
		t.Run(name, func(t *testing.T) {
			first := m.Mutate(decodePod(t, raw))
			if first.Outcome != Mutated {
				return
			}
			after := decodePod(t, apply(t, raw, first))
			after.Spec.Containers = append(after.Spec.Containers, corev1.Container{Name: "mesh"})
			if again := m.Mutate(after); len(again.Patch) > 0 {
				t.Errorf("the second pass gives %+v", again.Patch)
			}
			// Istio's comes first, and says which one was.
			after = decodePod(t, apply(t, raw, first))
			if kept := "kubectl.kubernetes.io/default-container"; after.Annotations[kept] == "" {
				after.Annotations[kept] = after.Spec.Containers[0].Name
			}
			after.Spec.Containers = slices.Insert(after.Spec.Containers, 0, corev1.Container{Name: "mesh"})
			if again := m.Mutate(after); len(again.Patch) > 0 {
				t.Errorf("behind another, the second pass gives %+v", again.Patch)
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
		{"a request without a pod is an error", request(func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = nil
		}), "", "has no object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			result, err := mutator(t).Review(decoded[Pod](t, tc.request))
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

// decoded is a request as the handler hands it on.
func decoded[T any](t testing.TB, request *admissionv1.AdmissionRequest) *Request[T] {
	t.Helper()
	raw, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	var r Request[T]
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	return &r
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
		case nil:
			return // Nothing was there.
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
