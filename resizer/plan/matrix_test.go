package plan

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMatrix: whatever is seen of a pod in whatever phase has one answer. The answers are written by hand, from the state diagram in
// the package comment; "." is the answer to nothing new.
func TestMatrix(t *testing.T) {
	phases := []struct {
		phase Phase
		pod   change
	}{
		{Startup, func(*corev1.Pod) {}},
		{Resizing, resized},
		{Steady, settled},
		{Boosting, boosted},
		{Deferred, func(p *corev1.Pod) { resized(p); observed(2)(p); pending(corev1.PodReasonDeferred, "no room", 2)(p) }},
		{Infeasible, func(p *corev1.Pod) { // And put back.
			started("app")(p)
			generation(3)(p)
			observed(3)(p)
			left(Infeasible, NodeCannotResize, map[string]Left{"app": {50, 0}})(p)
		}},
		{Refused, func(p *corev1.Pod) { started("app")(p); left(Refused, APIRefused, nil)(p) }},
		{Skipped, func(p *corev1.Pod) { // Somebody has set 100m.
			actuated(p)
			cpu("app", "100m")(p)
			left(Skipped, SetByOthers, map[string]Left{"app": {50, 0}})(p)
			p.Status.Conditions[0].Message = `container "app" has 100m, and was left with 50m: something else set it`
		}},
	}
	noConditions := func(p *corev1.Pod) {
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
		})
	}
	kubeletSays := func(reason string) change {
		return func(p *corev1.Pod) { noConditions(p); pending(reason, "no", p.Generation)(p) }
	}
	for _, row := range []struct {
		seen    string
		change  change
		answers string // In the order of the phases.
	}{
		{"nothing new", func(*corev1.Pod) {}, "AwaitingTrigger AwaitingKubelet AlreadyMarked AwaitingTrigger AwaitingRoom NodeCannotResize Resize:StartupOver SetByOthers"},
		{"the startup probe passes", started("app"), "Resize:StartupOver . . Resize:StartupOver . . . ."},
		{"the deadline passes", annotate("deadline-seconds", "1"), "Resize:DeadlinePassed . . Resize:DeadlinePassed . . . ."},
		{"the container crashes", terminated("app"), ". . . . . . AwaitingTrigger ."},
		{"the container crashes in a loop", waiting("app", "CrashLoopBackOff"), "CrashLoopBackOff . . CrashLoopBackOff . . CrashLoopBackOff ."},
		{"the container runs again", func(p *corev1.Pod) {
			status("app", func(s *corev1.ContainerStatus) { s.RestartCount, s.Started = 2, new(bool) })(p)
		}, ". . Resize:Restarted . . . AwaitingTrigger ."},
		{"the kubelet does what the spec says", func(p *corev1.Pod) {
			noConditions(p)
			c, _ := find(p, "app")
			allocated("app", c.Resources.Requests.Cpu().String())(p)
			observed(p.Generation)(p)
		}, ". Record:CPULowered . . Record:CPULowered . . ."},
		{"the kubelet puts it off", kubeletSays(corev1.PodReasonDeferred), ". AwaitingRoom . AwaitingRoom . . . ."},
		{"the kubelet can never do it", kubeletSays(corev1.PodReasonInfeasible), ". Record:NodeCannotResize . Resize:NoRoom Record:NodeCannotResize . . ."},
		{"somebody sets other CPU", func(p *corev1.Pod) { cpu("app", "100m")(p); p.Generation++ }, ". Resize:StartupOver Record:SetByOthers Record:SetByOthers Resize:StartupOver . . ."},
		{"the author wants another steady CPU", annotate("steady-cpu", "60m"), ". Resize:SteadyChanged Resize:SteadyChanged . Resize:SteadyChanged Resize:StartupOver . ."},
		{"the author opts out", annotate("enabled", "false"), "NotOptedIn NotOptedIn Record:OptedOut Record:OptedOut NotOptedIn Record:OptedOut Record:OptedOut Record:OptedOut"},
		{"the annotations are broken", annotate("trigger", "Soon"), strings.Repeat("Record:InvalidAnnotation ", 8)},
		{"the pod is deleted", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }, strings.Repeat("Ended ", 8)},
	} {
		answers := strings.Fields(row.answers)
		for i, p := range phases {
			t.Run(string(p.phase)+": "+row.seen, func(t *testing.T) {
				in := Input{Keys: testKeys(t), Pod: testPod(p.pod), Now: noon}
				before := Decide(in)
				if before.Phase != p.phase && p.phase != Refused { // That is tried again, so it stands where it stood.
					t.Fatalf("the pod is in phase %s", before.Phase)
				}
				row.change(in.Pod)
				answer := func(d Decision) string {
					if d.Action == Wait {
						return string(d.Reason)
					}
					return string(d.Action) + ":" + string(d.Reason)
				}
				want := answers[i]
				if want == "." {
					want = answer(before)
				}
				if got := answer(Decide(in)); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			})
		}
	}
}
