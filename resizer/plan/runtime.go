package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Runtime is a language runtime that sizes itself for the CPU it finds when it starts.
type Runtime string

// Runtimes are those that pod-resizer knows how to pin to the steady CPU.
func Runtimes() []Runtime { return []Runtime{"jvm", "go", "dotnet"} }

// pin is how a runtime is told the number of processors to size itself for.
type pin struct {
	variable string // Of the environment.
	option   string // What stands before the number, where the variable holds other options as well.
	least    int64
}

// pin is what the vendor documents; the README says where, and whether it is the right thing to do.
func (r Runtime) pin() pin {
	switch r {
	case "go":
		return pin{"GOMAXPROCS", "", 2} // As Go itself never makes less than 2 of a CPU limit (runtime.GOMAXPROCS).
	case "dotnet":
		return pin{"DOTNET_PROCESSOR_COUNT", "", 1}
	default:
		return pin{"JAVA_TOOL_OPTIONS", "-XX:ActiveProcessorCount=", 1}
	}
}

// Pin puts into the environment of the containers whose runtime is to be pinned how many processors their steady CPU comes to.
// It returns what it leaves alone. The containers of pod are changed, but not the environments they share with others.
func (k Keys) Pin(pod *corev1.PodSpec, spec Spec, resolved Resolved) []Problem {
	var problems []Problem
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			c := &containers[i]
			runtime, named := spec.PinRuntime[c.Name]
			cpu := resolved[c.Name]
			switch {
			case !named:
			case cpu.Steady == cpu.Startup:
				problems = append(problems, Problem{Field: k.PinRuntime, Container: c.Name,
					Message: "has no effect, because the container's CPU is not lowered", Remedy: "remove it, or give the container a lower steady CPU"})
			default:
				if p := runtime.pin().put(c, cpu.Steady); p != nil {
					problems = append(problems, *p)
				}
			}
		}
	}
	return problems
}

func (p pin) put(c *corev1.Container, steady MilliCPU) *Problem {
	number := strconv.FormatInt(max((int64(steady)+999)/1000, p.least), 10)
	said := p.option + number
	// Values are not shown: there may be a password among the options.
	leave := func(message, remedy string) *Problem {
		return &Problem{Field: "env." + p.variable, Container: c.Name, Message: message, Remedy: remedy}
	}
	at := -1
	for i := range c.Env {
		if c.Env[i].Name == p.variable {
			at = i // The last one counts.
		}
	}
	if at < 0 {
		if slices.ContainsFunc(c.EnvFrom, func(e corev1.EnvFromSource) bool { return strings.HasPrefix(p.variable, e.Prefix) }) {
			return leave("may come from envFrom, and would be replaced, so the runtime is not pinned",
				fmt.Sprintf("write it into env, with what it has to hold besides %q", said))
		}
		c.Env = append(slices.Clone(c.Env), corev1.EnvVar{Name: p.variable, Value: said})
		return nil
	}
	value := c.Env[at].Value
	switch {
	case c.Env[at].ValueFrom != nil:
		return leave("comes from valueFrom, which admission cannot read, so the runtime is not pinned", "write it as a value")
	case slices.Contains(strings.Fields(value), said): // Most likely this is the second pass.
		return nil
	case strings.Contains(value, p.option): // Always, where the variable holds nothing but the number.
		return leave("says what the runtime is to size itself for, and stays as it is", fmt.Sprintf("write %q, or leave it out", said))
	}
	c.Env = slices.Clone(c.Env)
	c.Env[at].Value = strings.TrimLeft(value+" "+said, " ")
	return nil
}
