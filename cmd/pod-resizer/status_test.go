package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
)

// TestStatus: a table, and JSON that says the same.
func TestStatus(t *testing.T) {
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := func(name, cpu string, change func(*corev1.Pod)) corev1.Pod {
		amounts := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Mi")}
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{
				keys.Enabled: "true", keys.SteadyCPU: "50m", keys.Resolved: plan.Resolved{"app": {Startup: 2000, Steady: 50}}.String(),
			}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Requests: amounts, Limits: amounts}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSGuaranteed, StartTime: &metav1.Time{Time: now},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "app", AllocatedResources: amounts}}},
		}
		change(&p)
		return p
	}
	report := newStatusReport(keys, []corev1.Pod{
		pod("starting", "2", func(*corev1.Pod) {}),
		pod("steady", "50m", func(p *corev1.Pod) {
			s := plan.Status{Phase: plan.Steady, Reason: plan.CPULowered, StartupSeconds: 2.5, Containers: map[string]plan.Left{"app": {MilliCPU: 50}}}
			p.Annotations[keys.Status], p.Annotations[keys.Resized] = s.String(), "true"
			p.Status.Conditions = []corev1.PodCondition{{Type: keys.Steady, Status: corev1.ConditionTrue, Reason: "CPULowered", Message: "CPU lowered"}}
		}),
		pod("wrong", "2", func(p *corev1.Pod) { p.Annotations[keys.Trigger] = "Soon" }),
		pod("ended", "2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("other", "2", func(p *corev1.Pod) { p.Annotations = nil }),
	}, now)
	var table strings.Builder
	report.table(&table)
	const want = `NAMESPACE  POD       PHASE    REASON             RESERVED  RELEASED  STARTUP
shop       starting  Startup  AwaitingTrigger    1950m     0         -
shop       steady    Steady   CPULowered         0         1950m     2.5s
shop       wrong     Skipped  InvalidAnnotation  0         0         -

1 Startup, 1 Steady, 1 Skipped. Reserved for startup: 1950m. Released: 1950m.
`
	if got := table.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil || !strings.Contains(string(readme), "```\n"+want+"```\n") {
		t.Errorf("the README shows another table; %v", err)
	}
	encoded, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"pods":[{"namespace":"shop","name":"starting","phase":"Startup","reason":"AwaitingTrigger","reservedMilliCPU":1950,"releasedMilliCPU":0},`; !strings.HasPrefix(string(encoded), want) {
		t.Errorf("got %s", encoded)
	}
}
