package plan

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
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

// like is what Parse makes of annotations that say nothing else.
func like(trigger Trigger, delay time.Duration, steady map[string]MilliCPU, changes ...func(*Spec)) Spec {
	s := Spec{
		Trigger: trigger, Delay: delay, Boost: Reserve, FitAfter: 5 * time.Minute, OnRestart: BoostAgain,
		Steady: wants(steady), Startup: map[string]Want{}, Memory: map[string]Bytes{},
	}
	for _, change := range changes {
		change(&s)
	}
	return s
}

func wants(amounts map[string]MilliCPU) map[string]Want {
	all := map[string]Want{}
	for name, cpu := range amounts {
		all[name] = Want{Amount: cpu}
	}
	return all
}

// bare is a Spec without where it comes from and what is odd about it, and with maps where there are none.
func bare(s Spec) Spec {
	s.Warnings = nil
	s.Memory = maps.Clone(s.Memory)
	if s.Memory == nil {
		s.Memory = map[string]Bytes{}
	}
	for _, m := range []*map[string]Want{&s.Steady, &s.Startup} {
		all := map[string]Want{}
		for name, w := range *m {
			all[name] = Want{Amount: w.Amount, Share: w.Share}
		}
		*m = all
	}
	return s
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
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"a limit alone stands for both",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"50m"}}}`),
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"a request alone stands for both",
			annotations("steady-resources", `{"app":{"requests":{"cpu":"50m"}}}`),
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"request and limit are compared as amounts, not as text",
			annotations("steady-resources", `{"app":{"requests":{"cpu":"0.05"},"limits":{"cpu":"50m"}}}`),
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"what is finer than a millicore is rounded up, as the API server does",
			annotations("steady-resources", `{"app":{"requests":{"cpu":"50.1m"},"limits":{"cpu":"0.0501"}}}`),
			like(StartupProbePassed, 0, app(51)),
		},
		{
			"the least amount is one millicore",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"1n"}}}`),
			like(StartupProbePassed, 0, app(1)),
		},
		{
			"the greatest amount is 10,000 cores",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"10k"}}}`),
			like(StartupProbePassed, 0, app(10_000_000)),
		},
		{
			"a number of cores needs no quotes, as in the resources of a pod",
			annotations("steady-resources", `{"app":{"requests":{"cpu":1},"limits":{"cpu":1}}}`),
			like(StartupProbePassed, 0, app(1000)),
		},
		{
			"a native sidecar runs on after startup",
			annotations("steady-resources", `{"app":{"limits":{"cpu":"1"}},"proxy":{"limits":{"cpu":"10m"}}}`),
			like(StartupProbePassed, 0, map[string]MilliCPU{"app": 1000, "proxy": 10}),
		},
		{
			"blank space in the JSON of a block scalar is harmless",
			annotations("steady-resources", "\n  { \"app\": {\n  \"limits\": { \"cpu\": \"50m\" } } }\n"),
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"ready, and a minute more",
			annotations("steady-resources", app50m, "trigger", "Ready", "delay-seconds", "60"),
			like(Ready, time.Minute, app(50)),
		},
		{
			"a delay of no seconds",
			annotations("steady-resources", app50m, "trigger", "Delay", "delay-seconds", "0"),
			like(Delay, 0, app(50)),
		},
		{
			"a delay of a day",
			annotations("steady-resources", app50m, "trigger", "Delay", "delay-seconds", "86400"),
			like(Delay, 24*time.Hour, app(50)),
		},
		{
			"the default trigger by its name",
			annotations("steady-resources", app50m, "trigger", "StartupProbePassed"),
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"a condition of the pod, and a minute more",
			annotations("steady-cpu", "50m", "trigger", "PodCondition=example.com/WarmedUp", "delay-seconds", "60"),
			like(PodCondition, time.Minute, app(50), func(s *Spec) { s.Condition = "example.com/WarmedUp" }),
		},
		{
			"a condition of Kubernetes' own",
			annotations("steady-cpu", "50m", "trigger", "PodCondition=Ready"),
			like(PodCondition, 0, app(50), func(s *Spec) { s.Condition = corev1.PodReady }),
		},
		{
			"all that has nothing to do with amounts",
			annotations("steady-cpu", "50m", "deadline-seconds", "120", "boost", "Opportunistic", "fit-after-seconds", "60", "on-restart", "Ignore",
				"pin-runtime", "app=jvm, log=go", "protect-startup", "true", "allow-restart", "true"),
			like(StartupProbePassed, 0, app(50), func(s *Spec) {
				s.Deadline, s.Boost, s.FitAfter, s.OnRestart = 2*time.Minute, Opportunistic, time.Minute, Ignore
				s.PinRuntime, s.ProtectStartup, s.AllowRestart = map[string]Runtime{"app": "jvm", "log": "go"}, true, true
			}),
		},
		{
			"the defaults by their names",
			annotations("steady-cpu", "50m", "boost", "Reserve", "fit-after-seconds", "300", "on-restart", "Boost", "protect-startup", "false", "allow-restart", "false"),
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"the extremes of seconds",
			annotations("steady-cpu", "50m", "trigger", "Delay", "delay-seconds", "86400", "deadline-seconds", "86400", "fit-after-seconds", "0"),
			like(Delay, 24*time.Hour, app(50), func(s *Spec) { s.Deadline, s.FitAfter = 24*time.Hour, 0 }),
		},
		{
			"a deadline before the end of a further wait cuts it short",
			annotations("steady-cpu", "50m", "delay-seconds", "60", "deadline-seconds", "1"),
			like(StartupProbePassed, time.Minute, app(50), func(s *Spec) { s.Deadline = time.Second }),
		},
		{
			"a bare runtime is that of the default container",
			annotations("steady-cpu", "50m", "pin-runtime", "dotnet"),
			like(StartupProbePassed, 0, app(50), func(s *Spec) { s.PinRuntime = map[string]Runtime{"app": "dotnet"} }),
		},
		{
			"a bare amount is that of the first container",
			annotations("steady-cpu", "0.05"),
			like(StartupProbePassed, 0, app(50)),
		},
		{
			"a bare amount is that of the container that kubectl would take",
			withDefault("log", annotations("steady-cpu", "50m", "startup-cpu", "2")),
			like(StartupProbePassed, 0, map[string]MilliCPU{"log": 50}, func(s *Spec) { s.Startup = wants(map[string]MilliCPU{"log": 2000}) }),
		},
		{
			"a default container may be a sidecar",
			withDefault("proxy", annotations("steady-cpu", "50m")),
			like(StartupProbePassed, 0, map[string]MilliCPU{"proxy": 50}),
		},
		{
			"blank space and line breaks between the parts of a list are harmless",
			annotations("steady-cpu", " app = 50m,\n proxy=25%\n", "startup-cpu", "proxy=200m"),
			like(StartupProbePassed, 0, app(50), func(s *Spec) {
				s.Steady["proxy"], s.Startup["proxy"] = Want{Share: 25_000}, Want{Amount: 200}
			}),
		},
		{
			"the long form for one container, the short one for another",
			annotations("steady-resources", app50m, "steady-cpu", "log=10m", "startup-resources", `{"app":{"limits":{"cpu":2,"memory":"1Gi"}}}`, "startup-cpu", "log=3x"),
			like(StartupProbePassed, 0, map[string]MilliCPU{"app": 50, "log": 10}, func(s *Spec) {
				s.Startup = map[string]Want{"app": {Amount: 2000}, "log": {Share: 300_000}}
				s.Memory["app"] = 1 << 30
			}),
		},
		{
			"memory alone, and the CPU beside it",
			annotations("steady-cpu", "50m", "startup-resources", `{"app":{"requests":{"memory":"1024Mi"},"limits":{"memory":"1Gi"}}}`, "startup-cpu", "1.5x"),
			like(StartupProbePassed, 0, app(50), func(s *Spec) { s.Startup["app"], s.Memory["app"] = Want{Share: 150_000}, 1<<30 }),
		},
		{
			"the extremes of shares",
			annotations("steady-cpu", "app=0.001%,log=100%,proxy=1m", "startup-cpu", "proxy=1000x"),
			like(StartupProbePassed, 0, nil, func(s *Spec) {
				s.Steady = map[string]Want{"app": {Share: 1}, "log": {Share: 100_000}, "proxy": {Amount: 1}}
				s.Startup["proxy"] = Want{Share: 100_000_000}
			}),
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := testKeys(t).Parse(c.annotations, typicalSpec())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(bare(got), c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// withDefault names the container that kubectl takes by default.
func withDefault(name string, all map[string]string) map[string]string {
	return plus(all, "kubectl.kubernetes.io/default-container", name)
}

func plus(all map[string]string, key, value string) map[string]string {
	all[key] = value
	return all
}

func TestParseTellsTheAuthorWhatToMend(t *testing.T) {
	const (
		good  = `{"app":{"limits":{"cpu":"50m"}}}`
		write = `write {"app":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}`

		short         = `write an amount such as "50m", or a part of the startup CPU such as "25%"`
		percentage    = `is not a percentage of more than 0 and at most 100, with up to three decimals; ` + short
		startupShort  = `write an amount such as "2", or a multiple of the steady CPU such as "3x"`
		factor        = `is not a factor from 1 to 1000, with up to three decimals; ` + startupShort
		never         = `has no steady CPU, so its startup CPU would never be lowered; name it in resize.example.com/steady-cpu, too, or write its resources into the container`
		mem           = `write an amount such as "256Mi", the same for both`
		conditionless = `does not name a condition that a pod can have; write its type, such as "PodCondition=example.com/WarmedUp"`
		vpa           = `a VerticalPodAutoscaler sets this pod's CPU, and two would undo each other's work; take the pod out of one of them`
	)
	memory := func(request, limit string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			list := func(amount string) corev1.ResourceList {
				if amount == "" {
					return nil
				}
				return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}
			}
			s.Containers[0].Resources = corev1.ResourceRequirements{Requests: list(request), Limits: list(limit)}
		}
	}
	unchanged := func(*corev1.PodSpec) {}
	steady := func(value string) map[string]string { return annotations("steady-resources", value) }
	cases := []struct {
		name        string
		annotations map[string]string
		spec        func(*corev1.PodSpec)
		want        []string
	}{
		{"there is no steady CPU", nil, unchanged, []string{
			`resize.example.com/steady-resources: is missing; ` + write + `, or in short resize.example.com/steady-cpu: "50m"`,
		}},
		{"a pod without containers still gets an example", nil, func(s *corev1.PodSpec) { *s = corev1.PodSpec{} }, []string{
			`resize.example.com/steady-resources: is missing; ` + write + `, or in short resize.example.com/steady-cpu: "50m"`,
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
			`resize.example.com/trigger: "ready": is not a trigger; write one of StartupProbePassed, Ready, Delay, PodCondition=TYPE`,
		}},
		{"an empty trigger", annotations("steady-resources", good, "trigger", ""), unchanged, []string{
			`resize.example.com/trigger: "": is not a trigger; write one of StartupProbePassed, Ready, Delay, PodCondition=TYPE`,
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
		{"empty pod-level resources, which decide until Kubernetes 1.36", steady(good), func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{}
		}, []string{
			`spec.resources: pod-level resources alone would decide the QoS class and the reserved CPU; move them to the containers`,
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
			`resizePolicy: container "app": "RestartContainer": lowering its CPU would restart the container; write "NotRequired" for cpu, or resize.example.com/allow-restart: "true"`,
		}},
		{"only a share or amount in short, and it is neither", annotations("steady-cpu", "lots"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "lots": is not a quantity of CPU; ` + short,
		}},
		{"an empty short form", annotations("steady-cpu", " "), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "": is not a quantity of CPU; ` + short,
		}},
		{"no percent", annotations("steady-cpu", "0%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "0%": ` + percentage}},
		{"no percentage at all", annotations("steady-cpu", "%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "%": ` + percentage}},
		{"less than no percent", annotations("steady-cpu", "-5%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "-5%": ` + percentage}},
		{"more than all", annotations("steady-cpu", "100.001%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "100.001%": ` + percentage}},
		{"a percentage of amounts", annotations("steady-cpu", "25m%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "25m%": ` + percentage}},
		{"finer than is computed with", annotations("steady-cpu", "0.0001%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "0.0001%": ` + percentage}},
		{"two points", annotations("steady-cpu", "1.2.3%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "1.2.3%": ` + percentage}},
		{"a percentage with an exponent", annotations("steady-cpu", "1e1%"), unchanged, []string{`resize.example.com/steady-cpu: container "app": "1e1%": ` + percentage}},
		{"a percentage longer than makes sense", annotations("steady-cpu", strings.Repeat("0", 33)+"1%"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "` + strings.Repeat("0", 33) + `1%": ` + percentage,
		}},
		{"a factor is for the startup", annotations("steady-cpu", "3x"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "3x": is not a quantity of CPU; ` + short,
		}},
		{"a percentage is for the steady CPU", annotations("steady-cpu", "50m", "startup-cpu", "300%"), unchanged, []string{
			`resize.example.com/startup-cpu: container "app": "300%": is not a quantity of CPU; ` + startupShort,
		}},
		{"a factor of less than one", annotations("steady-cpu", "50m", "startup-cpu", "0.999x"), unchanged, []string{`resize.example.com/startup-cpu: container "app": "0.999x": ` + factor}},
		{"a factor of less than one by less than is computed with", annotations("steady-cpu", "50m", "startup-cpu", "0.9999x"), unchanged, []string{
			`resize.example.com/startup-cpu: container "app": "0.9999x": ` + factor,
		}},
		{"a factor beyond reason", annotations("steady-cpu", "50m", "startup-cpu", "1000.001x"), unchanged, []string{`resize.example.com/startup-cpu: container "app": "1000.001x": ` + factor}},
		{"a factor with an exponent", annotations("steady-cpu", "50m", "startup-cpu", "1e9999999x"), unchanged, []string{`resize.example.com/startup-cpu: container "app": "1e9999999x": ` + factor}},
		{"a list with a part that names no container", annotations("steady-cpu", "app=50m,25%,=1,"), unchanged, []string{
			`resize.example.com/steady-cpu: "25%": names no container; write CONTAINER=VALUE, and a comma before the next`,
			`resize.example.com/steady-cpu: "=1": names no container; write CONTAINER=VALUE, and a comma before the next`,
			`resize.example.com/steady-cpu: "": names no container; write CONTAINER=VALUE, and a comma before the next`,
		}},
		{"a list longer than is read", annotations("steady-cpu", "app=50m,proxy="+strings.Repeat(" ", maxAnnotation)+"50m"), unchanged, []string{
			`resize.example.com/steady-cpu: "app=50m,proxy=` + strings.Repeat(" ", 66) + `…": is longer than 32768 bytes; name only the containers to be lowered`,
		}},
		{"a percentage beyond any number", annotations("steady-cpu", "92233720368547758079223372036854%"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "92233720368547758079223372036854%": ` + percentage,
		}},
		{"a list with a container twice", annotations("steady-cpu", "app=50m,app=50m"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": is named twice; name it once`,
		}},
		{"a list with containers that do not run", annotations("steady-cpu", "migrate=50m,web=x"), unchanged, []string{
			`resize.example.com/steady-cpu: container "web": "x": is not a quantity of CPU; ` + short,
			`resize.example.com/steady-cpu: container "migrate": is an init container, which ends before startup is over; name one of proxy, app, log`,
			`resize.example.com/steady-cpu: container "web": the pod has no such container; name one of proxy, app, log`,
		}},
		{"long and short form differ", annotations("steady-resources", good, "steady-cpu", "60m"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "60m": differs from "50m" in resize.example.com/steady-resources; remove one of them`,
		}},
		{"whether a part equals an amount depends", annotations("steady-resources", good, "steady-cpu", "25%"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "25%": cannot be compared with "50m" in resize.example.com/steady-resources; remove one of them`,
		}},
		{"long and short form of the startup differ", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"cpu":"2"}}}`, "startup-cpu", "2001m"), unchanged, []string{
			`resize.example.com/startup-cpu: container "app": "2001m": differs from "2" in resize.example.com/startup-resources; remove one of them`,
		}},
		{"either would be relative to the other", annotations("steady-cpu", "25%", "startup-cpu", "4x"), unchanged, []string{
			`resize.example.com/startup-cpu: container "app": "4x": is a multiple of the steady CPU, and that is "25%" of this; write an amount here or in resize.example.com/steady-cpu`,
		}},
		{"a container whose startup CPU would never be lowered", annotations("steady-cpu", "50m", "startup-cpu", "log=2"), unchanged, []string{
			`resize.example.com/startup-cpu: container "log": ` + never,
		}},
		{"a container whose memory alone is named, and the CPU of which is never lowered", annotations("steady-cpu", "50m", "startup-resources", `{"log":{"limits":{"memory":"1Gi"}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "log": ` + never,
		}},
		{"a problem of the steady CPU is not told as two", annotations("steady-cpu", "x", "startup-cpu", "2"), unchanged, []string{
			`resize.example.com/steady-cpu: container "app": "x": is not a quantity of CPU; ` + short,
		}},
		{"a problem of one container's steady CPU is not told as two either", annotations("steady-cpu", "app=50m,log=x", "startup-cpu", "log=2"), unchanged, []string{
			`resize.example.com/steady-cpu: container "log": "x": is not a quantity of CPU; ` + short,
		}},
		{"memory of an unknown container", annotations("steady-cpu", "50m", "startup-resources", `{"web":{"limits":{"memory":"1Gi"}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "web": the pod has no such container; name one of proxy, app, log`,
		}},
		{"the startup without a steady CPU", annotations("startup-cpu", "2"), unchanged, []string{
			`resize.example.com/steady-resources: is missing; ` + write + `, or in short resize.example.com/steady-cpu: "50m"`,
		}},
		{"a startup without resources", annotations("steady-cpu", "50m", "startup-resources", `{"app":{}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "app": has no CPU; ` + write,
		}},
		{"a startup with storage", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"cpu":1,"ephemeral-storage":"1Gi"}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "app": "ephemeral-storage": is neither CPU nor memory; remove it`,
		}},
		{"memory below the limit is told as it stands", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"memory":"255Mi"}}}`), memory("", "256Mi"), []string{
			`resize.example.com/startup-resources: container "app": "255Mi": is less than the container's memory limit, 256Mi, and memory is never lowered; write no less, or leave memory out`,
		}},
		{"memory below the request", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"memory":"255Mi"}}}`), memory("256Mi", ""), []string{
			`resize.example.com/startup-resources: container "app": "255Mi": is less than the container's memory request, 256Mi, and memory is never lowered; write no less, or leave memory out`,
		}},
		{"half a byte, as of who writes m for Mi", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"memory":"256m"}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "app": "256m": is not a whole number of bytes; ` + mem,
		}},
		{"no memory", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"memory":0}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "app": "0": is not more than zero, and a pod without memory is not Guaranteed; ` + mem,
		}},
		{"memory with an exponent", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"memory":"1e9"}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "app": "1e9": is not a quantity of memory; ` + mem,
		}},
		{"more memory than any node has", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"memory":"1025Ti"}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "app": "1025Ti": is more than any node has (1Pi); ` + mem,
		}},
		{"memory request and limit differ", annotations("steady-cpu", "50m", "startup-resources", `{"app":{"requests":{"memory":"1Gi"},"limits":{"memory":"2Gi"}}}`), unchanged, []string{
			`resize.example.com/startup-resources: container "app": "1Gi": differs from the limit "2Gi", so the pod would not be Guaranteed; ` + mem,
		}},
		{"a condition without its type", annotations("steady-cpu", "50m", "trigger", "PodCondition"), unchanged, []string{
			`resize.example.com/trigger: "PodCondition": is not a trigger; write one of StartupProbePassed, Ready, Delay, PodCondition=TYPE`,
		}},
		{"another trigger with a type", annotations("steady-cpu", "50m", "trigger", "Ready=True"), unchanged, []string{
			`resize.example.com/trigger: "Ready=True": is not a trigger; write one of StartupProbePassed, Ready, Delay, PodCondition=TYPE`,
		}},
		{"a condition that no pod can have", annotations("steady-cpu", "50m", "trigger", "PodCondition=warmed up"), unchanged, []string{
			`resize.example.com/trigger: "PodCondition=warmed up": ` + conditionless,
		}},
		{"a condition with an empty type", annotations("steady-cpu", "50m", "trigger", "PodCondition="), unchanged, []string{
			`resize.example.com/trigger: "PodCondition=": ` + conditionless,
		}},
		{"our own condition would wait for itself", annotations("steady-cpu", "50m", "trigger", "PodCondition=resize.example.com/Steady"), unchanged, []string{
			`resize.example.com/trigger: "PodCondition=resize.example.com/Steady": waits for what pod-resizer says only after the resize; name a condition that something else sets`,
		}},
		{"a deadline of no seconds", annotations("steady-cpu", "50m", "deadline-seconds", "0"), unchanged, []string{
			`resize.example.com/deadline-seconds: "0": is not a whole number of seconds from 1 to 86400, a day; write seconds, such as "30"`,
		}},
		{"a deadline of more than a day", annotations("steady-cpu", "50m", "deadline-seconds", "86401"), unchanged, []string{
			`resize.example.com/deadline-seconds: "86401": is not a whole number of seconds from 1 to 86400, a day; write seconds, such as "30"`,
		}},
		{"a deadline before the delay", annotations("steady-cpu", "50m", "trigger", "Delay", "delay-seconds", "60", "deadline-seconds", "59"), unchanged, []string{
			`resize.example.com/deadline-seconds: "59": comes before the trigger Delay, whose resize.example.com/delay-seconds is "60"; write no less, or remove it`,
		}},
		{"values that are none", annotations("steady-cpu", "50m", "boost", "opportunistic", "fit-after-seconds", "-1", "on-restart", "Never", "protect-startup", "yes", "allow-restart", ""), unchanged, []string{
			`resize.example.com/boost: "opportunistic": is not one of its values; write one of Reserve, Opportunistic`,
			`resize.example.com/fit-after-seconds: "-1": is not a whole number of seconds from 0 to 86400, a day; write seconds, such as "30"`,
			`resize.example.com/on-restart: "Never": is not one of its values; write one of Boost, Ignore`,
			`resize.example.com/protect-startup: "yes": is not one of its values; write one of false, true`,
			`resize.example.com/allow-restart: "": is not one of its values; write one of false, true`,
		}},
		{"a runtime that nobody knows", annotations("steady-cpu", "50m", "pin-runtime", "app=ruby,web=jvm"), unchanged, []string{
			`resize.example.com/pin-runtime: container "app": "ruby": is not a runtime that pod-resizer knows; write one of jvm, go, dotnet`,
			`resize.example.com/pin-runtime: container "web": the pod has no such container; name one of proxy, app, log`,
		}},
		{"a static pod", plus(annotations("steady-cpu", "50m"), "kubernetes.io/config.mirror", "x"), unchanged, []string{
			`kubernetes.io/config.mirror: Kubernetes cannot resize static pods; remove the opt-in`,
		}},
		{"a VPA's pod", plus(plus(annotations("steady-cpu", "50m"), "vpaUpdates", "Pod resources updated"), "vpaObservedContainers", "app"), unchanged, []string{
			`vpaUpdates: ` + vpa,
		}},
		{"a pod that a VPA observes", plus(annotations("steady-cpu", "50m"), "vpaObservedContainers", "app"), unchanged, []string{
			`vpaObservedContainers: ` + vpa,
		}},
		{"everything at once", annotations("steady-resources", `{"app":{"limits":{"cpu":"x"}},"web":{"limits":{"cpu":"0"}}}`,
			"trigger", "Never", "delay-seconds", "soon"), func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Windows} }, []string{
			`resize.example.com/trigger: "Never": is not a trigger; write one of StartupProbePassed, Ready, Delay, PodCondition=TYPE`,
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

func TestParseWarnsOfWhatIsOdd(t *testing.T) {
	const (
		later    = `; leave it for a later version, or remove it`
		restarts = `resizePolicy: container "app": "RestartContainer": lowering its CPU will restart the container; write "NotRequired" for cpu if resize.example.com/allow-restart was not meant so`
	)
	cases := []struct {
		name        string
		annotations map[string]string
		want        []string
	}{
		{"nothing is odd", annotations("on-restart", "Boost", "deadline-seconds", "60", "fit-after-seconds", "300", "steady-cpu", "25%", "startup-resources", `{"app":{"limits":{"cpu":2,"memory":"1Gi"}}}`, "trigger", "PodCondition=Ready", "delay-seconds", "1"), nil},
		{"what asks for no more than what happens anyhow", annotations("steady-cpu", "50m", "boost", "Reserve", "fit-after-seconds", "0", "on-restart", "Ignore", "protect-startup", "false", "allow-restart", "false"), nil},
		{"a pod with the steady CPU need not be made to fit", annotations("steady-cpu", "50m", "boost", "Opportunistic", "fit-after-seconds", "0"), []string{
			`resize.example.com/fit-after-seconds: has no effect, because a pod with the boost Opportunistic asks for no more than its steady CPU; remove it`,
		}},
		{"long and short form say the same, by value", annotations("steady-resources", `{"app":{"limits":{"cpu":"0.05"}}}`, "steady-cpu", "app=50m,log=10m", "startup-resources", `{"app":{"limits":{"cpu":2}}}`, "startup-cpu", "2000m"), []string{
			`resize.example.com/steady-cpu: container "app": "50m": is redundant: resize.example.com/steady-resources says the same; remove one of them`,
			`resize.example.com/startup-cpu: container "app": "2000m": is redundant: resize.example.com/startup-resources says the same; remove one of them`,
		}},
		{"a resize that will restart the container", annotations("steady-cpu", "50m", "allow-restart", "true"), []string{restarts}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			spec := typicalSpec()
			if c.annotations[DefaultDomain+"/allow-restart"] == "true" {
				spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
			}
			got, err := testKeys(t).Parse(c.annotations, spec)
			if err != nil {
				t.Fatal(err)
			}
			if all := texts(problems(got.Warnings)); !reflect.DeepEqual(all, c.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(all, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestMemoryMayStayOrRise(t *testing.T) {
	pod := typicalSpec()
	pod.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1073741824")}}
	for amount, want := range map[string]Bytes{"1Gi": 1 << 30, "2Gi": 2 << 30} {
		got, err := testKeys(t).Parse(annotations("steady-cpu", "50m", "startup-resources", `{"app":{"limits":{"memory":"`+amount+`"}}}`), pod)
		if err != nil || got.Memory["app"] != want {
			t.Errorf("%s: %v, %v", amount, got.Memory, err)
		}
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
		"many short names":      strings.ReplaceAll(strings.ReplaceAll(names.String()[1:], `"`, ""), ":{}", "=x"),
		"many blanks":           "=" + strings.Repeat(",", 20000),
		"one long short form":   strings.Repeat("x", maxAnnotation-1),
		"a short list too long": strings.Repeat("a=", maxAnnotation),
		"many names":            "{" + names.String()[1:] + "}",
		"more than is read":     "{" + names.String()[1:] + strings.Repeat(" ", maxAnnotation) + "}",
		"one long name":         `{"` + strings.Repeat("x", maxAnnotation-20) + `":{}}`,
		"one long field":        `{"app":{"` + strings.Repeat("x", maxAnnotation-20) + `":1}}`,
		"one long amount":       `{"app":{"limits":{"cpu":"` + strings.Repeat("1", maxAnnotation-60) + `"}}}`,
		"one long resource":     `{"app":{"limits":{"` + strings.Repeat("x", maxAnnotation-60) + `":"1"}}}`,
		"many other resources":  `{"app":{"limits":{"0":"1"` + strings.ReplaceAll(names.String(), "{}", `"1"`) + `}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			all := annotations("enabled", "true")
			for _, key := range testKeys(t).author()[1:] {
				all[key] = value
			}
			_, err := testKeys(t).Parse(all, spec)
			if n := len(Problems(err)); n == 0 || n > maxProblems+1 {
				t.Errorf("%d problems", n)
			}
			for _, text := range texts(err) {
				if len(text) > 2048 {
					t.Errorf("%d bytes: %s", len(text), text)
				}
			}
			pod := &corev1.Pod{Spec: *spec}
			pod.Annotations = all
			if d := Decide(Input{Keys: testKeys(t), Pod: pod}); d.Reason != InvalidAnnotation || len(d.Message) > maxMessage {
				t.Errorf("%s with a message of %d bytes", d.Reason, len(d.Message))
			}
		})
	}
}

func TestHoweverMuchIsOddTheWarningsStayFew(t *testing.T) {
	pod := &corev1.PodSpec{}
	var long, short []string
	for i := range 200 {
		name := fmt.Sprintf("c%d", i)
		pod.Containers = append(pod.Containers, corev1.Container{Name: name})
		long, short = append(long, fmt.Sprintf(`%q:{"limits":{"cpu":1}}`, name)), append(short, name+"=1")
	}
	spec, err := testKeys(t).Parse(annotations("steady-resources", "{"+strings.Join(long, ",")+"}", "steady-cpu", strings.Join(short, ",")), pod)
	if n := len(spec.Warnings); err != nil || n != maxProblems+1 {
		t.Errorf("%d warnings, %v", n, err)
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

// parseTwice is Parse, whose problems must read the same each time: a message that changes would be written to the pod anew.
func parseTwice(t *testing.T, keys Keys, all map[string]string, pod *corev1.PodSpec) (Spec, bool) {
	spec, err := keys.Parse(all, pod)
	if _, again := keys.Parse(all, pod); !reflect.DeepEqual(texts(err), texts(again)) {
		t.Errorf("the same input gives now %q, now %q", texts(err), texts(again))
	}
	valid := true
	for _, value := range all {
		valid = valid && utf8.ValidString(value) // The API server lets nothing else in.
	}
	if valid {
		checkProblems(t, err)
		checkProblems(t, problems(spec.Warnings))
	}
	for name := range spec.Steady {
		if name != "app" && name != "log" && name != "proxy" {
			t.Errorf("accepted as %+v", spec)
		}
	}
	for name := range spec.Startup {
		if _, named := spec.Steady[name]; !named {
			t.Errorf("accepted as %+v", spec)
		}
	}
	return spec, err == nil
}

func FuzzParse(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, steady, trigger, delay string) {
		spec, ok := parseTwice(t, keys, annotations("steady-resources", steady, "trigger", trigger, "delay-seconds", delay), typicalSpec())
		if !ok {
			return
		}
		switch {
		case spec.Trigger != StartupProbePassed && spec.Trigger != Ready && spec.Trigger != Delay && spec.Trigger != PodCondition,
			(spec.Trigger == PodCondition) != (spec.Condition != ""), spec.Condition == keys.Steady,
			spec.Condition != "" && len(validation.IsQualifiedName(string(spec.Condition))) > 0,
			spec.Delay < 0, spec.Delay > 24*time.Hour, spec.Delay%time.Second != 0, len(spec.Steady) == 0:
			t.Errorf("accepted as %+v", spec)
		}
		for _, w := range spec.Steady {
			if w.Amount < 1 || w.Amount > 10_000_000 || w.Share != 0 {
				t.Errorf("accepted as %+v", spec)
			}
		}
	})
}

func FuzzParseStartupResources(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, value string) {
		pod := typicalSpec()
		pod.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
		spec, ok := parseTwice(t, keys, annotations("steady-cpu", "app=50m,log=50m,proxy=50m", "startup-resources", value), pod)
		for name, w := range spec.Startup {
			if w.Amount < 1 || w.Amount > 10_000_000 || w.Share != 0 {
				t.Errorf("%s accepted as %+v", name, w)
			}
		}
		for name, m := range spec.Memory {
			if m < 1 || m > 1<<50 || name == "app" && m < 64<<20 {
				t.Errorf("%s accepted with %s", name, m.Quantity())
			}
		}
		if ok && len(spec.Startup)+len(spec.Memory) == 0 {
			t.Error("accepted without an amount")
		}
	})
}

// FuzzParseShort looks at what amounts, percentages and factors come to as well.
func FuzzParseShort(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, steady, startup string) {
		pod := specWith(map[string]corev1.ResourceRequirements{"app": resources("1", "1"), "log": resources("", "300m")})
		spec, ok := parseTwice(t, keys, annotations("steady-cpu", steady, "startup-cpu", startup), pod)
		if !ok {
			return
		}
		resolved, err := keys.Resolve(pod, spec)
		checkProblems(t, err)
		for name, cpu := range resolved {
			if cpu.Steady < 1 || cpu.Steady > cpu.Startup || cpu.Startup > 10_000_000 {
				t.Errorf("%s comes to %+v", name, cpu)
			}
			if w, ok := spec.Steady[name]; ok && w.Share > 0 && (cpu.Steady*100_000 < cpu.Startup*MilliCPU(w.Share) || (cpu.Steady-1)*100_000 >= cpu.Startup*MilliCPU(w.Share)) {
				t.Errorf("%s comes to %+v", w.Text, cpu)
			}
			if w, ok := spec.Startup[name]; ok && w.Share > 0 && (cpu.Startup*100_000 < cpu.Steady*MilliCPU(w.Share) || (cpu.Startup-1)*100_000 >= cpu.Steady*MilliCPU(w.Share)) {
				t.Errorf("%s comes to %+v", w.Text, cpu)
			}
		}
	})
}

func FuzzParseCourse(f *testing.F) {
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, deadline, boost, fitAfter, onRestart, pinRuntime, boolean string) {
		spec, ok := parseTwice(t, keys, annotations("steady-cpu", "50m", "deadline-seconds", deadline, "boost", boost, "fit-after-seconds", fitAfter,
			"on-restart", onRestart, "pin-runtime", pinRuntime, "protect-startup", boolean, "allow-restart", boolean), typicalSpec())
		if !ok {
			return
		}
		switch {
		case spec.Deadline < time.Second, spec.Deadline > 24*time.Hour, spec.Deadline%time.Second != 0,
			spec.FitAfter < 0, spec.FitAfter > 24*time.Hour, spec.FitAfter%time.Second != 0,
			spec.Boost != Reserve && spec.Boost != Opportunistic, spec.OnRestart != BoostAgain && spec.OnRestart != Ignore,
			spec.ProtectStartup != (boolean == "true"), spec.AllowRestart != (boolean == "true"), len(spec.PinRuntime) == 0:
			t.Errorf("accepted as %+v", spec)
		}
		for name, runtime := range spec.PinRuntime {
			if name != "app" && name != "log" && name != "proxy" || !slices.Contains(Runtimes(), runtime) {
				t.Errorf("accepted as %+v", spec)
			}
		}
	})
}
