package plan

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	corev1 "k8s.io/api/core/v1"
)

// testKeys are the names that all tests of this package use.
func testKeys(t testing.TB) Keys {
	t.Helper()
	keys, err := KeysFor(DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestTheNamesThatPeopleTypeDoNotChange(t *testing.T) {
	want := Keys{
		Enabled:          "resize.example.com/enabled",
		SteadyResources:  "resize.example.com/steady-resources",
		SteadyCPU:        "resize.example.com/steady-cpu",
		StartupResources: "resize.example.com/startup-resources",
		StartupCPU:       "resize.example.com/startup-cpu",
		Trigger:          "resize.example.com/trigger",
		DelaySeconds:     "resize.example.com/delay-seconds",
		DeadlineSeconds:  "resize.example.com/deadline-seconds",
		Boost:            "resize.example.com/boost",
		FitAfterSeconds:  "resize.example.com/fit-after-seconds",
		OnRestart:        "resize.example.com/on-restart",
		PinRuntime:       "resize.example.com/pin-runtime",
		ProtectStartup:   "resize.example.com/protect-startup",
		AllowRestart:     "resize.example.com/allow-restart",
		Managed:          "resize.example.com/managed",
		Resolved:         "resize.example.com/resolved",
		Guarded:          "resize.example.com/guarded",
		Resized:          "resize.example.com/resized",
		Status:           "resize.example.com/status",
		Steady:           "resize.example.com/Steady",
	}
	if got := testKeys(t); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAnotherDomainMovesEveryKey(t *testing.T) {
	domains := []string{"cpu.corp.example", "localhost", "a.b", strings.Repeat("a23456789.", 25) + "abc"} // The longest: 253.
	for _, domain := range domains {
		keys, err := KeysFor(domain)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{}
		for field, v := range reflect.ValueOf(keys).Fields() {
			key := v.String()
			if !strings.HasPrefix(key, domain+"/") {
				t.Errorf("%s is %q, not under %q", field.Name, key, domain)
			}
			if problems := validation.IsQualifiedName(key); len(problems) > 0 {
				t.Errorf("%s is %q, which Kubernetes refuses: %v", field.Name, key, problems)
			}
			if other, taken := seen[key]; taken {
				t.Errorf("%s and %s are both %q", field.Name, other, key)
			}
			seen[key] = field.Name
		}
	}
}

func TestADomainThatKubernetesWouldRefuseIsNamed(t *testing.T) {
	for name, domain := range map[string]string{
		"empty":                "",
		"upper case":           "Resize.example.com",
		"with a slash":         "resize.example.com/",
		"with an underscore":   "resize_example.com",
		"beginning with a dot": ".example.com",
		"ending with a dot":    "example.com.",
		"too long":             strings.Repeat("a", 254),
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := KeysFor(domain)
			if err == nil || !strings.HasPrefix(err.Error(), `domain "`+domain+`": `) {
				t.Errorf("got %v, want an error that begins with the domain", err)
			}
			if keys != (Keys{}) {
				t.Errorf("got keys %+v beside the error", keys)
			}
		})
	}
}

func TestOnlyTheExactTrueOptsIn(t *testing.T) {
	keys := testKeys(t)
	cases := []struct {
		name        string
		annotations map[string]string
		optedIn     bool
		problem     string
	}{
		{"without annotations", nil, false, ""},
		{"the annotation of another domain", map[string]string{"other.example.com/enabled": "true"}, false, ""},
		{"true", annotations("enabled", "true"), true, ""},
		{"false says no without a warning", annotations("enabled", "false"), false, ""},
		{
			"yes looks like a wish", annotations("enabled", "yes"), false,
			`resize.example.com/enabled: "yes": is not a boolean, so the pod is not opted in; write "true" or remove the annotation`,
		},
		{
			"True is not what Kubernetes takes", annotations("enabled", "True"), false,
			`resize.example.com/enabled: "True": is not a boolean, so the pod is not opted in; write "true" or remove the annotation`,
		},
		{
			"a blank is easily overlooked", annotations("enabled", "true "), false,
			`resize.example.com/enabled: "true ": is not a boolean, so the pod is not opted in; write "true" or remove the annotation`,
		},
		{
			"empty", annotations("enabled", ""), false,
			`resize.example.com/enabled: "": is not a boolean, so the pod is not opted in; write "true" or remove the annotation`,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := keys.OptedIn(c.annotations); got != c.optedIn {
				t.Errorf("opted in: got %v, want %v", got, c.optedIn)
			}
			if got := texts(keys.CheckEnabled(c.annotations)); strings.Join(got, "\n") != c.problem {
				t.Errorf("got  %q\nwant %q", got, c.problem)
			}
		})
	}
}

func TestMisspeltAnnotationsAreNamed(t *testing.T) {
	keys := testKeys(t)
	all := map[string]string{
		"resize.example.com/resolved": "{}", "resize.example.com/guarded": "{}", "resize.example.com/resized": "true", "resize.example.com/status": "{}",
		"resize.example.com/triger": "Ready", "other.example.com/triger": "x",
	}
	for _, key := range keys.author() {
		all[key] = "x"
	}
	want := "resize.example.com/triger: is not an annotation of pod-resizer and has no effect; write one of enabled, steady-resources, steady-cpu, " +
		"startup-resources, startup-cpu, trigger, delay-seconds, deadline-seconds, boost, fit-after-seconds, on-restart, pin-runtime, protect-startup, " +
		"allow-restart after the slash, or remove it"
	if got := texts(keys.CheckUnknown(all)); strings.Join(got, "\n") != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// FuzzKeysFor: any domain is refused, or makes names that Kubernetes takes.
func FuzzKeysFor(f *testing.F) {
	f.Fuzz(func(t *testing.T, domain string) {
		keys, err := KeysFor(domain)
		if err != nil {
			return
		}
		names := append(keys.author(), keys.Managed, keys.Resolved, keys.Guarded, keys.Resized, keys.Status, string(keys.Steady))
		for i, name := range names {
			if problems := validation.IsQualifiedName(name); len(problems) > 0 || slices.Contains(names[:i], name) {
				t.Errorf("%q is refused or not unique: %v", name, problems)
			}
		}
		if misspelt := map[string]string{domain + "/x": "", domain + "x/y": "", keys.Trigger: "", keys.Status: ""}; len(Problems(keys.CheckUnknown(misspelt))) != 1 {
			t.Errorf("of %v, unknown are %v", misspelt, keys.CheckUnknown(misspelt))
		}
	})
}

// The resizer asks this of every pod of a cluster, most of which are none of its business.
func TestConcernsAllocatesNothingForOthers(t *testing.T) {
	keys := testKeys(t)
	other := testPod(func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "1", "b": "2", "example.com/c": "3"} })
	if n := testing.AllocsPerRun(100, func() { keys.Concerns(other) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
