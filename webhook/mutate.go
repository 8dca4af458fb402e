package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"pod-resizer/resizer/plan"
)

// Outcome is what admission did with a pod: metric label, log value and audit annotation, so the set is closed.
type Outcome string

// The outcomes.
const (
	Mutated   Outcome = "mutated"   // The pod got what it lacked.
	Unchanged Outcome = "unchanged" // The pod already had everything.
	Ignored   Outcome = "ignored"   // The pod has not opted in, or it is not the creation of a pod at all.
	Invalid   Outcome = "invalid"   // The pod cannot be resized as its author asks; it is admitted as its author wrote it.

	failed Outcome = "error" // There was no answer to give; see the HTTP status.
)

// Result is the answer to one pod.
type Result struct {
	Outcome  Outcome               `json:"outcome"`
	Warnings []string              `json:"warnings,omitempty"` // For the author, each with what to write instead.
	Patch    []jsonpatch.Operation `json:"patch,omitempty"`    // The smallest that does it; most often empty unless Mutated.

	unsure bool // See NamesAbsent; then it is not denied.
}

// NamesAbsent says whether the pod is Invalid, and the annotations name a container that it does not have.
func (r Result) NamesAbsent() bool { return r.unsure }

// Mutator gives a pod at its creation what it needs to be resized later. It keeps no state.
type Mutator struct{ Keys plan.Keys }

// Review answers an admission request. Whatever a webhook configuration sends here by mistake, pods/resize above all,
// is left alone: raising the request to the limit there would undo the resizer's work.
func (m Mutator) Review(request *Request[Pod]) (Result, error) {
	if request.Operation != admissionv1.Create || request.SubResource != "" ||
		request.Resource.Group != "" || request.Resource.Resource != string(corev1.ResourcePods) {
		return Result{Outcome: Ignored}, nil
	}
	if request.Object == nil {
		return Result{}, errNoObject
	}
	if annotations := request.Object.Metadata.Annotations; !m.Keys.OptedIn(annotations) {
		return m.ignored(annotations), nil
	}
	return m.Mutate(request.Object.typed()), nil
}

// Mutate works out the patch for a pod that is being created. It only reads the pod, and it is idempotent: the patched
// pod gives an empty patch, as reinvocationPolicy IfNeeded demands.
//
// A patch that does not apply fails the creation even under failurePolicy Ignore, so every operation has a parent that
// is certainly there: an opted-in pod has annotations, and a map or list that is empty here, which may be missing or null
// on the wire, is added as a whole, resources without anything in them included.
func (m Mutator) Mutate(pod *corev1.Pod) Result {
	if !m.Keys.OptedIn(pod.Annotations) {
		return m.ignored(pod.Annotations)
	}
	unknown := plan.Problems(m.Keys.CheckUnknown(pod.Annotations))
	var p patch
	spec, err := m.Keys.Parse(pod.Annotations, &pod.Spec)
	var resolved plan.Resolved
	if err == nil {
		resolved, err = m.Keys.Resolve(&pod.Spec, spec)
	}
	if err != nil {
		// The author's part stays as it is. Numbers that admission gave to another pod would overrule it later.
		p.remove(pod.Annotations, m.Keys.Resolved, m.Keys.Resized, m.Keys.Status)
		p.guard(m.Keys, pod.Annotations, false)
		return Result{Outcome: Invalid, Warnings: texts(slices.Concat(plan.Problems(err), unknown)), Patch: p,
			unsure: namesAbsent(err, &pod.Spec)}
	}

	after, culprits := created(&pod.Spec, spec, resolved)
	unpinned := m.Keys.Pin(&after, spec, resolved)
	result := Result{Outcome: Unchanged, Warnings: texts(slices.Concat(unknown, spec.Warnings, culpritWarnings(culprits),
		amountWarnings(&pod.Spec, spec, resolved), probeWarnings(&pod.Spec, spec), initWarnings(&after, spec, resolved), unpinned))}
	p.containers("/spec/initContainers/", pod.Spec.InitContainers, after.InitContainers, spec)
	p.containers("/spec/containers/", pod.Spec.Containers, after.Containers, spec)
	p.annotations(m.Keys, pod.Annotations, resolved)
	p.guard(m.Keys, pod.Annotations, spec.ProtectStartup)
	switch {
	case len(pod.Labels) == 0:
		p.add("/metadata/labels", map[string]string{m.Keys.Managed: "true"})
	case pod.Labels[m.Keys.Managed] != "true":
		p.add("/metadata/labels/"+escape(m.Keys.Managed), "true")
	}
	if len(p) > 0 {
		result.Outcome, result.Patch = Mutated, p
	}
	return result
}

// ignored is the answer to a pod that has not opted in.
func (m Mutator) ignored(annotations map[string]string) Result {
	return Result{Outcome: Ignored, Warnings: warnings(m.Keys.CheckEnabled(annotations))}
}

// resized are the resources whose requests and limits decide the QoS class, in the order of the patch.
func resized() []corev1.ResourceName {
	return []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
}

// created returns the containers of pod as they are to be created, and what keeps the pod from being Guaranteed even so. All
// of it is for the author to mend, because a memory limit nobody measured kills. The containers that have a steady CPU get what
// their author asks for, request == limit; the others only where that makes the pod Guaranteed: to throttle or enlarge them
// would otherwise buy their author nothing.
func created(pod *corev1.PodSpec, spec plan.Spec, resolved plan.Resolved) (corev1.PodSpec, []plan.Culprit) {
	with := func(all bool) corev1.PodSpec {
		after := corev1.PodSpec{InitContainers: slices.Clone(pod.InitContainers), Containers: slices.Clone(pod.Containers)}
		for _, containers := range [][]corev1.Container{after.InitContainers, after.Containers} {
			for i := range containers {
				c := &containers[i]
				if _, named := spec.Steady[c.Name]; named {
					c.Resources = asked(c, spec, resolved[c.Name])
				} else if all {
					c.Resources = equalized(c.Resources)
				}
			}
		}
		return after
	}
	after := with(true)
	_, culprits := plan.QoS(&after)
	if len(culprits) > 0 {
		after = with(false)
	}
	return after, culprits
}

// asked are the resources of a container that has a steady CPU. Where its author asks for no other than it has, even its
// mistakes stay; see equalized.
func asked(c *corev1.Container, spec plan.Spec, cpu plan.CPU) corev1.ResourceRequirements {
	after := corev1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits}
	set := func(name corev1.ResourceName, to *resource.Quantity) {
		after.Requests, after.Limits = with(after.Requests, name, *to), with(after.Limits, name, *to)
	}
	if amount := spec.Created(cpu); amount != plan.LimitOrRequest(c) {
		set(corev1.ResourceCPU, amount.Quantity())
	}
	if amount, named := spec.Memory[c.Name]; named {
		set(corev1.ResourceMemory, amount.Quantity())
	}
	return equalized(after)
}

// equalized raises requests to limits. It lowers none: a request above its limit (a limit of zero, which Kubernetes takes
// for none, included) is a mistake that the API server tells the author about.
func equalized(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	after := corev1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits}
	for _, name := range resized() {
		limit, limited := r.Limits[name]
		request := r.Requests[name]
		switch {
		case request.Cmp(limit) < 0:
			after.Requests = with(after.Requests, name, limit)
		case !limited && name == corev1.ResourceCPU && !request.IsZero():
			after.Limits = with(after.Limits, name, request)
		}
	}
	return after
}

// with is the list with one amount changed. The one it was made of belongs to the pod as it is written, and stays.
func with(list corev1.ResourceList, name corev1.ResourceName, amount resource.Quantity) corev1.ResourceList {
	after := make(corev1.ResourceList, len(list)+1)
	maps.Copy(after, list)
	after[name] = amount
	return after
}

// patch collects operations. It writes "add" throughout, which replaces a value that is there (RFC 6902, 4.1).
type patch []jsonpatch.Operation

func (p *patch) add(path string, value any) {
	*p = append(*p, jsonpatch.NewOperation("add", path, value))
}

func (p *patch) containers(path string, before, after []corev1.Container, spec plan.Spec) {
	for i := range before {
		path := fmt.Sprintf("%s%d", path, i)
		p.resources(path+"/resources", before[i].Resources, after[i].Resources)
		p.env(path+"/env", before[i].Env, after[i].Env)
		if _, named := spec.Steady[before[i].Name]; named {
			p.resizePolicy(path+"/resizePolicy", before[i].ResizePolicy)
		}
	}
}

func (p *patch) resources(path string, before, after corev1.ResourceRequirements) {
	requests, limits := changed(before.Requests, after.Requests), changed(before.Limits, after.Limits)
	if len(before.Requests)+len(before.Limits)+len(before.Claims) == 0 && len(requests)+len(limits) > 0 {
		p.add(path, map[string]map[corev1.ResourceName]string{"requests": requests, "limits": limits})
		return
	}
	p.amounts(path+"/requests", before.Requests, requests)
	p.amounts(path+"/limits", before.Limits, limits)
}

// changed are the amounts that are other in after, by value.
func changed(before, after corev1.ResourceList) map[corev1.ResourceName]string {
	var changed map[corev1.ResourceName]string
	for _, name := range resized() {
		have, had := before[name]
		if want, wanted := after[name]; wanted && (!had || have.Cmp(want) != 0) {
			if changed == nil {
				changed = map[corev1.ResourceName]string{}
			}
			changed[name] = want.String()
		}
	}
	return changed
}

func (p *patch) amounts(path string, before corev1.ResourceList, changed map[corev1.ResourceName]string) {
	switch {
	case len(changed) == 0:
	case len(before) == 0:
		p.add(path, changed)
	default:
		for _, name := range resized() {
			if amount, ok := changed[name]; ok {
				p.add(path+"/"+string(name), amount)
			}
		}
	}
}

// resizePolicy writes down that no restart is wanted. The kubelet does the same without, but people read manifests.
func (p *patch) resizePolicy(path string, before []corev1.ContainerResizePolicy) {
	if slices.ContainsFunc(before, func(r corev1.ContainerResizePolicy) bool { return r.ResourceName == corev1.ResourceCPU }) {
		return // Whatever it says, Parse or its author has agreed to it.
	}
	policy := corev1.ContainerResizePolicy{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}
	if len(before) == 0 {
		p.add(path, []corev1.ContainerResizePolicy{policy})
	} else {
		p.add(path+"/-", policy)
	}
}

// env writes what is new in after: a value, or a variable at the end.
func (p *patch) env(path string, before, after []corev1.EnvVar) {
	if len(before) == 0 && len(after) > 0 {
		p.add(path, after)
		return
	}
	for i := range after {
		if i == len(before) {
			p.add(path+"/-", after[i])
		} else if after[i].Value != before[i].Value {
			p.add(fmt.Sprintf("%s/%d/value", path, i), after[i].Value)
		}
	}
}

// annotations takes away what the manifest of a running pod carries along when it is applied anew: to the resizer it
// would mean that the new pod is done.
func (p *patch) annotations(keys plan.Keys, annotations map[string]string, resolved plan.Resolved) {
	if value := resolved.String(); annotations[keys.Resolved] != value {
		p.add("/metadata/annotations/"+escape(keys.Resolved), value)
	}
	p.remove(annotations, keys.Resized, keys.Status)
}

// guard puts the guards on, or takes away those that the manifest of a running pod carries along.
func (p *patch) guard(keys plan.Keys, annotations map[string]string, on bool) {
	changes := keys.Guard(annotations, on)
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		if value := changes[key]; value != nil {
			p.add("/metadata/annotations/"+escape(key), *value)
		} else {
			p.remove(annotations, key)
		}
	}
}

func (p *patch) remove(annotations map[string]string, keys ...string) {
	for _, key := range keys {
		if _, present := annotations[key]; present {
			*p = append(*p, jsonpatch.NewOperation("remove", "/metadata/annotations/"+escape(key), nil))
		}
	}
}

// escape makes a key part of a JSON pointer (RFC 6901, 3). A domain has no "~", so the slash is all there is.
func escape(key string) string { return strings.ReplaceAll(key, "/", "~1") }

func warnings(err error) []string { return texts(plan.Problems(err)) }

func texts(problems []plan.Problem) []string {
	var all []string
	for _, p := range plan.Bounded(problems) {
		all = append(all, p.Error())
	}
	return all
}

func culpritWarnings(culprits []plan.Culprit) []plan.Problem {
	var all []plan.Problem
	for _, c := range culprits {
		remedy := "write the same as the limit"
		switch c.Field {
		case "limits.cpu":
			remedy = "set it, and the request is made equal to it"
		case "limits.memory":
			remedy = "set it to the most this container may use; pod-resizer never invents a memory limit"
		}
		all = append(all, plan.Problem{Field: "resources." + c.Field, Container: c.Container,
			Message: c.Is + ", so the pod will not be Guaranteed", Remedy: remedy})
	}
	return all
}

// leastCPU is what the kubelet makes of less: a quota of 1 ms in 100 ms (MinQuotaPeriod in its pkg/kubelet/cm/helpers_linux.go).
const leastCPU plan.MilliCPU = 10

// amountWarnings names the containers for which lowering comes to nothing, or to more than is said.
func amountWarnings(pod *corev1.PodSpec, spec plan.Spec, resolved plan.Resolved) []plan.Problem {
	var all []plan.Problem
	for _, c := range plan.Containers(pod) {
		name := c.Name
		steady, named := spec.Steady[name]
		cpu := resolved[name]
		switch {
		case !named:
		case cpu.Steady == cpu.Startup:
			all = append(all, plan.Problem{Field: steady.Field, Container: name, Value: strconv.Quote(steady.Text),
				Message: "is its startup CPU, too, so nothing will be lowered", Remedy: "write less"})
		case cpu.Steady < leastCPU:
			all = append(all, plan.Problem{Field: steady.Field, Container: name, Value: strconv.Quote(steady.Text),
				Message: "is less than the kubelet limits a container to, " + leastCPU.String(), Remedy: "write " + leastCPU.String()})
		}
	}
	return all
}

// probeWarnings names the containers whose startup nobody can see.
func probeWarnings(podSpec *corev1.PodSpec, spec plan.Spec) []plan.Problem {
	if spec.Trigger != plan.StartupProbePassed && spec.Trigger != plan.Ready {
		return nil
	}
	var all []plan.Problem
	for _, c := range plan.Containers(podSpec) {
		if _, named := spec.Steady[c.Name]; named && c.StartupProbe == nil && c.ReadinessProbe == nil {
			all = append(all, plan.Problem{Field: "startupProbe", Container: c.Name,
				Message: "has neither a startupProbe nor a readinessProbe, so its startup counts as over as soon as it runs",
				Remedy:  fmt.Sprintf("add a startupProbe, or use the trigger %q", plan.Delay)})
		}
	}
	return all
}

// initWarnings names the init containers whose CPU stays reserved after the resize: Kubernetes reserves for a pod what its
// running containers have, or if that is more, what an init container needs beside the sidecars that were there before it,
// whether or not it has ended (AggregateContainerRequests of k8s.io/component-helpers/resource).
func initWarnings(after *corev1.PodSpec, spec plan.Spec, resolved plan.Resolved) []plan.Problem {
	steady := func(c *corev1.Container) plan.MilliCPU {
		if _, named := spec.Steady[c.Name]; named {
			return resolved[c.Name].Steady
		}
		if request, requested := c.Resources.Requests[corev1.ResourceCPU]; requested {
			return plan.MilliCPU(request.MilliValue())
		}
		return plan.LimitOrRequest(c) // The API server makes the request of it.
	}
	var left plan.MilliCPU // What the running containers have, without the sidecars so far.
	for _, c := range plan.Containers(after) {
		left += steady(c)
	}
	for i := range after.InitContainers {
		if c := &after.InitContainers[i]; !plan.IsSidecar(c) {
			left -= steady(c)
		}
	}
	var all []plan.Problem
	for i := range after.InitContainers {
		c := &after.InitContainers[i]
		cpu, field := steady(c), "limits.cpu"
		if cpu < plan.LimitOrRequest(c) {
			field = "requests.cpu" // They stay apart, because the pod does not become Guaranteed.
		}
		switch {
		case plan.IsSidecar(c):
			left -= cpu
		case cpu > left && left > 0:
			all = append(all, plan.Problem{Field: "resources." + field, Container: c.Name, Value: cpu.String(),
				Message: "stays reserved after the init container has ended, because it is more than the running containers have when steady",
				Remedy:  fmt.Sprintf("lower it to %s or less", left)})
		}
	}
	return all
}
