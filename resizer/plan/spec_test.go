package plan

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// annotations takes names without their domain, each followed by its value.
func annotations(pairs ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all[DefaultDomain+"/"+pairs[i]] = pairs[i+1]
	}
	return all
}

// texts are the lines that a user reads.
func texts(err error) []string {
	var all []string
	for _, p := range Problems(err) {
		all = append(all, p.Error())
	}
	return all
}

// typicalSpec has one container of every kind: app, another app container "log", the init container "migrate", the native
// sidecar "proxy".
func typicalSpec() *corev1.PodSpec {
	always := corev1.ContainerRestartPolicyAlways
	return &corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "migrate"}, {Name: "proxy", RestartPolicy: &always}},
		Containers:     []corev1.Container{{Name: "app"}, {Name: "log"}},
	}
}

func TestParse(t *testing.T) {
	const app50m = `{"app":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}`
	app := func(cpu MilliCPU) map[string]MilliCPU { return map[string]MilliCPU{"app": cpu} }
	cases := []struct {
		name        string
		annotations map[string]string
		want        Spec
	}{
		{
			"the startup probe is the default trigger, without a delay",
			annotations("steady-resources", app50m),
			Spec{StartupProbePassed, 0, app(50)},
		},
		{
			"a limit alone stands for both",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"50m"}}}`),
			Spec{StartupProbePassed, 0, app(50)},
		},
		{
			"a request alone stands for both",
			annotations("steady-resources", `{"app":{"requests":{"cpu":"50m"}}}`),
			Spec{StartupProbePassed, 0, app(50)},
		},
		{
			"request and limit are compared as amounts, not as text",
			annotations("steady-resources", `{"app":{"requests":{"cpu":"0.05"},"limits":{"cpu":"50m"}}}`),
			Spec{StartupProbePassed, 0, app(50)},
		},
		{
			"what is finer than a millicore is rounded up, as the API server does",
			annotations("steady-resources", `{"app":{"requests":{"cpu":"50.1m"},"limits":{"cpu":"0.0501"}}}`),
			Spec{StartupProbePassed, 0, app(51)},
		},
		{
			"the least amount is one millicore",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"1n"}}}`),
			Spec{StartupProbePassed, 0, app(1)},
		},
		{
			"the greatest amount is 10,000 cores",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"10k"}}}`),
			Spec{StartupProbePassed, 0, app(10_000_000)},
		},
		{
			"a number of cores needs no quotes, as in the resources of a pod",
			annotations("steady-resources", `{"app":{"requests":{"cpu":1},"limits":{"cpu":1}}}`),
			Spec{StartupProbePassed, 0, app(1000)},
		},
		{
			"a native sidecar runs on after startup",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"1"}},"proxy":{"limits":{"cpu":"10m"}}}`),
			Spec{StartupProbePassed, 0, map[string]MilliCPU{"app": 1000, "proxy": 10}},
		},
		{
			"blank space in the JSON of a block scalar is harmless",
			annotations("steady-resources", "\n  { \"app\": {\n  \"limits\": { \"cpu\": \"50m\" } } }\n"),
			Spec{StartupProbePassed, 0, app(50)},
		},
		{
			"ready, and a minute more",
			annotations("steady-resources", app50m, "trigger", "Ready", "delay-seconds", "60"),
			Spec{Ready, time.Minute, app(50)},
		},
		{
			"a delay of no seconds",
			annotations("steady-resources", app50m, "trigger", "Delay", "delay-seconds", "0"),
			Spec{Delay, 0, app(50)},
		},
		{
			"a delay of a day",
			annotations("steady-resources", app50m, "trigger", "Delay", "delay-seconds", "86400"),
			Spec{Delay, 24 * time.Hour, app(50)},
		},
		{
			"the default trigger by its name",
			annotations("steady-resources", app50m, "trigger", "StartupProbePassed"),
			Spec{StartupProbePassed, 0, app(50)},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := testKeys(t).Parse(c.annotations, typicalSpec())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestParseTellsTheAuthorWhatToMend(t *testing.T) {
	const (
		good  = `{"app":{"limits":{"cpu":"50m"}}}`
		write = `write {"app":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}`
	)
	unchanged := func(*corev1.PodSpec) {}
	steady := func(value string) map[string]string { return annotations("steady-resources", value) }
	cases := []struct {
		name        string
		annotations map[string]string
		spec        func(*corev1.PodSpec)
		want        []string
	}{
		{"there is no steady CPU", nil, unchanged, []string{
			`resize.example.com/steady-resources: is missing; ` + write,
		}},
		{"a pod without containers still gets an example", nil, func(s *corev1.PodSpec) { *s = corev1.PodSpec{} }, []string{
			`resize.example.com/steady-resources: is missing; ` + write,
		}},
		{"the annotation is empty", steady(""), unchanged, []string{
			`resize.example.com/steady-resources: "": is not the expected JSON (unexpected end of JSON input); ` + write,
		}},
		{"only the amount", steady("50m"), unchanged, []string{
			`resize.example.com/steady-resources: "50m": is not the expected JSON (invalid character 'm' after top-level value); ` + write,
		}},
		{"YAML instead of JSON", steady("app: {limits: {cpu: 50m}}"), unchanged, []string{
			`resize.example.com/steady-resources: "app: {limits: {cpu: 50m}}": is not the expected JSON (invalid character 'a' looking for beginning of value); ` + write,
		}},
		{"a bracket is missing", steady(`{"app":{"limits":{"cpu":"50m"}}`), unchanged, []string{
			`resize.example.com/steady-resources: '{"app":{"limits":{"cpu":"50m"}}': is not the expected JSON (unexpected end of JSON input); ` + write,
		}},
		{"something follows the JSON", steady(good + ` x`), unchanged, []string{
			`resize.example.com/steady-resources: '{"app":{"limits":{"cpu":"50m"}}} x': is not the expected JSON (invalid character 'x' after top-level value); ` + write,
		}},
		{"null", steady(`null`), unchanged, []string{
			`resize.example.com/steady-resources: "null": names no container; ` + write,
		}},
		{"no container", steady(`{}`), unchanged, []string{
			`resize.example.com/steady-resources: "{}": names no container; ` + write,
		}},
		{"a list instead of an object is told without the types of this program", steady(`[]`), unchanged, []string{
			`resize.example.com/steady-resources: "[]": is not the expected JSON; ` + write,
		}},
		{"an amount in place of resources is told without the types of this program", steady(`{"app":"50m"}`), unchanged, []string{
			`resize.example.com/steady-resources: '{"app":"50m"}': is not the expected JSON; ` + write,
		}},
		{"a misspelt field", steady(`{"app":{"Limits":{"cpu":"50m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: '{"app":{"Limits":{"cpu":"50m"}}}': is not the expected JSON (unknown field "app.Limits"); ` + write,
		}},
		{"two misspelt fields are one line, for the API server drops a warning with a line break", steady(`{"app":{"request":{},"limit":{}}}`), unchanged, []string{
			`resize.example.com/steady-resources: '{"app":{"request":{},"limit":{}}}': is not the expected JSON (unknown field "app.request", unknown field "app.limit"); ` + write,
		}},
		{"a container twice", steady(`{"app":{"limits":{"cpu":"50m"}},"app":{"limits":{"cpu":"60m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: '{"app":{"limits":{"cpu":"50m"}},"app":{"limits":{"cpu":"60m"}}}': is not the expected JSON (duplicate field "app"); ` + write,
		}},
		{"an amount twice", steady(`{"app":{"limits":{"cpu":"50m","cpu":"60m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: '{"app":{"limits":{"cpu":"50m","cpu":"60m"}}}': is not the expected JSON (duplicate field "app.limits.cpu"); ` + write,
		}},
		{"a long value is cut, between characters", steady("x" + strings.Repeat("ä", 80)), unchanged, []string{
			`resize.example.com/steady-resources: "x` + strings.Repeat("ä", 79) + `…": is not the expected JSON (invalid character 'x' looking for beginning of value); ` + write,
		}},
		{"a container without resources", steady(`{"log":{}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "log": has no CPU; write {"log":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}`,
		}},
		{"memory beside the CPU", steady(`{"app":{"limits":{"cpu":"50m","memory":"1Gi"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "memory": is not CPU, and only CPU is lowered; remove it`,
		}},
		{"memory in place of the CPU", steady(`{"app":{"requests":{"memory":"1Gi"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "memory": is not CPU, and only CPU is lowered; remove it`,
			`resize.example.com/steady-resources: container "app": has no CPU; ` + write,
		}},
		{"an extended resource", steady(`{"app":{"limits":{"cpu":"50m","example.com/gpu":"1"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "example.com/gpu": is not CPU, and only CPU is lowered; remove it`,
		}},
		{"not an amount", steady(`{"app":{"limits":{"cpu":"50mm"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "50mm": is not a quantity of CPU; write an amount such as "50m", the same for both`,
		}},
		{"percent belongs elsewhere", steady(`{"app":{"limits":{"cpu":"25%"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "25%": is not a quantity of CPU; write an amount such as "50m", the same for both`,
		}},
		{"an empty amount", steady(`{"app":{"limits":{"cpu":""}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "": is not a quantity of CPU; write an amount such as "50m", the same for both`,
		}},
		// Arithmetic with an exponent like 1e-100000000 takes minutes, in which nobody else is admitted.
		{"an exponent beyond reason is not computed with", steady(`{"app":{"limits":{"cpu":"1e-1000000"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "1e-1000000": is not a quantity of CPU; write an amount such as "50m", the same for both`,
		}},
		{"a request with an exponent beyond reason", steady(`{"app":{"requests":{"cpu":"1e1000000"},"limits":{"cpu":"50m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "1e1000000": is not a quantity of CPU; write an amount such as "50m", the same for both`,
		}},
		{"no CPU at all", steady(`{"app":{"limits":{"cpu":"0"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "0": is not more than zero, and a pod without CPU is not Guaranteed; write an amount such as "50m", the same for both`,
		}},
		{"less than no CPU", steady(`{"app":{"limits":{"cpu":"-50m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "-50m": is not more than zero, and a pod without CPU is not Guaranteed; write an amount such as "50m", the same for both`,
		}},
		{"more CPU than any node has", steady(`{"app":{"limits":{"cpu":"10001"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "10001": is more than any node has (10k); write an amount such as "50m", the same for both`,
		}},
		{"so much CPU that it would overflow", steady(`{"app":{"limits":{"cpu":"9223372036854775807"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "9223372036854775807": is more than any node has (10k); write an amount such as "50m", the same for both`,
		}},
		{"request and limit differ", steady(`{"app":{"requests":{"cpu":"10m"},"limits":{"cpu":"50m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "10m": differs from the limit "50m", so the pod would not be Guaranteed; write an amount such as "50m", the same for both`,
		}},
		{"the request is not an amount", steady(`{"app":{"requests":{"cpu":"x"},"limits":{"cpu":"50m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "app": "x": is not a quantity of CPU; write an amount such as "50m", the same for both`,
		}},
		{"an unknown container; what is offered leaves out the init container, which would be wrong as well", steady(`{"web":{"limits":{"cpu":"50m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "web": the pod has no such container; name one of proxy, app, log`,
		}},
		{"an init container", steady(`{"migrate":{"limits":{"cpu":"50m"}}}`), unchanged, []string{
			`resize.example.com/steady-resources: container "migrate": is an init container, which ends before startup is over; name one of proxy, app, log`,
		}},
		{"an unknown trigger", annotations("steady-resources", good, "trigger", "ready"), unchanged, []string{
			`resize.example.com/trigger: "ready": is not a trigger; write one of StartupProbePassed, Ready, Delay`,
		}},
		{"an empty trigger", annotations("steady-resources", good, "trigger", ""), unchanged, []string{
			`resize.example.com/trigger: "": is not a trigger; write one of StartupProbePassed, Ready, Delay`,
		}},
		{"a delay without its seconds", annotations("steady-resources", good, "trigger", "Delay"), unchanged, []string{
			`resize.example.com/delay-seconds: is needed by the trigger Delay; write the whole seconds from the container's start to the end of its startup, such as "30"`,
		}},
		{"seconds with a unit", annotations("steady-resources", good, "delay-seconds", "30s"), unchanged, []string{
			`resize.example.com/delay-seconds: "30s": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
		}},
		{"half a second", annotations("steady-resources", good, "delay-seconds", "0.5"), unchanged, []string{
			`resize.example.com/delay-seconds: "0.5": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
		}},
		{"empty seconds", annotations("steady-resources", good, "delay-seconds", ""), unchanged, []string{
			`resize.example.com/delay-seconds: "": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
		}},
		{"seconds before the start", annotations("steady-resources", good, "delay-seconds", "-1"), unchanged, []string{
			`resize.example.com/delay-seconds: "-1": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
		}},
		{"milliseconds", annotations("steady-resources", good, "delay-seconds", "86401"), unchanged, []string{
			`resize.example.com/delay-seconds: "86401": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
		}},
		{"more seconds than fit a number", annotations("steady-resources", good, "delay-seconds", "9223372036854775808"), unchanged, []string{
			`resize.example.com/delay-seconds: "9223372036854775808": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
		}},
		{"pod-level resources", steady(good), func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}
		}, []string{
			`spec.resources: pod-level resources alone would decide the QoS class and the reserved CPU; move them to the containers`,
		}},
		{"empty pod-level resources decide nothing", annotations("steady-resources", good, "trigger", "x"), func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{}
		}, []string{
			`resize.example.com/trigger: "x": is not a trigger; write one of StartupProbePassed, Ready, Delay`,
		}},
		{"Windows", steady(good), func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Windows} }, []string{
			`spec.os.name: "windows": Kubernetes cannot resize Windows pods in place; remove the opt-in`,
		}},
		{"a resize that would restart the container", steady(good), func(s *corev1.PodSpec) {
			s.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.NotRequired},
				{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer},
			}
		}, []string{
			`resizePolicy: container "app": "RestartContainer": lowering its CPU would restart the container; write "NotRequired" for cpu`,
		}},
		{"everything at once", annotations("steady-resources", `{"app":{"limits":{"cpu":"x"}},"web":{"limits":{"cpu":"0"}}}`,
			"trigger", "Never", "delay-seconds", "soon"), func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Windows} }, []string{
			`resize.example.com/trigger: "Never": is not a trigger; write one of StartupProbePassed, Ready, Delay`,
			`resize.example.com/delay-seconds: "soon": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
			`resize.example.com/steady-resources: container "app": "x": is not a quantity of CPU; write an amount such as "50m", the same for both`,
			`resize.example.com/steady-resources: container "web": "0": is not more than zero, and a pod without CPU is not Guaranteed; write an amount such as "50m", the same for both`,
			`resize.example.com/steady-resources: container "web": the pod has no such container; name one of proxy, app, log`,
			`spec.os.name: "windows": Kubernetes cannot resize Windows pods in place; remove the opt-in`,
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			spec := typicalSpec()
			c.spec(spec)
			got, err := testKeys(t).Parse(c.annotations, spec)
			if !reflect.DeepEqual(texts(err), c.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(texts(err), "\n"), strings.Join(c.want, "\n"))
			}
			if !reflect.DeepEqual(got, Spec{}) {
				t.Errorf("got %+v beside the problems", got)
			}
		})
	}
}

func TestResizePolicyOfOtherContainersOrResourcesIsNoProblem(t *testing.T) {
	spec := typicalSpec()
	spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
		{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
	}
	spec.Containers[1].ResizePolicy = []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}, // Not named, so not resized.
	}
	if _, err := testKeys(t).Parse(annotations("steady-resources", `{"app":{"limits":{"cpu":"50m"}}}`), spec); err != nil {
		t.Error(err)
	}
}

// Thousands of containers and as many wrong names, each with a right to a remedy, must not become megabytes of text: a pod
// that is stored would fell one leader after the other.
func TestHoweverMuchIsWrongTheTextStaysShort(t *testing.T) {
	spec := &corev1.PodSpec{}
	for i := range 2500 {
		spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprintf("%063d", i)})
	}
	var names strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&names, `,"%d":{}`, i)
	}
	for name, value := range map[string]string{
		"many names":           "{" + names.String()[1:] + "}",
		"more than is read":    "{" + names.String()[1:] + strings.Repeat(" ", maxAnnotation) + "}",
		"one long name":        `{"` + strings.Repeat("x", maxAnnotation-20) + `":{}}`,
		"one long field":       `{"app":{"` + strings.Repeat("x", maxAnnotation-20) + `":1}}`,
		"one long amount":      `{"app":{"limits":{"cpu":"` + strings.Repeat("1", maxAnnotation-60) + `"}}}`,
		"one long resource":    `{"app":{"limits":{"` + strings.Repeat("x", maxAnnotation-60) + `":"1"}}}`,
		"many other resources": `{"app":{"limits":{"0":"1"` + strings.ReplaceAll(names.String(), "{}", `"1"`) + `}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := testKeys(t).Parse(annotations("steady-resources", value), spec)
			if n := len(Problems(err)); n == 0 || n > maxProblems+1 {
				t.Errorf("%d problems", n)
			}
			for _, text := range texts(err) {
				if len(text) > 2048 {
					t.Errorf("%d bytes: %s", len(text), text)
				}
			}
			pod := &corev1.Pod{Spec: *spec}
			pod.Annotations = annotations("enabled", "true", "steady-resources", value)
			if d := Decide(Input{Keys: testKeys(t), Pod: pod}); d.Reason != InvalidAnnotation || len(d.Message) > maxMessage {
				t.Errorf("%s with a message of %d bytes", d.Reason, len(d.Message))
			}
		})
	}
}

func TestProblemsTakesErrorsApart(t *testing.T) {
	one, two := Problem{Field: "one"}, Problem{Field: "two"}
	cases := []struct {
		name string
		err  error
		want []Problem
	}{
		{"no error", nil, nil},
		{"a single problem", one, []Problem{one}},
		{"joined in a tree", join(join(one), nil, two), []Problem{one, two}},
		{"an error of another kind is not lost", join(one, fmt.Errorf("other")), []Problem{one, {Message: "other"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := Problems(c.err); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// checkProblems holds whatever Parse and the like return against what every user-facing problem must be. The API server
// drops a warning with a control character without a word (apimachinery's NewWarningHeader).
func checkProblems(t *testing.T, err error) {
	t.Helper()
	for _, p := range Problems(err) {
		if p.Field == "" || p.Message == "" || p.Remedy == "" {
			t.Errorf("%+v lacks field, message or remedy", p)
		}
		if text := p.Error(); !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("no API server would pass on the warning %q", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, steady, trigger, delay string) {
		spec, err := keys.Parse(annotations("steady-resources", steady, "trigger", trigger, "delay-seconds", delay), typicalSpec())
		_, again := keys.Parse(annotations("steady-resources", steady, "trigger", trigger, "delay-seconds", delay), typicalSpec())
		if !reflect.DeepEqual(texts(err), texts(again)) {
			t.Errorf("the same input gives now %q, now %q", texts(err), texts(again))
		}
		if err != nil {
			if utf8.ValidString(steady + trigger + delay) { // The API server lets nothing else in.
				checkProblems(t, err)
			}
			return
		}
		switch {
		case spec.Trigger != StartupProbePassed && spec.Trigger != Ready && spec.Trigger != Delay,
			spec.Delay < 0, spec.Delay > 24*time.Hour, spec.Delay%time.Second != 0, len(spec.Steady) == 0:
			t.Errorf("accepted as %+v", spec)
		}
		for name, cpu := range spec.Steady {
			if cpu < 1 || cpu > 10_000_000 || name != "app" && name != "log" && name != "proxy" {
				t.Errorf("accepted as %+v", spec)
			}
		}
	})
}
