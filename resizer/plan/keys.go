package plan

import (
	"fmt"
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
	Enabled          string // "true" opts the pod in; nothing else is ever touched.
	SteadyResources  string // Steady CPU per container: {"app":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}.
	SteadyCPU        string // The same in short: 50m or 25% (of the startup CPU), or app=50m,proxy=25%.
	StartupResources string // Like SteadyResources, for the startup; may also name memory.
	StartupCPU       string // The same in short: 2 or 3x (the steady CPU), or app=2,proxy=3x.
	Trigger          string // When startup is over; see Trigger.
	DelaySeconds     string // Whole seconds; see Spec.Delay.
	DeadlineSeconds  string // Whole seconds; see Spec.Deadline.
	Boost            string // How the startup CPU is had; see Boost.
	FitAfterSeconds  string // Whole seconds; see Spec.FitAfter.
	OnRestart        string // What a container that restarts gets; see OnRestart.
	PinRuntime       string // app=jvm,web=go; see Runtime.
	ProtectStartup   string // "true": no eviction while the pod starts.
	AllowRestart     string // "true": lowering may restart a container whose resizePolicy says so.

	// Written by admission.
	Managed  string // Label, "true", for selectors.
	Resolved string // Startup and steady CPU of every container; see Resolved.
	Guarded  string // What the author wrote where a guard stands now; see Guard. The resizer removes it.

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
		Enabled:          key("enabled"),
		SteadyResources:  key("steady-resources"),
		SteadyCPU:        key("steady-cpu"),
		StartupResources: key("startup-resources"),
		StartupCPU:       key("startup-cpu"),
		Trigger:          key("trigger"),
		DelaySeconds:     key("delay-seconds"),
		DeadlineSeconds:  key("deadline-seconds"),
		Boost:            key("boost"),
		FitAfterSeconds:  key("fit-after-seconds"),
		OnRestart:        key("on-restart"),
		PinRuntime:       key("pin-runtime"),
		ProtectStartup:   key("protect-startup"),
		AllowRestart:     key("allow-restart"),
		Managed:          key("managed"),
		Resolved:         key("resolved"),
		Guarded:          key("guarded"),
		Resized:          key("resized"),
		Status:           key("status"),
		Steady:           corev1.PodConditionType(key("Steady")),
	}, nil
}

// author are the annotations that an author writes.
func (k Keys) author() []string {
	return []string{
		k.Enabled, k.SteadyResources, k.SteadyCPU, k.StartupResources, k.StartupCPU, k.Trigger, k.DelaySeconds, k.DeadlineSeconds,
		k.Boost, k.FitAfterSeconds, k.OnRestart, k.PinRuntime, k.ProtectStartup, k.AllowRestart,
	}
}

// written says whether an annotation is one that admission or the resizer write.
func (k Keys) written(key string) bool {
	return slices.Contains([]string{k.Resolved, k.Guarded, k.Resized, k.Status}, key)
}

// CheckUnknown names the annotations under the domain that are none of ours: most likely misspelt.
func (k Keys) CheckUnknown(annotations map[string]string) error {
	domain, _, _ := strings.Cut(k.Enabled, "/")
	var errs []error
	for _, key := range sorted(annotations) {
		if strings.HasPrefix(key, domain+"/") && !slices.Contains(k.author(), key) && !k.written(key) {
			names := strings.ReplaceAll(strings.Join(k.author(), ", "), domain+"/", "") // All, and still short.
			errs = append(errs, Problem{Field: key, Message: "is not an annotation of pod-resizer and has no effect",
				Remedy: "write one of " + names + " after the slash, or remove it"})
		}
	}
	return join(errs...)
}

// Concerns says whether there is anything to do with a pod: it has opted in, or most likely meant to, or has opted out and still
// carries something of ours.
func (k Keys) Concerns(pod *corev1.Pod) bool {
	in := Input{Keys: k, Pod: pod}
	return k.OptedIn(pod.Annotations) || k.CheckEnabled(pod.Annotations) != nil || in.carries()
}

// OptedIn says whether the author asked for pod-resizer. Only the exact "true" counts, as for every boolean annotation
// of Kubernetes itself; admission warns about anything else (see CheckEnabled).
func (k Keys) OptedIn(annotations map[string]string) bool { return annotations[k.Enabled] == "true" }
