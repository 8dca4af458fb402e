package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultDomain prefixes every annotation, label and condition unless the operator chose another with --domain.
const DefaultDomain = "resize.example.com"

// Keys are the names that admission, the resizer and the people who run them agree on, all under one domain.
type Keys struct {
	// Written by the author of the pod (template).
	Enabled         string // "true" opts the pod in; nothing else is ever touched.
	SteadyResources string // Steady CPU per container: {"app":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}.
	Trigger         string // When startup is over; see Trigger.
	DelaySeconds    string // Whole seconds; see Spec.Delay.

	// Written by admission.
	Managed  string // Label, "true", for selectors.
	Resolved string // Startup and steady CPU of every container; see Resolved.

	// Written by the resizer.
	Resized string // "true" once the kubelet has actuated the steady CPU.
	Status  string // Phase, reason and figures for people and scripts; see Status.

	// Steady is the type of the pod condition that says whether the pod runs at its steady CPU. It is absent while the
	// pod starts, so that `kubectl wait --for=condition=...` waits.
	Steady corev1.PodConditionType
}

// KeysFor returns the names under a domain, which must be a DNS subdomain because annotation keys demand one.
func KeysFor(domain string) (Keys, error) {
	if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 {
		return Keys{}, fmt.Errorf("domain %q: %s", domain, strings.Join(problems, "; "))
	}
	key := func(name string) string { return domain + "/" + name }
	return Keys{
		Enabled:         key("enabled"),
		SteadyResources: key("steady-resources"),
		Trigger:         key("trigger"),
		DelaySeconds:    key("delay-seconds"),
		Managed:         key("managed"),
		Resolved:        key("resolved"),
		Resized:         key("resized"),
		Status:          key("status"),
		Steady:          corev1.PodConditionType(key("Steady")),
	}, nil
}

// author are the annotations that an author writes.
func (k Keys) author() []string {
	return []string{k.Enabled, k.SteadyResources, k.Trigger, k.DelaySeconds}
}

// CheckUnknown names the annotations under the domain that are none of ours: most likely misspelt.
func (k Keys) CheckUnknown(annotations map[string]string) error {
	domain, _, _ := strings.Cut(k.Enabled, "/")
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, domain+"/") && !slices.Contains(k.author(), key) && !slices.Contains([]string{k.Resolved, k.Resized, k.Status}, key) {
			errs = append(errs, Problem{Field: key, Message: "is not an annotation of pod-resizer and has no effect",
				Remedy: "write one of " + list(k.author()) + ", or remove it"})
		}
	}
	return join(errs...)
}

// OptedIn says whether the author asked for pod-resizer. Only the exact "true" counts, as for every boolean annotation
// of Kubernetes itself; admission warns about anything else (see CheckEnabled).
func (k Keys) OptedIn(annotations map[string]string) bool { return annotations[k.Enabled] == "true" }
