package plan

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// resources takes CPU amounts; an empty one is left out.
func resources(request, limit string) corev1.ResourceRequirements {
	list := func(cpu string) corev1.ResourceList {
		if cpu == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	return corev1.ResourceRequirements{Requests: list(request), Limits: list(limit)}
}

func TestResolve(t *testing.T) {
	type containers map[string]corev1.ResourceRequirements // Those of typicalSpec.
	cases := []struct {
		name   string
		cpu    containers
		steady map[string]MilliCPU
		want   Resolved
	}{
		{
			"the limit is the startup CPU",
			containers{"app": resources("100m", "200m")},
			map[string]MilliCPU{"app": 50},
			Resolved{"app": {200, 50}},
		},
		{
			"without a limit the request is",
			containers{"app": resources("100m", "")},
			map[string]MilliCPU{"app": 50},
			Resolved{"app": {100, 50}},
		},
		{
			"a limit of zero is none",
			containers{"app": resources("100m", "0")},
			map[string]MilliCPU{"app": 50},
			Resolved{"app": {100, 50}},
		},
		{
			"containers that are not named keep what they have",
			containers{"app": resources("2", "2"), "log": resources("20m", "30m"), "migrate": resources("1", "1"), "proxy": resources("", "10m")},
			map[string]MilliCPU{"app": 50},
			Resolved{"app": {2000, 50}, "log": {30, 30}, "migrate": {1000, 1000}, "proxy": {10, 10}},
		},
		{
			"containers without CPU are left out",
			containers{"app": resources("200m", "200m"), "log": resources("0", "0")},
			map[string]MilliCPU{"app": 50},
			Resolved{"app": {200, 50}},
		},
		{
			"a native sidecar is lowered like any other",
			containers{"app": resources("200m", "200m"), "proxy": resources("100m", "100m")},
			map[string]MilliCPU{"app": 50, "proxy": 20},
			Resolved{"app": {200, 50}, "proxy": {100, 20}},
		},
		{
			"steady may equal startup",
			containers{"app": resources("50m", "50m")},
			map[string]MilliCPU{"app": 50},
			Resolved{"app": {50, 50}},
		},
		{
			"startup is rounded up to millicores, as the API server does",
			containers{"app": resources("", "0.0501")},
			map[string]MilliCPU{"app": 51},
			Resolved{"app": {51, 51}},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := testKeys(t).Resolve(specWith(c.cpu), Spec{Steady: wants(c.steady)})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestResolveRelatesOneCPUToTheOther(t *testing.T) {
	const stale = `{"app":{"startupMilliCPU":200,"steadyMilliCPU":50}}`
	at := func(cpu string) corev1.ResourceRequirements { return resources(cpu, cpu) }
	cases := []struct {
		name        string
		app         corev1.ResourceRequirements
		annotations map[string]string
		want        CPU
	}{
		{"a part of the limit", resources("100m", "200m"), annotations("steady-cpu", "25%"), CPU{200, 50}},
		{"a part of the request, where there is no limit", resources("200m", ""), annotations("steady-cpu", "25%"), CPU{200, 50}},
		{"a part of the startup CPU that is asked for", at("1"), annotations("steady-cpu", "25%", "startup-cpu", "200m"), CPU{200, 50}},
		{"a part of the startup CPU of a container that has none itself", resources("", ""), annotations("steady-cpu", "25%", "startup-cpu", "2"), CPU{2000, 500}},
		{"a part is rounded up", at("10m"), annotations("steady-cpu", "0.001%"), CPU{10, 1}},
		{"a third of a core", at("1"), annotations("steady-cpu", "33.333%"), CPU{1000, 334}},
		{"all of it", at("200m"), annotations("steady-cpu", "100%"), CPU{200, 200}},
		{"a multiple of the steady CPU, whatever the limit is", at("1"), annotations("steady-cpu", "50m", "startup-cpu", "3x"), CPU{150, 50}},
		{"a multiple is rounded up", at("1"), annotations("steady-cpu", "33m", "startup-cpu", "1.001x"), CPU{34, 33}},
		{"once the steady CPU", at("1"), annotations("steady-cpu", "50m", "startup-cpu", "1x"), CPU{50, 50}},
		{"the long forms", at("1"), annotations("steady-resources", app50m, "startup-resources", `{"app":{"limits":{"cpu":2}}}`), CPU{2000, 50}},
		{"the startup CPU may be less than the limit", at("1"), annotations("steady-cpu", "50m", "startup-cpu", "500m"), CPU{500, 50}},
		{"more than any node has is no matter where less is asked for", at("10001"), annotations("steady-cpu", "50m", "startup-cpu", "500m"), CPU{500, 50}},

		// What the pod carries.
		{"at the steady CPU that resolved tells: the second pass", at("50m"), annotations("steady-cpu", "50m", "resolved", stale), CPU{200, 50}},
		{"at the steady CPU in other words", at("0.05"), annotations("steady-cpu", "0.05", "resolved", stale), CPU{200, 50}},
		{"a part does not become a part of a part", at("50m"), annotations("steady-cpu", "25%", "resolved", stale), CPU{200, 50}},
		{"another part is asked for by now", at("50m"), annotations("steady-cpu", "50%", "resolved", stale), CPU{50, 25}},
		{"less is asked for by now", at("50m"), annotations("steady-cpu", "40m", "resolved", stale), CPU{50, 40}},
		{"the container has something else by now", at("100m"), annotations("steady-cpu", "50m", "resolved", stale), CPU{100, 50}},
		{"its limit is something else by now", resources("50m", "100m"), annotations("steady-cpu", "50m", "resolved", stale), CPU{100, 50}},
		{"its request is something else by now", resources("20m", "50m"), annotations("steady-cpu", "50m", "resolved", stale), CPU{50, 50}},
		{"its limit is gone by now", resources("50m", ""), annotations("steady-cpu", "50m", "resolved", stale), CPU{50, 50}},
		{"another startup CPU is asked for by now", at("50m"), annotations("steady-cpu", "50m", "startup-cpu", "300m", "resolved", stale), CPU{300, 50}},
		{"resolved is garbage", at("50m"), annotations("steady-cpu", "50m", "resolved", "x"), CPU{50, 50}},
		{"resolved is of another pod", at("50m"), annotations("steady-cpu", "50m", "resolved", `{"web":{"startupMilliCPU":200,"steadyMilliCPU":50}}`), CPU{50, 50}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pod := specWith(map[string]corev1.ResourceRequirements{"app": c.app, "log": at("50m")})
			spec, err := testKeys(t).Parse(c.annotations, pod)
			if err != nil {
				t.Fatal(err)
			}
			got, err := testKeys(t).Resolve(pod, spec)
			if want := (Resolved{"app": c.want, "log": {50, 50}}); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v, %v\nwant %v", got, err, want)
			}
		})
	}
}

func TestResolveTellsWhatComesToTooMuch(t *testing.T) {
	pod := specWith(map[string]corev1.ResourceRequirements{"app": resources("1", "1"), "log": resources("", "")})
	for name, c := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"a factor":       {annotations("steady-cpu", "11", "startup-cpu", "1000x"), `resize.example.com/startup-cpu: container "app": "1000x": is more than any node has (10k); write less`},
		"a steady CPU":   {annotations("steady-cpu", "3", "startup-cpu", "2"), `resize.example.com/steady-cpu: container "app": "3": is more than its startup CPU, 2; write less, or raise resize.example.com/startup-cpu`},
		"a part of none": {annotations("steady-cpu", "log=25%"), `resources: container "log": has neither a CPU limit nor a CPU request, so there is nothing to lower; set resources.limits.cpu, or resize.example.com/startup-cpu, to what it needs while it starts`},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := testKeys(t).Parse(c.annotations, pod)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := testKeys(t).Resolve(pod, spec); len(texts(err)) != 1 || texts(err)[0] != c.want || got != nil {
				t.Errorf("got  %v, %v\nwant %s", got, err, c.want)
			}
		})
	}
}

// specWith is typicalSpec with CPU.
func specWith(cpu map[string]corev1.ResourceRequirements) *corev1.PodSpec {
	spec := typicalSpec()
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].Resources = cpu[containers[i].Name]
		}
	}
	return spec
}

func TestResolveTellsTheAuthorWhatToMend(t *testing.T) {
	spec := specWith(map[string]corev1.ResourceRequirements{
		"app": resources("40m", "40m"), "migrate": resources("10000", "10001"),
	})
	got, err := testKeys(t).Resolve(spec, Spec{Steady: map[string]Want{
		"app": {Amount: 50, Field: "resize.example.com/steady-resources", Text: "50m"}, "log": {Amount: 10}, "proxy": {Share: 25_000},
	}})
	want := []string{
		`resources.limits.cpu: container "migrate": is more than any node has (10k); write less`,
		`resources: container "proxy": has neither a CPU limit nor a CPU request, so there is nothing to lower; set resources.limits.cpu, or resize.example.com/startup-cpu, to what it needs while it starts`,
		`resize.example.com/steady-resources: container "app": "50m": is more than its startup CPU, 40m; write less, or raise resources.limits.cpu`,
		`resources: container "log": has neither a CPU limit nor a CPU request, so there is nothing to lower; set resources.limits.cpu, or resize.example.com/startup-cpu, to what it needs while it starts`,
	}
	if !reflect.DeepEqual(texts(err), want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(texts(err), "\n"), strings.Join(want, "\n"))
	}
	if got != nil {
		t.Errorf("got %v beside the problems", got)
	}
}

func TestResolveTellsWhatIsMoreThanAnyNodeHas(t *testing.T) {
	// Of these only the first fits into 64 bits of millicores.
	for _, limit := range []string{"10001", "9223372036854776", "1e16", "9Ei"} {
		t.Run(limit, func(t *testing.T) {
			spec := specWith(map[string]corev1.ResourceRequirements{"app": resources(limit, limit)})
			got, err := testKeys(t).Resolve(spec, Spec{Steady: wants(map[string]MilliCPU{"app": 50})})
			if problems := Problems(err); len(problems) != 1 || problems[0].Message != "is more than any node has (10k)" {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestResolvedIsKeptAsText(t *testing.T) {
	resolved := Resolved{"b": {2000, 50}, "a": {100, 100}}
	const want = `{"a":{"startupMilliCPU":100,"steadyMilliCPU":100},"b":{"startupMilliCPU":2000,"steadyMilliCPU":50}}`
	if got := resolved.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	back, err := testKeys(t).parseResolved(want)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, resolved) {
		t.Errorf("read back as %v", back)
	}
	if most, err := testKeys(t).parseResolved(`{"a":{"startupMilliCPU":10000000,"steadyMilliCPU":1}}`); err != nil || most["a"].Startup != 10_000_000 {
		t.Errorf("10,000 cores read as %v, %v", most, err)
	}
	if got := resolved.Released(); got != 1950 {
		t.Errorf("releases %s, want 1950m", got)
	}
}

func TestParseResolvedRefusesGarbage(t *testing.T) {
	const (
		remedy = `; remove it and recreate the pod: admission writes it`
		app    = `container "app": the steady CPU must be more than zero and at most the startup CPU` + remedy
	)
	cases := []struct{ name, value, want string }{
		{"empty", ``, `resize.example.com/resolved: "": is not the JSON that admission writes (unexpected end of JSON input)` + remedy},
		{"not JSON", `x`, `resize.example.com/resolved: "x": is not the JSON that admission writes (invalid character 'x' looking for beginning of value)` + remedy},
		{"a steady CPU of zero", `{"app":{"startupMilliCPU":200}}`, `resize.example.com/resolved: '{"app":{"startupMilliCPU":200}}': ` + app},
		{"a steady CPU below zero", `{"app":{"steadyMilliCPU":-1}}`, `resize.example.com/resolved: '{"app":{"steadyMilliCPU":-1}}': ` + app},
		{"a steady CPU above the startup CPU", `{"app":{"startupMilliCPU":1,"steadyMilliCPU":2}}`, `resize.example.com/resolved: '{"app":{"startupMilliCPU":1,"steadyMilliCPU":2}}': ` + app},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := testKeys(t).parseResolved(c.value)
			if err == nil || err.Error() != c.want || got != nil {
				t.Errorf("got  %v, %v\nwant %s", got, err, c.want)
			}
			checkProblems(t, err)
		})
	}
	// Of these only the refusal matters.
	for name, value := range map[string]string{
		"null":                     `null`,
		"no container":             `{}`,
		"a list":                   `[]`,
		"a null container":         `{"app":null}`,
		"a quantity":               `{"app":{"startupMilliCPU":"200m","steadyMilliCPU":"50m"}}`,
		"half a millicore":         `{"app":{"startupMilliCPU":200,"steadyMilliCPU":50.5}}`,
		"more than fits a number":  `{"app":{"startupMilliCPU":9223372036854775808,"steadyMilliCPU":50}}`,
		"more than any node has":   `{"app":{"startupMilliCPU":10000001,"steadyMilliCPU":50}}`,
		"something after the JSON": `{"app":{"startupMilliCPU":200,"steadyMilliCPU":50}}x`,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := testKeys(t).parseResolved(value); err == nil {
				t.Errorf("accepted as %v", got)
			}
		})
	}
}

// A message that changes from one look to the next would be written to the pod each time, and each write brings the next look.
func TestTheSameGarbageAlwaysGivesTheSameMessage(t *testing.T) {
	const value = `{"a":{},"b":{},"c":{},"d":{}}`
	_, first := testKeys(t).parseResolved(value)
	for range 50 {
		if _, again := testKeys(t).parseResolved(value); again.Error() != first.Error() {
			t.Fatalf("now %v\nnow %v", first, again)
		}
	}
}

func TestMilliCPUReadsLikeAQuantity(t *testing.T) {
	for cpu, want := range map[MilliCPU]string{0: "0", 1: "1m", 50: "50m", 1000: "1", 1500: "1500m", 10_000_000: "10k"} {
		if got := cpu.String(); got != want {
			t.Errorf("%d reads %q, want %q", int64(cpu), got, want)
		}
	}
}

func FuzzParseResolved(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, value string) {
		resolved, err := keys.parseResolved(value)
		if err != nil {
			for range 8 { // Maps have no order; the message must.
				if _, again := keys.parseResolved(value); again == nil || again.Error() != err.Error() {
					t.Errorf("the same input gives now %v, now %v", err, again)
				}
			}
			checkProblems(t, err)
			return
		}
		if len(resolved) == 0 {
			t.Error("accepted without a container")
		}
		for name, cpu := range resolved {
			if cpu.Steady < 1 || cpu.Steady > cpu.Startup || cpu.Startup > 10_000_000 {
				t.Errorf("container %q accepted with %+v", name, cpu)
			}
		}
		if again, err := keys.parseResolved(resolved.String()); err != nil || !reflect.DeepEqual(again, resolved) {
			t.Errorf("%v does not survive its own text: %v, %v", resolved, again, err)
		}
	})
}
