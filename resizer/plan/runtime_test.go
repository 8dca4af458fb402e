package plan

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPin(t *testing.T) {
	env := func(pairs ...string) []corev1.EnvVar {
		var all []corev1.EnvVar
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	const (
		jvm    = "JAVA_TOOL_OPTIONS"
		stays  = ` says what the runtime is to size itself for, and stays as it is; write "`
		orNone = `", or leave it out`
	)
	from := []corev1.EnvVar{{Name: jvm, ValueFrom: &corev1.EnvVarSource{}}}
	for _, c := range []struct {
		name    string
		runtime Runtime
		steady  MilliCPU
		env     []corev1.EnvVar
		envFrom string // The prefix of one; "-" for none.
		want    []corev1.EnvVar
		problem string
	}{
		{"less than a core is one", "jvm", 50, nil, "-", env(jvm, "-XX:ActiveProcessorCount=1"), ""},
		{"a core is one", "jvm", 1000, nil, "-", env(jvm, "-XX:ActiveProcessorCount=1"), ""},
		{"more than a core is two", "jvm", 1001, nil, "-", env(jvm, "-XX:ActiveProcessorCount=2"), ""},
		{"other variables stay", "jvm", 50, env("A", "a"), "-", env("A", "a", jvm, "-XX:ActiveProcessorCount=1"), ""},
		{"other options stay", "jvm", 50, env(jvm, "-Xmx1g", "A", "a"), "-", env(jvm, "-Xmx1g -XX:ActiveProcessorCount=1", "A", "a"), ""},
		{"an empty value", "jvm", 50, env(jvm, ""), "-", env(jvm, "-XX:ActiveProcessorCount=1"), ""},
		{"of two, the last one counts", "jvm", 50, env(jvm, "-Xmx1g", jvm, "-Xmx2g"), "-", env(jvm, "-Xmx1g", jvm, "-Xmx2g -XX:ActiveProcessorCount=1"), ""},
		{"the second pass", "jvm", 50, env(jvm, "-Xmx1g -XX:ActiveProcessorCount=1"), "-", env(jvm, "-Xmx1g -XX:ActiveProcessorCount=1"), ""},
		{
			"the author's word", "jvm", 50, env(jvm, "-XX:ActiveProcessorCount=12 -Xmx1g"), "-", env(jvm, "-XX:ActiveProcessorCount=12 -Xmx1g"),
			`env.JAVA_TOOL_OPTIONS: container "app":` + stays + "-XX:ActiveProcessorCount=1" + orNone,
		},
		{
			"a value from elsewhere", "jvm", 50, from, "-", from,
			`env.JAVA_TOOL_OPTIONS: container "app": comes from valueFrom, which admission cannot read, so the runtime is not pinned; write it as a value`,
		},
		{
			"a value that may come from elsewhere", "jvm", 50, env("A", "a"), "", env("A", "a"),
			`env.JAVA_TOOL_OPTIONS: container "app": may come from envFrom, and would be replaced, so the runtime is not pinned; ` +
				`write it into env, with what it has to hold besides "-XX:ActiveProcessorCount=1"`,
		},
		{"env goes before envFrom", "jvm", 50, env(jvm, "-Xmx1g"), "", env(jvm, "-Xmx1g -XX:ActiveProcessorCount=1"), ""},
		{"no variable of this name comes from an envFrom with another prefix", "jvm", 50, nil, "DB_", env(jvm, "-XX:ActiveProcessorCount=1"), ""},
		{"Go takes no less than two", "go", 50, nil, "-", env("GOMAXPROCS", "2"), ""},
		{"Go with more", "go", 2500, nil, "-", env("GOMAXPROCS", "3"), ""},
		{"Go for the second time", "go", 50, env("GOMAXPROCS", "2"), "-", env("GOMAXPROCS", "2"), ""},
		{
			"Go, the author's word", "go", 50, env("GOMAXPROCS", "4"), "-", env("GOMAXPROCS", "4"),
			`env.GOMAXPROCS: container "app":` + stays + "2" + orNone,
		},
		{"dotnet", "dotnet", 50, nil, "-", env("DOTNET_PROCESSOR_COUNT", "1"), ""},
		{
			"dotnet, the author's word", "dotnet", 50, env("DOTNET_PROCESSOR_COUNT", ""), "-", env("DOTNET_PROCESSOR_COUNT", ""),
			`env.DOTNET_PROCESSOR_COUNT: container "app":` + stays + "1" + orNone,
		},
		{
			"CPU that is not lowered", "jvm", 4000, nil, "-", nil,
			`resize.example.com/pin-runtime: container "app": has no effect, because the container's CPU is not lowered; remove it, or give the container a lower steady CPU`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.PodSpec{Containers: []corev1.Container{{Name: "log"}, {Name: "app", Env: c.env}}}
			if c.envFrom != "-" {
				pod.Containers[1].EnvFrom = []corev1.EnvFromSource{{Prefix: c.envFrom}}
			}
			before := pod.DeepCopy().Containers[1].Env
			resolved := Resolved{"app": {4000, c.steady}, "log": {1000, 50}}
			left := testKeys(t).Pin(pod, Spec{PinRuntime: map[string]Runtime{"app": c.runtime}}, resolved)
			if got := strings.Join(texts(problems(left)), "\n"); got != c.problem {
				t.Errorf("got  %s\nwant %s", got, c.problem)
			}
			if !reflect.DeepEqual(pod.Containers[1].Env, c.want) || pod.Containers[0].Env != nil {
				t.Errorf("got %+v", pod.Containers)
			}
			if !reflect.DeepEqual(c.env, before) {
				t.Errorf("the environment that others share became %+v", c.env)
			}
		})
	}
}

// FuzzPin: a runtime is pinned once, behind what its author wrote, and what that is stays a secret.
func FuzzPin(f *testing.F) {
	keys := testKeys(f)
	const secret = " -Dpassword=ecila"
	f.Fuzz(func(t *testing.T, pins, value, prefix string, steady int64) {
		spec, ok := parseTwice(t, keys, annotations("steady-cpu", "app=50m,log=50m,proxy=50m", "pin-runtime", pins), typicalSpec())
		if !ok {
			return
		}
		resolved := Resolved{}
		steady = min(max(steady, 1), int64(maxCPU))
		for _, c := range Containers(typicalSpec()) {
			resolved[c.Name] = CPU{maxCPU + 1, MilliCPU(steady)}
		}
		for name, runtime := range spec.PinRuntime {
			c := corev1.Container{Name: name, EnvFrom: []corev1.EnvFromSource{{Prefix: prefix}}}
			variable := runtime.pin().variable
			if value != "" {
				c.Env = []corev1.EnvVar{{Name: "A", Value: value}, {Name: variable, Value: value + secret}}
			}
			pod := &corev1.PodSpec{InitContainers: []corev1.Container{c}}
			problems := keys.Pin(pod, spec, resolved)
			env := pod.InitContainers[0].Env
			again := pod.DeepCopy()
			if p := keys.Pin(again, spec, resolved); !reflect.DeepEqual(p, problems) || !reflect.DeepEqual(again, pod) {
				t.Errorf("%v becomes %v, and says %v and %v", env, again.InitContainers[0].Env, problems, p)
			}
			if len(problems) > 1 || len(problems) == 1 && !slices.Equal(c.Env, env) {
				t.Errorf("%v becomes %v, and says %v", c.Env, env, problems)
			}
			for _, p := range problems {
				checkProblems(t, p)
				if strings.Contains(p.Error(), secret) {
					t.Errorf("says %q", p.Error())
				}
			}
			if len(c.Env) > 0 && !slices.Equal(c.Env, env) && (env[0] != c.Env[0] || !strings.HasPrefix(env[1].Value, strings.TrimLeft(c.Env[1].Value, " "))) {
				t.Errorf("%v becomes %v", c.Env, env)
			}
			if len(problems) == 0 {
				last := env[len(env)-1]
				number := strconv.FormatInt(max((steady+999)/1000, runtime.pin().least), 10)
				if last.Name != variable || !slices.Contains(strings.Fields(last.Value), runtime.pin().option+number) {
					t.Errorf("%d thousandths are %v", steady, last)
				}
			}
		}
	})
}
