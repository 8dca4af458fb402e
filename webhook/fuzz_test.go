package webhook

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	strictjson "sigs.k8s.io/json"
)

// FuzzHandler sends anything to both webhooks, as they are served. What an API server could have sent is answered, and as
// Mutate says; all else is answered or refused, in time.
func FuzzHandler(f *testing.F) {
	pods := goldenPods(f)
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		f.Add(false, false, envelope(f, podRequest(pods[name])))
		f.Add(true, true, envelope(f, workloadRequest(workloadOf(f, "CronJob", pods[name]))))
	}
	for _, nested := range []string{`{"request":`, `{"request":{"object":`, `{"request":{"object":{"spec":{"template":`} {
		f.Add(true, false, []byte(nested+strings.Repeat("[", 20_000)))
		f.Add(false, false, []byte(nested+strings.Repeat("[", 9_000)+strings.Repeat("]", 9_000)+strings.Repeat("}", strings.Count(nested, "{"))))
	}
	m := mutator(f)
	handlers := map[bool]http.Handler{false: handler(f, false), true: handler(f, true)}
	f.Fuzz(func(t *testing.T, validating, deny bool, body []byte) {
		path := "/" + mutate
		if validating {
			path = "/" + validate
		}
		response := post(t, handlers[deny], path, body)
		if response != nil {
			checkResponse(t, response, validating, deny)
		}
		if longExponent.Match(body) {
			return // The types of the API, below, would take their time.
		}
		var review admissionv1.AdmissionReview
		if strict, err := strictjson.UnmarshalStrict(body, &review); err != nil || len(strict) > 0 || review.Request == nil || review.Request.UID == "" ||
			review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") {
			return // No API server has sent it.
		}
		r := review.Request
		if response != nil && response.UID != r.UID {
			t.Errorf("the answer to %q is to %q", r.UID, response.UID)
		}
		if validating {
			return // FuzzPodTemplate looks closer.
		}
		if r.Operation != admissionv1.Create || r.SubResource != "" || r.Resource.Group != "" || r.Resource.Resource != "pods" {
			if response == nil || response.Patch != nil || response.Warnings != nil || !response.Allowed {
				t.Errorf("to what is no creation of a pod, the answer is %+v", response)
			}
			return
		}
		var pod corev1.Pod
		if strict, err := strictjson.UnmarshalStrict(r.Object.Raw, &pod); err != nil || len(strict) > 0 {
			return
		}
		want := m.Mutate(&pod)
		apply(t, r.Object.Raw, want)
		checkAnswer(t, response, want, deny)
	})
}

// FuzzMutate holds any pod against what no patch may do, and tells the author of a workload the same as those of its pods.
func FuzzMutate(f *testing.F) {
	pods := goldenPods(f)
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		f.Add(pods[name])
	}
	m := mutator(f)
	handlers := map[bool]http.Handler{false: handler(f, false), true: handler(f, true)}
	f.Fuzz(func(t *testing.T, data []byte) {
		if longExponent.Match(data) {
			return // As above.
		}
		var pod corev1.Pod
		if json.Unmarshal(data, &pod) != nil {
			return
		}
		raw, err := json.Marshal(&pod) // As the API server writes it: each key once, and right.
		if err != nil {
			t.Fatal(err)
		}
		want := m.Mutate(decodePod(t, raw))
		if !m.Keys.OptedIn(pod.Annotations) {
			if want.Outcome != Ignored || want.Patch != nil {
				t.Errorf("of a pod that has not opted in: %+v", want)
			}
		} else if promises(t, raw); t.Failed() {
			t.Fatalf("of the pod %s", raw)
		}
		for deny, h := range handlers {
			response := post(t, h, "/"+mutate, envelope(t, podRequest(raw)))
			checkAnswer(t, response, want, deny)
			checkResponse(t, response, false, deny)
			if pod.Spec.Containers == nil { // Then it is no template.
				continue
			}
			response = post(t, h, "/"+validate, envelope(t, workloadRequest(workloadOf(t, "Deployment", raw))))
			checkResponse(t, response, true, deny)
			lines := said(response)
			if len(lines) != len(want.Warnings) {
				t.Fatalf("the workload's author reads %q, the pod's %q", lines, want.Warnings)
			}
			for i, text := range want.Warnings {
				if field, rest, _ := strings.Cut(text, ": "); strings.HasPrefix(field, "spec.") {
					text = "." + text
				} else if strings.Contains(field, "/") {
					text = ".metadata.annotations[" + field + "]: " + rest
				} else {
					text = ": " + text
				}
				if !strings.HasPrefix(lines[i], "spec.template"+text) {
					t.Errorf("the workload's author reads %q, the pod's %q", lines[i], want.Warnings[i])
				}
			}
		}
	})
}

// FuzzPodTemplate looks up what PodTemplate finds in any object in another way.
func FuzzPodTemplate(f *testing.F) {
	pods := goldenPods(f)
	for i, name := range slices.Sorted(maps.Keys(pods)) {
		f.Add(workloadOf(f, []string{"Deployment", "CronJob"}[i%2], pods[name]))
	}
	m, h := mutator(f), handler(f, false)
	f.Fuzz(func(t *testing.T, object []byte) {
		var template Template
		var found bool
		var err error
		timely(t, len(object), func() { template, found, err = PodTemplate(object) })
		tree := decodeAny(object)
		fields, _ := tree.(map[string]any)
		isPod := fields["apiVersion"] == "v1" && fields["kind"] == "Pod"
		switch {
		case err != nil && (err.Error() == "" || len(err.Error()) > maxWarning || !utf8.ValidString(err.Error()) || strings.ContainsFunc(err.Error(), unicode.IsControl)):
			t.Errorf("the error says %.300q", err)
		case tree != nil && fields == nil && err == nil:
			t.Error("what is no object is no error")
		case found && isPod != (template.Path == ""):
			t.Errorf("a pod: %t, and the path %q", isPod, template.Path)
		case found && !reflect.DeepEqual(decodeAny(template.Raw), walk(tree, template.Path)):
			t.Errorf("at %q, found %s", template.Path, template.Raw)
		case found && err == nil && template.Pod == nil:
			t.Error("neither a pod nor an error")
		}
		path := ""
		for _, p := range slices.Backward(templatePaths()) {
			if walk(tree, p+"/spec/containers") != nil {
				path = p
			}
		}
		if !isPod && (found || err == nil) && (found != (path != "") || template.Path != path) {
			t.Errorf("found %q, want %q", template.Path, path)
		}
		misplaced := m.Misplaced(object)
		if again := m.Misplaced(object); !slices.Equal(misplaced, again) || isPod && misplaced != nil {
			t.Errorf("misplaced are %q and then %q", misplaced, again)
		}

		if tree == nil {
			return // It would not be sent.
		}
		response := post(t, h, "/"+validate, envelope(t, workloadRequest(object)))
		if (response == nil) != (err != nil) {
			t.Errorf("the error is %v, the answer %+v", err, response)
		}
		if response == nil {
			return
		}
		checkResponse(t, response, true, false)
		if !found && (len(response.Warnings) > len(misplaced) || response.AuditAnnotations["outcome"] != string(Ignored)) {
			t.Errorf("of what has no template: %+v", response)
		}
	})
}

// longExponent is in quantities that take apimachinery's parser seconds and more; see quantity.
var longExponent = regexp.MustCompile(`[eE][+-]?[0-9]{6}`)

// handler is what answers both webhooks.
func handler(t testing.TB, deny bool) http.Handler {
	t.Helper()
	m := mutator(t)
	return NewServer(Options{
		Review: m.Review, Validate: m.Validate, DenyInvalid: deny,
		Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
	}).http.Handler
}

func envelope(t testing.TB, request *admissionv1.AdmissionRequest) []byte {
	t.Helper()
	body, err := io.ReadAll(requestReview(t, request))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// timely fails if do takes far longer than the size of its input accounts for, three times: once may be the machine's.
func timely(t *testing.T, size int, do func()) {
	t.Helper()
	limit := time.Second + time.Duration(size)*10*time.Microsecond
	var took time.Duration
	for range 3 {
		start := time.Now()
		do()
		if took = time.Since(start); took < limit {
			return
		}
	}
	t.Errorf("took %s for %d bytes", took, size)
}

// post returns the answer, nil if the body was refused as one that cannot be answered.
func post(t *testing.T, h http.Handler, path string, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	var w *httptest.ResponseRecorder
	timely(t, len(body), func() {
		r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w = httptest.NewRecorder()
		h.ServeHTTP(w, r)
	})
	switch text := w.Body.String(); w.Code {
	case http.StatusOK:
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		if strings.TrimSpace(text) == "" || json.Valid([]byte(text)) {
			t.Errorf("refused without a word: %q", text)
		}
		return nil
	default:
		t.Fatalf("%d %s", w.Code, text)
	}
	var review admissionv1.AdmissionReview
	if strict, err := strictjson.UnmarshalStrict(w.Body.Bytes(), &review); err != nil || len(strict) > 0 || review.Request != nil || review.Response == nil ||
		review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") {
		t.Fatalf("the answer is no AdmissionReview: %s", w.Body)
	}
	return review.Response
}

// An API server passes on warnings of any length until they have 4,096 characters together, and then cuts them.
const (
	maxWarnings = 100
	maxWarning  = 4 << 10
)

// checkResponse holds an answer against what an API server makes of any.
func checkResponse(t *testing.T, r *admissionv1.AdmissionResponse, validating, deny bool) {
	t.Helper()
	outcome := Outcome(r.AuditAnnotations["outcome"])
	allowed := []Outcome{Mutated, Unchanged, Ignored, Invalid}
	if validating {
		allowed = []Outcome{Valid, Unsure, Ignored, Invalid}
	}
	if deny {
		allowed = append(allowed, Denied) // Which of the two, checkAnswer knows.
	}
	lines := said(r)
	switch {
	case r.UID == "", !slices.Contains(allowed, outcome), r.Allowed == (outcome == Denied), (r.Result == nil) == (outcome == Denied),
		(r.Patch == nil) != (r.PatchType == nil), r.Patch != nil && (validating || outcome == Denied), outcome == Mutated && r.Patch == nil,
		len(lines) == 0 && (outcome == Invalid || outcome == Denied || outcome == Unsure):
		t.Errorf("the answer %+v", r)
	case len(lines) > maxWarnings:
		t.Errorf("%d warnings", len(lines))
	}
	if _, named := r.AuditAnnotations["reason"]; named != (outcome == Invalid || outcome == Denied) || named && !slices.Contains(reasons(), r.AuditAnnotations["reason"]) {
		t.Errorf("%s for the reason %q", outcome, r.AuditAnnotations["reason"])
	}
	for _, text := range lines {
		if text == "" || len(text) > maxWarning || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("no API server would pass on the warning %.300q", text)
		}
	}
}

// checkAnswer wants of a pod's creation the answer that Mutate gives.
func checkAnswer(t *testing.T, r *admissionv1.AdmissionResponse, want Result, deny bool) {
	t.Helper()
	if r == nil {
		t.Fatalf("refused; want %+v", want)
	}
	outcome, patch := want.Outcome, want.Patch
	if deny && outcome == Invalid && !want.unsure {
		outcome, patch = Denied, nil
	}
	encoded, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	if patch == nil {
		encoded = nil
	}
	if r.AuditAnnotations["outcome"] != string(outcome) || !bytes.Equal(r.Patch, encoded) || strings.Join(said(r), "\n") != strings.Join(want.Warnings, "\n") {
		t.Errorf("got %+v with the patch %s; want %+v", r, r.Patch, want)
	}
}

// said is what the author reads.
func said(r *admissionv1.AdmissionResponse) []string {
	if r.Result != nil {
		return strings.Split(r.Result.Message, "\n")
	}
	return r.Warnings
}

// decodeAny is JSON of any kind; nil if it is none.
func decodeAny(data []byte) any {
	var tree any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if !json.Valid(data) || decoder.Decode(&tree) != nil {
		return nil
	}
	return tree
}

// walk is what stands at a pointer of plain keys; nil where nothing does.
func walk(tree any, pointer string) any {
	for _, key := range strings.Split(pointer, "/")[1:] {
		fields, _ := tree.(map[string]any)
		tree = fields[key]
	}
	return tree
}
