package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	corev1 "k8s.io/api/core/v1"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/cluster"
)

// The demo's numbers, as they stand in workloads.yaml.
const (
	startupCPU plan.MilliCPU = 200
	steadyCPU  plan.MilliCPU = 50
)

// state is what the timeline knows about a pod at one moment.
type state struct {
	Request, Limit plan.MilliCPU // In the spec.
	// Quota of the container's and of the pod's cgroup in thousandths of a core; 0 before it exists. A simulated node has none:
	// there, what the node reports in the container's status.
	Container, Group int64
	Running, Started bool
	ContainerID      string
	Restarts         int32
	QoS              corev1.PodQOSClass
	Steady, Marked   bool // The condition and the annotation.
}

// moment is a state and when it began.
type moment struct {
	state
	at time.Duration
}

// timeline prints what changes and keeps it for the checks.
type timeline struct {
	cluster   *cluster.Cluster
	simulated bool
	keys      plan.Keys
	out       io.Writer
	begin     time.Time
	printed   time.Time              // The last line.
	pods      map[string]*corev1.Pod // The newest, by Deployment.
	history   map[string][]moment
}

func newTimeline(c *cluster.Cluster, out io.Writer) *timeline {
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		panic(err) // Only for a domain that is none.
	}
	granted, restarts := "CGROUP", "RESTARTS"
	simulated := c.Node() == cluster.Simulated
	if simulated {
		granted, restarts = "NODE*", "RESTARTS*"
		fmt.Fprintln(out, "Columns with a * are simulated: KWOK plays nodes and kubelets, no container runs,\n"+
			"and a start takes the time that test/demo/workloads.yaml says. API server,\n"+
			"scheduler, controllers and pod-resizer, a process of this machine, are real.")
	}
	bold := lipgloss.NewStyle().Bold(true)
	lipgloss.Fprintln(out, bold.Render(fmt.Sprintf(layout, "TIME", "POD", "EVENT", "SPEC", granted, restarts, "QOS")))
	return &timeline{simulated: simulated, cluster: c, keys: keys, out: out, begin: time.Now(), pods: map[string]*corev1.Pod{}, history: map[string][]moment{}}
}

// layout fits 80 columns.
const layout = "%5s %-8s %-31s %5s %6s %9s %s"

func (t *timeline) last(deployment string) moment {
	if history := t.history[deployment]; len(history) > 0 {
		return history[len(history)-1]
	}
	return moment{}
}

// see takes in a pod as the API server has it.
func (t *timeline) see(pod *corev1.Pod) {
	deployment := pod.Labels["app"]
	s := t.last(deployment).state
	cpu := pod.Spec.Containers[0].Resources
	s.Request, s.Limit = plan.MilliCPU(cpu.Requests.Cpu().MilliValue()), plan.MilliCPU(cpu.Limits.Cpu().MilliValue())
	s.QoS = pod.Status.QOSClass
	s.Marked = pod.Annotations[t.keys.Resized] == "true"
	for _, c := range pod.Status.Conditions {
		if c.Type == t.keys.Steady {
			s.Steady = c.Status == corev1.ConditionTrue
		}
	}
	if len(pod.Status.ContainerStatuses) > 0 {
		status := pod.Status.ContainerStatuses[0]
		s.Running = status.State.Running != nil
		s.Started = status.Started != nil && *status.Started
		s.Restarts, s.ContainerID = status.RestartCount, status.ContainerID
		if t.simulated && s.Running && status.Resources != nil {
			s.Container = status.Resources.Limits.Cpu().MilliValue()
			s.Group = s.Container
		}
	}
	t.pods[deployment] = pod
	t.add(deployment, s)
}

// readQuotas takes in what the kernel grants the pods.
func (t *timeline) readQuotas() {
	if t.simulated {
		return
	}
	for deployment, pod := range t.pods {
		s := t.last(deployment).state
		if s.ContainerID == "" {
			continue
		}
		container, group, err := t.cluster.CPUQuota(pod.UID, s.ContainerID)
		if err != nil {
			continue // The container is just being made, or gone; the checks demand what has to be there.
		}
		s.Container, s.Group = container.MilliCPU(), group.MilliCPU()
		t.add(deployment, s)
	}
}

// add keeps a state and prints what is new about it.
func (t *timeline) add(deployment string, s state) {
	before := t.last(deployment)
	if s == before.state {
		return
	}
	m := moment{s, time.Since(t.begin)}
	t.history[deployment] = append(t.history[deployment], m)
	var news []string
	tell := func(isNew bool, text string) {
		if isNew {
			news = append(news, text)
		}
	}
	tell(before.Limit == 0, "created")
	tell(s.Running && !before.Running, "container runs")
	tell(s.Started && !before.Started, "startup probe passed")
	tell(before.Limit > s.Limit, fmt.Sprintf("CPU lowered to %s in the spec", s.Limit))
	if t.simulated {
		tell(before.Container > s.Container, "... on the simulated node")
	} else {
		tell(before.Container > s.Container, "... in the container's cgroup")
		tell(before.Group > s.Group, "... in the pod's cgroup")
	}
	tell(s.Restarts > before.Restarts, "RESTARTED")
	tell(s.Steady && !before.Steady, "condition and marker written")
	for _, text := range news {
		t.print(deployment, m, text)
	}
}

// silence is how long the timeline may have nothing to tell before it says who is waited for.
const silence = 2 * time.Second

// stillWaiting breaks a silence.
func (t *timeline) stillWaiting() {
	if time.Since(t.printed) < silence {
		return
	}
	for _, deployment := range []string{opted, plain} {
		if s := t.last(deployment).state; s.Limit > 0 && !s.Started {
			t.print(deployment, moment{s, time.Since(t.begin)}, "still starting")
		}
	}
}

func (t *timeline) print(deployment string, m moment, text string) {
	t.printed = time.Now()
	quota := "-"
	if m.Container > 0 {
		quota = plan.MilliCPU(m.Container).String()
	}
	line := fmt.Sprintf(layout, seconds(m.at), deployment, text, m.Limit, quota, fmt.Sprint(m.Restarts), m.QoS)
	if deployment == opted {
		line = lipgloss.NewStyle().Foreground(lipgloss.Green).Render(line)
	}
	lipgloss.Fprintln(t.out, line)
}

// The two Deployments.
const (
	opted = "opted-in"
	plain = "at-50m"
)

// complete says whether nothing more is to come.
func (t *timeline) complete() bool {
	with := t.last(opted)
	return with.Steady && with.Container == int64(steadyCPU) && with.Group == int64(steadyCPU) && t.last(plain).Started
}

// first is the first moment that satisfies a condition, and the one before it.
func (t *timeline) first(deployment string, is func(state) bool) (before, at moment, found bool) {
	for _, m := range t.history[deployment] {
		if is(m.state) {
			return before, m, true
		}
		before = m
	}
	return before, moment{}, false
}

// startup is the time from the running container to the passed probe.
func (t *timeline) startup(deployment string) (time.Duration, bool) {
	_, running, ran := t.first(deployment, func(s state) bool { return s.Running })
	_, started, passed := t.first(deployment, func(s state) bool { return s.Started })
	return started.at - running.at, ran && passed
}

// summary prints figures and checks; an error if a check fails.
func (t *timeline) summary(out io.Writer) error {
	with, without := t.last(opted), t.last(plain)
	fast, fastStarted := t.startup(opted)
	slow, slowStarted := t.startup(plain)
	var created state
	if history := t.history[opted]; len(history) > 0 {
		created = history[0].state
	}
	cell := func(known bool, d time.Duration) string {
		if !known {
			return "never"
		}
		return seconds(d)
	}
	startupTook, restarts := "startup took", "restarts"
	if t.simulated {
		startupTook, restarts = startupTook+"*", restarts+"*"
	}
	figures := table.New().Border(lipgloss.RoundedBorder()).
		StyleFunc(func(int, int) lipgloss.Style { return lipgloss.NewStyle().Padding(0, 1) }).
		Headers("", opted, plain).
		Row(startupTook, cell(fastStarted, fast), cell(slowStarted, slow)).
		Row("CPU reserved while starting", created.Request.String(), without.Request.String()).
		Row("CPU reserved afterwards", with.Request.String(), without.Request.String()).
		Row("QoS class", string(with.QoS), string(without.QoS)).
		Row(restarts, fmt.Sprint(with.Restarts), fmt.Sprint(without.Restarts))
	lipgloss.Fprintln(out, "\n"+figures.String()+"\n")

	beforeLowered, lowered, wasLowered := t.first(opted, func(s state) bool { return s.Limit != 0 && s.Limit < startupCPU })
	_, first, hadContainer := t.first(opted, func(s state) bool { return s.Container > 0 })
	ids := map[string]bool{}
	for _, m := range t.history[opted] {
		if m.ContainerID != "" {
			ids[m.ContainerID] = true
		}
	}
	failed := 0
	check := func(holds bool, claim string) {
		mark := lipgloss.NewStyle().Foreground(lipgloss.Green).Render("✓")
		if !holds {
			mark = lipgloss.NewStyle().Foreground(lipgloss.Red).Render("✗")
			failed++
		}
		lipgloss.Fprintln(out, mark+" "+claim)
	}
	check(created.Request == startupCPU && created.Limit == startupCPU && created.QoS == corev1.PodQOSGuaranteed,
		fmt.Sprintf("created at its startup CPU, request == limit == %s, Guaranteed", startupCPU))
	if !t.simulated {
		check(hadContainer && first.Container == int64(startupCPU) && first.Group == int64(startupCPU),
			fmt.Sprintf("its container and its pod started with a cgroup quota of %s", startupCPU))
	}
	check(wasLowered && lowered.Started && beforeLowered.Limit == startupCPU, "lowered once the startup probe had passed, and not before")
	loweredTo := with.Request == steadyCPU && with.Limit == steadyCPU && with.Container == int64(steadyCPU) && with.Group == int64(steadyCPU)
	if t.simulated {
		check(loweredTo, fmt.Sprintf("lowered to %s in the spec, and the simulated node followed", steadyCPU))
	} else {
		check(loweredTo, fmt.Sprintf("lowered to %s in the spec, in the container's cgroup and in the pod's", steadyCPU))
		check(with.Restarts == 0 && len(ids) == 1, "not restarted: no restart counted, one and the same container")
	}
	check(with.QoS == corev1.PodQOSGuaranteed && with.Request == with.Limit, "Guaranteed afterwards")
	check(with.Steady && with.Marked, "condition and marker say that it is done")
	if !t.simulated {
		check(fastStarted && slowStarted && fast < slow, "started sooner than the same workload held at its steady CPU")
	}
	if failed > 0 {
		return fmt.Errorf("%d of the claims above did not hold; %w", failed, errClaims)
	}
	return nil
}

var errClaims = errors.New("look at the logs of pod-resizer, with KEEP=1 to keep them")

// seconds reads "2.3s".
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
