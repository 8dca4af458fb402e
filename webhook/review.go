package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
)

// maxBody bounds an AdmissionReview: object and oldObject, each up to the 3 MiB that the API server takes as a request
// (MaxRequestBodyBytes in k8s.io/apiserver pkg/server/config.go), and 1 MiB for the rest.
const maxBody = 2*(3<<20) + 1<<20

// reviewer answers AdmissionReviews over HTTP; what the answer is, review says.
type reviewer struct {
	review  func(*admissionv1.AdmissionRequest) (Result, error)
	metrics *metrics
	logger  *slog.Logger
}

// ServeHTTP answers 200 with Allowed, always: a pod that cannot be resized must still be created. To any other status the
// API server applies the webhook's failurePolicy.
func (v *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start, outcome := time.Now(), failed // What a panic leaves behind.
	defer func() { v.metrics.observe(outcome, time.Since(start)) }()

	request, status, err := decode(w, r)
	if err != nil {
		v.refuse(w, status, err)
		return
	}
	result, err := v.review(request)
	if err != nil {
		v.refuse(w, http.StatusBadRequest, err)
		return
	}
	body, err := encode(request, result)
	if err != nil {
		v.refuse(w, http.StatusInternalServerError, err)
		return
	}
	outcome = result.Outcome
	v.logger.Debug("admission request answered", "uid", request.UID, "namespace", request.Namespace,
		"outcome", outcome, "operations", len(result.Patch), "warnings", result.Warnings)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // It fails when the client is gone, which is the client's affair.
}

func (v *reviewer) refuse(w http.ResponseWriter, status int, err error) {
	v.logger.Warn("admission request refused", "status", status, "error", err)
	http.Error(w, err.Error(), status)
}

// decode returns the request, or an error and the HTTP status to answer it with.
func decode(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, int, error) {
	contentType := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("content type %q: expected application/json", contentType)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("reading the AdmissionReview: more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("reading the AdmissionReview: %w", err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
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

func encode(request *admissionv1.AdmissionRequest, result Result) ([]byte, error) {
	response := &admissionv1.AdmissionResponse{
		UID: request.UID, Allowed: true, Warnings: result.Warnings,
		AuditAnnotations: map[string]string{"outcome": string(result.Outcome)},
	}
	if len(result.Patch) > 0 {
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
