package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Denied is Invalid, and refused because the operator wants it so.
const Denied Outcome = "denied"

// maxBody bounds an AdmissionReview: object and oldObject, each up to the 3 MiB that the API server takes as a request
// (MaxRequestBodyBytes in k8s.io/apiserver pkg/server/config.go), and 1 MiB for the rest.
const maxBody = 2*(3<<20) + 1<<20

// Request is what a webhook reads of an AdmissionRequest whose object is a T. An answer costs little but the decoding of the
// question, so it is decoded once, and no more of it than is needed.
type Request[T any] struct {
	UID         types.UID                   `json:"uid"`
	Namespace   string                      `json:"namespace"`
	Operation   admissionv1.Operation       `json:"operation"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	SubResource string                      `json:"subResource"`
	Object      *T                          `json:"object"`
}

var errNoObject = errors.New("the AdmissionReview's request has no object")

// presize is room for a usual AdmissionReview; a bigger one has to arrive before it gets any more.
const presize = 16 << 10

// reviewer answers AdmissionReviews of objects that are a T over HTTP; what the answer is, review says.
type reviewer[T any] struct {
	webhook string // As the metrics name it.
	review  func(*Request[T]) (Result, error)
	deny    bool // Whether what is Invalid is refused.
	metrics *metrics
	logger  *slog.Logger
}

// ServeHTTP answers 200 with Allowed, always, unless the operator wants what is invalid denied: a pod that cannot be resized
// must still be created. To any other status the API server applies the webhook's failurePolicy, so an error denies nothing.
func (v *reviewer[T]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start, outcome, reason := time.Now(), failed, "" // What a panic leaves behind.
	defer func() { v.metrics.observe(v.webhook, outcome, reason, time.Since(start)) }()

	request, status, err := decode[T](w, r)
	if err != nil {
		v.refuse(w, status, err)
		return
	}
	result, err := v.review(request)
	if err != nil {
		v.refuse(w, http.StatusBadRequest, err)
		return
	}
	why := reasonFor(result)
	if v.deny && result.Outcome == Invalid && !result.unsure {
		result.Outcome = Denied
	}
	body, err := encode(request.UID, result, why)
	if err != nil {
		v.refuse(w, http.StatusInternalServerError, err)
		return
	}
	outcome, reason = result.Outcome, why
	v.logger.LogAttrs(r.Context(), slog.LevelDebug, "admission request answered", slog.String("webhook", v.webhook), slog.Any("uid", request.UID),
		slog.String("namespace", request.Namespace), slog.Any("outcome", outcome), slog.String("reason", reason),
		slog.Int("operations", len(result.Patch)), slog.Any("warnings", result.Warnings))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // It fails when the client is gone, which is the client's affair.
}

func (v *reviewer[T]) refuse(w http.ResponseWriter, status int, err error) {
	v.logger.Warn("admission request refused", "webhook", v.webhook, "status", status, "error", err)
	http.Error(w, err.Error(), status)
}

// decode returns the request, or an error and the HTTP status to answer it with.
func decode[T any](w http.ResponseWriter, r *http.Request) (*Request[T], int, error) {
	contentType := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("content type %q: expected application/json", contentType)
	}
	body := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), presize)+bytes.MinRead))
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("reading the AdmissionReview: more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("reading the AdmissionReview: %w", err)
	}
	var review struct {
		metav1.TypeMeta
		Request *Request[T] `json:"request"`
	}
	if err := json.Unmarshal(body.Bytes(), &review); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("decoding the AdmissionReview: %w", err)
	}
	switch {
	case review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"):
		return nil, http.StatusBadRequest, fmt.Errorf("kind %q of apiVersion %q: expected AdmissionReview of %s",
			review.Kind, review.APIVersion, admissionv1.SchemeGroupVersion)
	case review.Request == nil:
		return nil, http.StatusBadRequest, errors.New("the AdmissionReview has no request")
	case review.Request.UID == "":
		return nil, http.StatusBadRequest, errors.New("the AdmissionReview's request has no uid")
	}
	return review.Request, http.StatusOK, nil
}

// reasons are what can be wrong, in short: an annotation, without its domain, or the pod itself, which is the last.
func reasons() []string {
	return []string{
		"steady-resources", "steady-cpu", "startup-resources", "startup-cpu", "trigger", "delay-seconds", "deadline-seconds", "boost",
		"fit-after-seconds", "on-restart", "pin-runtime", "protect-startup", "allow-restart", "pod",
	}
}

// reasonFor is the first of what is wrong with an invalid pod; empty for any other.
func reasonFor(result Result) string {
	if result.Outcome != Invalid || len(result.Warnings) == 0 {
		return ""
	}
	field, _, _ := strings.Cut(result.Warnings[0], ": ")
	name := strings.TrimSuffix(field[strings.LastIndexByte(field, '/')+1:], "]")
	if all := reasons(); !slices.Contains(all, name) {
		return all[len(all)-1]
	}
	return name
}

func encode(uid types.UID, result Result, reason string) ([]byte, error) {
	response := &admissionv1.AdmissionResponse{
		UID: uid, Allowed: true, Warnings: result.Warnings,
		AuditAnnotations: map[string]string{"outcome": string(result.Outcome)},
	}
	if reason != "" {
		response.AuditAnnotations["reason"] = reason
	}
	switch {
	case result.Outcome == Denied:
		response.Allowed, response.Warnings = false, nil
		// Not 422, which kubectl prints without the name of the file; older ones without this message, too.
		response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest,
			Message: strings.Join(result.Warnings, "\n"),
		}
	case len(result.Patch) > 0:
		patch, err := json.Marshal(result.Patch)
		if err != nil {
			return nil, fmt.Errorf("encoding the patch: %w", err)
		}
		// The API server takes patch and patchType together or not at all.
		patchType := admissionv1.PatchTypeJSONPatch
		response.Patch, response.PatchType = patch, &patchType
	}
	review := admissionv1.AdmissionReview{Response: response}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	body, err := json.Marshal(review)
	if err != nil {
		return nil, fmt.Errorf("encoding the AdmissionReview: %w", err)
	}
	return body, nil
}
