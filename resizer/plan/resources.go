package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"
)

// Want is CPU that an author asks for: an amount, or a share of the container's other CPU (steady of startup, or startup of
// steady).
type Want struct {
	Amount MilliCPU // Zero where there is a Share.
	Share  int64    // In hundred-thousandths: 25% is 25,000, 3x is 300,000.
	Field  string   // The annotation that says so,
	Text   string   // and in which words.
}

// of is what the author asks for, given the container's other CPU. Shares are rounded up, so that they never come to nothing.
// The bounds of both (maxCPU, maxFactor) keep it from overflowing.
func (w Want) of(other MilliCPU) MilliCPU {
	if w.Share == 0 {
		return w.Amount
	}
	const whole = 100_000
	return (other*MilliCPU(w.Share) + whole - 1) / whole
}

// maxFactor bounds startup-cpu: it makes a whole core of a thousandth.
const maxFactor = 1000

// shares is how a short annotation relates a container's CPU to its other CPU.
type shares struct {
	suffix string
	parse  func(number string) (int64, error) // What stands before the suffix, to Want.Share.
	remedy string
}

func percents() shares {
	return shares{"%", func(number string) (int64, error) {
		thousandths, err := decimal(number)
		if err != nil || thousandths <= 0 || thousandths > 100_000 {
			return 0, errors.New("is not a percentage of more than 0 and at most 100, with up to three decimals")
		}
		return thousandths, nil
	}, `write an amount such as "50m", or a part of the startup CPU such as "25%"`}
}

func factors() shares {
	return shares{"x", func(number string) (int64, error) {
		thousandths, err := decimal(number)
		if err != nil || thousandths < 1000 || thousandths > maxFactor*1000 {
			return 0, fmt.Errorf("is not a factor from 1 to %d, with up to three decimals", maxFactor)
		}
		return thousandths * 100, nil
	}, `write an amount such as "2", or a multiple of the steady CPU such as "3x"`}
}

// decimal is a plain number such as "12.5" in thousandths.
func decimal(number string) (int64, error) {
	notDecimal := errors.New("is not a number")
	if len(number) > maxAmount || strings.Trim(number, "0123456789.") != "" {
		return 0, notDecimal
	}
	q, err := resource.ParseQuantity(number)
	if err != nil {
		return 0, notDecimal
	}
	thousandths := q.MilliValue()
	if q.Cmp(*resource.NewMilliQuantity(thousandths, resource.DecimalSI)) != 0 {
		return 0, notDecimal // More decimals, which were rounded up, or more than fits.
	}
	return thousandths, nil
}

// resources reads what the annotations say of CPU and memory. Every container that they name must be one that runs on after
// startup, and have a steady CPU.
func (r *reading) resources(s *Spec) {
	example := func() string { return fmt.Sprintf("write "+steadyExample, r.defaultContainer()) }
	if !r.has(r.SteadyResources) && !r.has(r.SteadyCPU) {
		r.problem(r.SteadyResources, "", "", "is missing", fmt.Sprintf(`%s, or in short %s: "50m"`, example(), r.SteadyCPU))
	}
	before := len(r.problems)
	steady, _ := r.long(r.SteadyResources, example, corev1.ResourceCPU)
	s.Steady = r.merged(steady, r.short(r.SteadyCPU, percents()))
	startup, memory := r.long(r.StartupResources, example, corev1.ResourceCPU, corev1.ResourceMemory)
	s.Startup, s.Memory = r.merged(startup, r.short(r.StartupCPU, factors())), memory
	if len(r.problems) > before || len(s.Steady) == 0 {
		return // What does not fit together may be a consequence.
	}
	for _, name := range sorted(s.Startup) {
		startup := s.Startup[name]
		switch steady, named := s.Steady[name]; {
		case !named:
			r.neverLowered(startup.Field, name)
		case startup.Share > 0 && steady.Share > 0:
			r.problem(startup.Field, name, quote(startup.Text), fmt.Sprintf("is a multiple of the steady CPU, and that is %s of this",
				quote(steady.Text)), fmt.Sprintf("write an amount here or in %s", steady.Field))
		}
	}
	containers := Containers(r.pod)
	for _, name := range sorted(s.Memory) {
		if _, named := s.Startup[name]; !named {
			if _, named := s.Steady[name]; !named {
				r.neverLowered(r.StartupResources, name)
			}
		}
		c := containers[slices.IndexFunc(containers, func(c *corev1.Container) bool { return c.Name == name })]
		most, is := c.Resources.Requests[corev1.ResourceMemory], "request"
		if limit := c.Resources.Limits[corev1.ResourceMemory]; limit.Cmp(most) >= 0 {
			most, is = limit, "limit"
		}
		if wanted := s.Memory[name].Quantity(); wanted.Cmp(most) < 0 {
			r.problem(r.StartupResources, name, quote(wanted.String()), fmt.Sprintf("is less than the container's memory %s, %s, and memory is never lowered",
				is, &most), "write no less, or leave memory out")
		}
	}
}

func (r *reading) neverLowered(field, container string) {
	r.problem(field, container, "", "has no steady CPU, so its startup CPU would never be lowered",
		fmt.Sprintf("name it in %s, too, or write its resources into the container", r.SteadyCPU))
}

// merged joins what a long and a short annotation say.
func (r *reading) merged(long, short map[string]Want) map[string]Want {
	for _, name := range sorted(short) {
		s := short[name]
		l, both := long[name]
		switch {
		case !both:
			if long == nil {
				long = map[string]Want{}
			}
			long[name] = s
		case l.Amount == s.Amount && l.Share == s.Share:
			r.warn(s.Field, name, quote(s.Text), "is redundant: "+l.Field+" says the same", "remove one of them")
		default:
			is := "differs from"
			if l.Share != s.Share {
				is = "cannot be compared with" // Of an amount and a share, only the pod's resources would tell.
			}
			r.problem(s.Field, name, quote(s.Text), fmt.Sprintf("%s %s in %s", is, quote(l.Text), l.Field), "remove one of them")
		}
	}
	return long
}

// short reads an annotation such as "50m", or "app=50m,proxy=25%".
func (r *reading) short(field string, shares shares) map[string]Want {
	wants := map[string]Want{}
	byContainer := r.perContainer(field)
	for _, name := range sorted(byContainer) {
		w := Want{Field: field, Text: byContainer[name]}
		var err error
		if number, related := strings.CutSuffix(w.Text, shares.suffix); related {
			w.Share, err = shares.parse(number)
		} else {
			w.Amount, err = amount(w.Text).cpu()
		}
		if err != nil {
			r.problem(field, name, quote(w.Text), err.Error(), shares.remedy)
			continue
		}
		wants[name] = w
	}
	r.checkNames(field, sorted(byContainer))
	return wants
}

// perContainer reads an annotation such as "app=X,proxy=Y". A bare X is meant for the default container.
func (r *reading) perContainer(field string) map[string]string {
	value, present := r.annotations[field]
	switch {
	case !present || r.tooLong(field):
		return nil
	case !strings.Contains(value, "="):
		name := r.defaultContainer()
		if name == r.annotations[defaultContainerKey] && !r.runs(name) {
			r.problem(defaultContainerKey, name, "", "the pod has no such container, and "+field+" names none", "name one of "+list(r.running()))
			return nil
		}
		return map[string]string{name: strings.TrimSpace(value)}
	}
	values := map[string]string{}
	for part := range strings.SplitSeq(value, ",") {
		name, text, named := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		switch _, twice := values[name]; {
		case !named || name == "":
			r.problem(field, "", quote(part), "names no container", "write CONTAINER=VALUE, and a comma before the next")
		case twice:
			r.problem(field, name, "", "is named twice", "name it once")
		default:
			values[name] = strings.TrimSpace(text)
		}
	}
	return values
}

// defaultContainer is the one that kubectl would take, too: named by an annotation, else the first. On a second pass of admission it
// is the first of those that were there before, whatever sidecar has been put before it since; and after admission, of those
// that admission found to be lowered.
func (r *reading) defaultContainer() string {
	if name := r.annotations[defaultContainerKey]; name != "" {
		return name
	}
	if value, second := r.annotations[r.Resolved]; second {
		carried, _ := r.parseResolved(value) // Garbage counts for nothing.
		for _, c := range r.pod.Containers {
			if cpu, there := carried[c.Name]; there && (!r.stored || cpu.Steady < cpu.Startup) {
				return c.Name
			}
		}
	}
	if len(r.pod.Containers) > 0 {
		return r.pod.Containers[0].Name
	}
	return "app" // No API server lets such a pod in.
}

// defaultContainerKey is kubectl's.
const defaultContainerKey = "kubectl.kubernetes.io/default-container"

// steadyExample is what a remedy shows.
const steadyExample = `{%q:{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}`

// long reads an annotation like the resources of a pod, by container. It is strict: an unknown or doubled field is more
// likely a typing error than a wish.
func (r *reading) long(field string, example func() string, allowed ...corev1.ResourceName) (map[string]Want, map[string]Bytes) {
	value, present := r.annotations[field]
	if !present || r.tooLong(field) {
		return nil, nil
	}
	var byContainer map[string]struct {
		Requests map[corev1.ResourceName]amount `json:"requests"`
		Limits   map[corev1.ResourceName]amount `json:"limits"`
	}
	if strict, err := json.UnmarshalStrict([]byte(value), &byContainer); err != nil || len(strict) > 0 {
		r.problem(field, "", quote(value), "is not the expected JSON"+jsonErrors(append(strict, err)), example())
		return nil, nil
	}
	if len(byContainer) == 0 {
		r.problem(field, "", quote(value), "names no container", example())
	}
	cpu, memory := map[string]Want{}, map[string]Bytes{}
	for _, name := range sorted(byContainer) {
		requests, limits := byContainer[name].Requests, byContainer[name].Limits
		said := mergeKeys(requests, limits)
		for _, resourceName := range sorted(said) {
			if !slices.Contains(allowed, resourceName) {
				message := "is not CPU, and only CPU is lowered"
				if len(allowed) > 1 {
					message = "is neither CPU nor memory"
				}
				r.problem(field, name, quote(string(resourceName)), message, "remove it")
			}
		}
		if text, ok := said[corev1.ResourceCPU]; ok {
			amount, wrong, err := equal(requests, limits, corev1.ResourceCPU, amount.cpu)
			if err != nil {
				r.problem(field, name, quote(string(wrong)), err.Error(), `write an amount such as "50m", the same for both`)
			} else {
				cpu[name] = Want{Amount: amount, Field: field, Text: string(text)}
			}
		}
		if _, ok := said[corev1.ResourceMemory]; ok && len(allowed) > 1 {
			amount, wrong, err := equal(requests, limits, corev1.ResourceMemory, amount.memory)
			if err != nil {
				r.problem(field, name, quote(string(wrong)), err.Error(), `write an amount such as "256Mi", the same for both`)
			} else {
				memory[name] = amount
			}
		}
		if !slices.ContainsFunc(allowed, func(n corev1.ResourceName) bool { _, ok := said[n]; return ok }) {
			r.problem(field, name, "", "has no CPU", fmt.Sprintf("write "+steadyExample, cut(name, maxProblemValue)))
		}
	}
	r.checkNames(field, sorted(byContainer))
	return cpu, memory
}

// equal is what request and limit both come to, or else which of them is wrong. One of them stands for both. They are compared
// by value: "0.05" and "50m" are the same.
func equal[T comparable](requests, limits map[corev1.ResourceName]amount, name corev1.ResourceName, parse func(amount) (T, error)) (T, amount, error) {
	var none T
	request, requested := requests[name]
	limit, limited := limits[name]
	if !limited {
		limit = request
	}
	if !requested {
		request = limit
	}
	parsed, err := parse(limit)
	if err != nil {
		return none, limit, err
	}
	other, err := parse(request)
	if err != nil {
		return none, request, err
	}
	if other != parsed {
		return none, request, fmt.Errorf("differs from the limit %s, so the pod would not be Guaranteed", quote(string(limit)))
	}
	return parsed, "", nil
}

// jsonErrors are the errors of a decoder in parentheses and on one line, without those that speak of this program's types.
func jsonErrors(errs []error) string {
	var texts []string
	for _, err := range errs {
		if err != nil && !strings.Contains(err.Error(), "Go ") {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + cut(strings.Join(texts, ", "), 2*maxProblemValue) + ")"
}

// sorted are the keys of a map in an order that stays the same.
func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	keys := slices.AppendSeq(make([]K, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}

// mergeKeys joins two maps; b goes before a.
func mergeKeys(a, b map[corev1.ResourceName]amount) map[corev1.ResourceName]amount {
	all := map[corev1.ResourceName]amount{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// running are the names of the containers that run on after startup.
func (r *reading) running() []string {
	var names []string
	for _, c := range runningContainers(r.pod) {
		names = append(names, c.Name)
	}
	return names
}

func (r *reading) runs(name string) bool { return slices.Contains(r.running(), name) }

// checkNames demands that every named container is one that runs on after startup.
func (r *reading) checkNames(field string, names []string) {
	if len(names) == 0 {
		return
	}
	running := r.running()
	runs := make(map[string]bool, len(running))
	for _, name := range running {
		runs[name] = true
	}
	for _, name := range names {
		message := "the pod has no such container"
		switch {
		case runs[name]:
			continue
		case slices.ContainsFunc(r.pod.InitContainers, func(c corev1.Container) bool { return c.Name == name }):
			message = "is an init container, which ends before startup is over"
		}
		r.problem(field, name, "", message, "name one of "+list(running))
	}
}

// tooLong says whether an annotation is too long to be read.
func (r *reading) tooLong(field string) bool {
	if len(r.annotations[field]) <= maxAnnotation {
		return false
	}
	r.problem(field, "", quote(r.annotations[field]), fmt.Sprintf("is longer than %d bytes", maxAnnotation), "name only the containers to be lowered")
	return true
}
