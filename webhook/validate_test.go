package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"pod-resizer/resizer/plan"
)

// workloadOf makes a workload of a pod: under spec.template, or where a CronJob has it.
func workloadOf(t testing.TB, kind string, pod []byte) []byte {
	t.Helper()
	spec := map[string]any{"template": json.RawMessage(pod)}
	if kind == "CronJob" {
		spec = map[string]any{"jobTemplate": map[string]any{"spec": spec}}
	}
	object, err := json.Marshal(map[string]any{"kind": kind, "metadata": map[string]any{"name": "x"}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// workloadRequest is what the API server asks when a workload is created.
func workloadRequest(object []byte) *admissionv1.AdmissionRequest {
	r := podRequest(object)
	r.Resource = metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	return r
}

// TestValidateSaysWhatMutateWillSay does so with every golden pod as the template of every kind.
func TestValidateSaysWhatMutateWillSay(t *testing.T) {
	outcomes := map[Outcome]int{}
	for name, raw := range goldenPods(t) {
		for kind, path := range map[string]string{"Deployment": "spec.template", "Rollout": "spec.template", "CronJob": "spec.jobTemplate.spec.template"} {
			got, err := mutator(t).Validate(decoded[json.RawMessage](t, workloadRequest(workloadOf(t, kind, raw))))
			if err != nil {
				t.Fatal(err)
			}
			pod := mutator(t).Mutate(decodePod(t, raw))
			outcomes[got.Outcome]++
			want := map[Outcome][]Outcome{Mutated: {Valid}, Unchanged: {Valid}, Ignored: {Ignored}, Invalid: {Invalid, Unsure}}[pod.Outcome]
			if !slices.Contains(want, got.Outcome) || got.Patch != nil || len(got.Warnings) != len(pod.Warnings) {
				t.Fatalf("%s of %s: got %+v, pods get %+v", kind, name, got, pod)
			}
			for i, text := range got.Warnings {
				field, rest, _ := strings.Cut(pod.Warnings[i], ": ")
				switch {
				case strings.HasPrefix(field, "spec."):
					field = path + "." + field
				case strings.Contains(field, "/"):
					field = path + ".metadata.annotations[" + field + "]"
				default:
					field = path + ": " + field
				}
				if !strings.HasPrefix(text, field+": "+rest) {
					t.Errorf("%s of %s: %q, pods get %q", kind, name, text, pod.Warnings[i])
				}
			}
		}
	}
	if len(outcomes) != 4 {
		t.Errorf("too much alike: %v", outcomes)
	}
}

func TestValidate(t *testing.T) {
	object := func(annotations, container string) string {
		return `{"kind":"Deployment","spec":{"template":{"metadata":{"annotations":{"resize.example.com/enabled":"true"` + annotations +
			`}},"spec":{"containers":[{"name":"app"` + container + `}]}}}}`
	}
	const (
		steady    = `,"resize.example.com/steady-cpu":"50m"`
		resources = `,"resources":{"limits":{"cpu":"200m","memory":"64Mi"}},"startupProbe":{}`
	)
	pods := goldenPods(t)
	deployment := workloadOf(t, "Deployment", pods["deployment"])
	for _, tc := range []struct {
		name     string
		request  *admissionv1.AdmissionRequest
		want     Outcome
		warnings []string // The beginning of each.
	}{
		{"a workload that is right", workloadRequest([]byte(object(steady, resources))), Valid, nil},
		{"one that is changed", toReview(workloadRequest(deployment), admissionv1.Update, ""), Valid, nil},
		{"one that is wrong", workloadRequest([]byte(object(steady+`,"resize.example.com/trigger":"x"`, resources))), Invalid,
			[]string{`spec.template.metadata.annotations[resize.example.com/trigger]: "x": is not a trigger`}},
		{"a container that may be injected", workloadRequest([]byte(object(`,"resize.example.com/steady-cpu":"mesh=5m"`, resources))), Unsure,
			[]string{`spec.template.metadata.annotations[resize.example.com/steady-cpu]: container "mesh": `}},
		{"CPU that may come from a LimitRange", workloadRequest([]byte(object(steady, ""))), Unsure, []string{`spec.template: resources: container "app": `}},
		{"an injected container beside what is wrong", workloadRequest([]byte(object(`,"resize.example.com/steady-cpu":"app=x,mesh=5m"`, resources))), Invalid,
			[]string{`spec.template.metadata.annotations[resize.example.com/steady-cpu]: `, `spec.template.metadata.annotations[resize.example.com/steady-cpu]: `}},
		{"an annotation in the wrong place", workloadRequest([]byte(`{"kind":"Deployment","metadata":{"annotations":{"resize.example.com/enabled":"true"}},"spec":{"template":{"spec":{"containers":[]}}}}`)),
			Ignored, []string{"resize.example.com/enabled: stands in metadata.annotations, which pods do not get"}},
		{"a deletion", toReview(workloadRequest(nil), admissionv1.Delete, ""), Ignored, nil},
		{"scale", toReview(workloadRequest([]byte(`{"kind":"Scale"}`)), admissionv1.Update, "scale"), Ignored, nil},
		{"a pod", podRequest(pods["bad-json"]), Ignored, nil},
		{"a Service", workloadRequest([]byte(`{"kind":"Service","spec":{"ports":[]}}`)), Ignored, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := mutator(t).Validate(decoded[json.RawMessage](t, tc.request))
			if err != nil || got.Outcome != tc.want || got.Patch != nil || !slices.EqualFunc(got.Warnings, tc.warnings, strings.HasPrefix) {
				t.Errorf("got %+v, %v; want %s %q", got, err, tc.want, tc.warnings)
			}
			if n := strings.Count(strings.Join(got.Warnings, ""), "; or leave it, if it is added to the pods"); (n > 0) != (tc.want == Unsure) {
				t.Errorf("%s: %q", tc.want, got.Warnings)
			}
		})
	}
}

// toReview changes what is asked.
func toReview(r *admissionv1.AdmissionRequest, operation admissionv1.Operation, subresource string) *admissionv1.AdmissionRequest {
	r.Operation, r.SubResource = operation, subresource
	r.OldObject = runtime.RawExtension{Raw: []byte(`{}`)}
	return r
}

func TestThousandsOfProblemsInAWorkloadAreFewWarnings(t *testing.T) {
	var misplaced, annotations []string
	for i := range 3000 {
		misplaced = append(misplaced, fmt.Sprintf(`"resize.example.com/a%d":"x"`, i))
		annotations = append(annotations, fmt.Sprintf(`\"%d\":{}`, i))
	}
	got, err := mutator(t).Validate(decoded[json.RawMessage](t, workloadRequest([]byte(`{"kind":"Deployment","metadata":{"annotations":{`+strings.Join(misplaced, ",")+
		`}},"spec":{"template":{"metadata":{"annotations":{"resize.example.com/enabled":"true","resize.example.com/steady-resources":"{`+strings.Join(annotations, ",")+
		`}"}},"spec":{"containers":[{"name":"app"}]}}}}`))))
	if err != nil || len(got.Warnings) > 11+maxMisplaced || len(strings.Join(got.Warnings, "")) > 10_000 {
		t.Errorf("%v; %d warnings: %.2000q", err, len(got.Warnings), got.Warnings)
	}
}

func TestWhatIsInvalidIsDeniedWhereTheOperatorWantsIt(t *testing.T) {
	const steady = "resize.example.com/steady-resources"
	pods := goldenPods(t)
	for _, deny := range []bool{false, true} {
		s := start(t, Options{DenyInvalid: deny})
		for _, tc := range []struct {
			name, path string
			request    *admissionv1.AdmissionRequest
			outcome    Outcome // When nothing is denied.
			says       string
		}{
			{"a pod", mutate, podRequest(pods["bad-json"]), Invalid, steady + ": "},
			{"a pod that came with another's numbers", mutate, podRequest(pods["invalid-reapplied"]), Invalid, "resize.example.com/"},
			{"a workload", validate, workloadRequest(workloadOf(t, "Deployment", pods["bad-json"])), Invalid, "spec.template.metadata.annotations[" + steady + "]: "},
			{"a CronJob", validate, workloadRequest(workloadOf(t, "CronJob", pods["bad-json"])), Invalid, "spec.jobTemplate.spec.template.metadata.annotations[" + steady + "]: "},
			{"a right pod", mutate, podRequest(pods["deployment"]), Mutated, ""},
			{"a right workload", validate, workloadRequest(workloadOf(t, "Deployment", pods["deployment"])), Valid, ""},
			{"a pod not opted in", mutate, podRequest(pods["enabled-yes"]), Ignored, "resize.example.com/enabled: "},
			{"a workload that may yet be right", validate, workloadRequest(workloadOf(t, "Deployment", pods["no-cpu-at-all"])), Unsure, "spec.template: resources: "},
		} {
			t.Run(fmt.Sprintf("%s, deny %t", tc.name, deny), func(t *testing.T) {
				status, body := s.postTo(t, "/"+tc.path, "application/json", requestReview(t, tc.request))
				var review admissionv1.AdmissionReview
				if err := json.Unmarshal([]byte(body), &review); err != nil || status != http.StatusOK || review.Response == nil {
					t.Fatalf("got %d %s, %v", status, body, err)
				}
				r, denied := review.Response, deny && tc.outcome == Invalid
				outcome, text := tc.outcome, strings.Join(r.Warnings, "\n")
				if denied {
					outcome = Denied
					if r.Result == nil || r.Result.Code != http.StatusBadRequest || r.Patch != nil || r.PatchType != nil || r.Warnings != nil {
						t.Fatalf("got %s", body)
					}
					text = r.Result.Message
				}
				if r.Allowed == denied || r.UID != tc.request.UID || r.AuditAnnotations["outcome"] != string(outcome) ||
					(r.AuditAnnotations["reason"] != "") != (tc.outcome == Invalid) || !strings.HasPrefix(text, tc.says) {
					t.Errorf("got %s", body)
				}
				if tc.path == validate && (r.Patch != nil || r.PatchType != nil) {
					t.Errorf("a validating webhook may not patch: %s", body)
				}
			})
		}
		outcome := Invalid
		if deny {
			outcome = Denied
		}
		s.wantCount(t, mutate, outcome, 2)
		s.wantCount(t, validate, outcome, 2)
		if got, want := s.get(t, "/metrics"), "pod_resizer_admission_invalid_total{reason=\"steady-resources\",webhook=\"validate\"} 2\n"; !strings.Contains(got, want) {
			t.Errorf("want %s in\n%s", want, got)
		}
	}
}

// TestReasons: each annotation of an author is one, and what is wrong with any golden pod or workload has one.
func TestReasons(t *testing.T) {
	m := mutator(t)
	unknown := map[string]string{"resize.example.com/x": ""}
	_, names, _ := strings.Cut(plan.Problems(m.Keys.CheckUnknown(unknown))[0].Remedy, "write one of ")
	names, _, _ = strings.Cut(names, " after")
	for name := range strings.SplitSeq(names, ", ") {
		if name != "enabled" && !slices.Contains(reasons(), name) { // A pod with a wrong one of that has not opted in.
			t.Errorf("%s is no reason", name)
		}
	}
	for text, want := range map[string]string{
		"resize.example.com/trigger: \"a: b/c\": is wrong; write":                              "trigger",
		"spec.template.metadata.annotations[resize.example.com/boost]: \"x\": is wrong; write": "boost",
		"resources: container \"a/trigger\": has no CPU; write":                                "pod",
		"spec.template: resources: container \"a\": has no CPU; write":                         "pod",
		"kubernetes.io/config.mirror: static; remove":                                          "pod",
		"": "pod",
	} {
		if got := reasonFor(Result{Outcome: Invalid, Warnings: []string{text}}); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := reasonFor(Result{Outcome: Valid, Warnings: []string{"resize.example.com/trigger: x"}}); got != "" {
		t.Errorf("what is valid has the reason %q", got)
	}
}
