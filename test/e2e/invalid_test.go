package e2e

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
)

// quiet is how long a pod that is none of the resizer's business is watched for writes: long enough for many rounds of a
// retry loop, which begins at a tenth of a second.
const quiet = 5 * time.Second

// TestInvalidInput: the pod is admitted untouched and runs, its author is told at once and in the pod's events, operators see
// a count, and that is all.
func TestInvalidInput(t *testing.T) {
	cases := []struct {
		name        string
		annotations map[string]string
		says        []string // Parts of the one warning: annotation, what stands there, remedy.
	}{
		{"bad JSON", map[string]string{shared.keys.SteadyResources: `{"app":`},
			[]string{shared.keys.SteadyResources, `'{"app":'`, "is not the expected JSON", `write {"app":{"requests":{"cpu":"50m"}`}},
		{"unknown trigger", map[string]string{shared.keys.Trigger: "Started"},
			[]string{shared.keys.Trigger, `"Started"`, "write one of StartupProbePassed, Ready, Delay"}},
		{"unknown container", map[string]string{shared.keys.SteadyResources: `{"web":{"limits":{"cpu":"50m"}}}`},
			[]string{shared.keys.SteadyResources, `container "web"`, "name one of app"}},
		{"negative delay", map[string]string{shared.keys.DelaySeconds: "-1"},
			[]string{shared.keys.DelaySeconds, `"-1"`, "write seconds"}},
	}
	l := shared
	reviews, outcomes := `pod_resizer_admission_reviews_total{outcome="invalid",webhook="mutate"}`, `pod_resizer_outcomes_total{reason="InvalidAnnotation"}`
	reviewsBefore, outcomesBefore := l.metric(t, reviews), l.metric(t, outcomes)
	t.Run("cases", func(t *testing.T) { // Ends when its parallel cases have.
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				client, warned := l.withWarnings(t)
				wanted := l.samplePod(c.annotations)
				pod, err := client.CoreV1().Pods(l.namespace(t)).Create(t.Context(), wanted, metav1.CreateOptions{})
				if err != nil {
					t.Fatalf("denied: %v", err)
				}
				if !reflect.DeepEqual(pod.Annotations, wanted.Annotations) || !reflect.DeepEqual(pod.Labels, wanted.Labels) ||
					!reflect.DeepEqual(pod.Spec.Containers[0].ResizePolicy, wanted.Spec.Containers[0].ResizePolicy) ||
					!sameResources(pod, wanted) {
					t.Errorf("changed: %s", mustJSON(t, pod))
				}
				if len(warned.all) != 1 || !containsAll(warned.all[0], c.says) {
					t.Errorf("warnings %q, wanted one with %q", warned.all, c.says)
				}
				eventually(t, "event and condition", func(ctx context.Context) (bool, string) {
					now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
					if err != nil {
						return false, err.Error()
					}
					condition, events := conditionOf(now, l.keys.Steady), l.events(ctx, t, pod)
					return condition.Status == corev1.ConditionFalse && condition.Reason == string(plan.InvalidAnnotation) &&
							containsAll(condition.Message, c.says) && l.keys.StatusOf(now).Phase == plan.Skipped &&
							len(events) == 1 && strings.HasPrefix(events[0], "Warning InvalidAnnotation ") && containsAll(events[0], c.says),
						mustJSON(t, now) + strings.Join(events, "\n")
				})
				eventually(t, "the pod starts all the same", func(ctx context.Context) (bool, string) {
					now, err := l.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
					if err != nil {
						return false, err.Error()
					}
					return conditionOf(now, corev1.PodReady).Status == corev1.ConditionTrue && sameResources(now, wanted), mustJSON(t, now)
				})
				time.Sleep(quiet)
				if writes, want := l.writes(t, pod.Namespace, pod.Name), []string{"patch pods/status 200"}; !slices.Equal(writes, want) {
					t.Errorf("the product wrote %q, not %q", writes, want)
				}
				if events := l.events(t.Context(), t, pod); len(events) != 1 {
					t.Errorf("events %q", events)
				}
			})
		}
	})
	n := float64(len(cases))
	if got := l.metric(t, reviews) - reviewsBefore; got != n {
		t.Errorf("%s rose by %v, not %v", reviews, got, n)
	}
	if got := l.metric(t, outcomes) - outcomesBefore; got != n {
		t.Errorf("%s rose by %v, not %v", outcomes, got, n)
	}
}

// TestThousandsOfProblems: a pod that anyone may create, with thousands of containers and of wrong names. The answer is short
// and in time, the pod is told about once, and nobody runs out of memory (TestMain looks for replicas that were killed).
func TestThousandsOfProblems(t *testing.T) {
	t.Parallel()
	l := shared
	client, warned := l.withWarnings(t)
	pod := l.samplePod(nil)
	pod.Spec.SchedulerName = "nobody" // Nothing has to run it.
	pod.Spec.Containers = nil
	for i := range 2500 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%04d", i), Image: "a"})
	}
	var names []string
	for i := range 3500 {
		names = append(names, fmt.Sprintf(`"%d":{}`, i))
	}
	pod.Annotations[l.keys.SteadyResources] = "{" + strings.Join(names, ",") + "}"
	created, err := client.CoreV1().Pods(l.namespace(t)).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(warned.all); n == 0 || n > 11 || strings.Contains(strings.Join(warned.all, ""), "failed calling webhook") {
		t.Errorf("%d warnings: %.2000q", n, warned.all)
	}
	l.awaitCondition(t, created, plan.InvalidAnnotation, l.keys.SteadyResources)
	// On a busy machine an API server may need more than one attempt for such a pod.
	writes := slices.DeleteFunc(l.writes(t, created.Namespace, created.Name), func(w string) bool { return w == "patch pods/status 504" })
	if want := []string{"patch pods/status 200"}; !slices.Equal(writes, want) {
		t.Errorf("the product wrote %q, not %q", writes, want)
	}
}

// TestNotOptedIn: without exactly "true", nothing is touched; a value that was most likely meant as one gets a warning.
func TestNotOptedIn(t *testing.T) {
	for _, c := range []struct {
		name, enabled string
		others        bool   // Of pod-resizer's annotations.
		says          string // What there is to warn of.
	}{
		{"no annotation", "", false, ""},
		{"false", "false", true, ""},
		{"yes", "yes", true, shared.keys.Enabled + `: "yes": is not a boolean`},
		{"others without it", "", true, shared.keys.SteadyResources + ": has no effect, because the pod is not opted in; add " + shared.keys.Enabled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := shared
			client, warned := l.withWarnings(t)
			wanted := l.samplePod(map[string]string{l.keys.Enabled: c.enabled})
			if c.enabled == "" {
				delete(wanted.Annotations, l.keys.Enabled)
			}
			if !c.others {
				wanted.Annotations = nil
			}
			said := 0
			if c.says != "" {
				said = 1
			}
			pod, err := client.CoreV1().Pods(l.namespace(t)).Create(t.Context(), wanted, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(pod.Annotations, wanted.Annotations) || !sameResources(pod, wanted) {
				t.Errorf("changed: %s", mustJSON(t, pod))
			}
			if len(warned.all) != said || said > 0 && !strings.HasPrefix(warned.all[0], c.says) {
				t.Errorf("warnings %q", warned.all)
			}
			time.Sleep(quiet)
			if writes := l.writes(t, pod.Namespace, pod.Name); len(writes) != 0 {
				t.Errorf("the product wrote %q", writes)
			}
			// For whoever reads the events of a Deployment's pod, and saw no warning.
			if events := l.events(t.Context(), t, pod); len(events) != said || said > 0 && !strings.HasPrefix(events[0], "Warning InvalidAnnotation "+c.says) {
				t.Errorf("events %q", events)
			}
		})
	}
}

// sameResources compares quantities by value, as the API server may spell them differently.
func sameResources(a, b *corev1.Pod) bool {
	for i := range a.Spec.Containers {
		x, y := a.Spec.Containers[i].Resources, b.Spec.Containers[i].Resources
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := x.Requests[name], x.Limits[name]
			if request.Cmp(y.Requests[name]) != 0 || limit.Cmp(y.Limits[name]) != 0 {
				return false
			}
		}
	}
	return true
}

func containsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}
