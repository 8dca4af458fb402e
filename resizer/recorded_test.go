package resizer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/resizer/plan"
)

// The files under testdata/recorded are what real API servers and kubelets of several versions said; `make record` made them.
// Here they say it again: to versions of pod-resizer that were not there.

func recordings(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "recorded", "*", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	return files
}

// moment is one version of a pod, and when a watcher saw it.
type moment struct {
	Seen time.Time   `json:"seen"`
	Pod  *corev1.Pod `json:"pod"`
}

func readLife(t *testing.T, file string) []moment {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var life []moment
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m moment
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		life = append(life, m)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return life
}

// TestRecordedLives: of a recorded pod, one resize is decided, at the first moment at which the startup was over, and one
// record, at the first moment at which the kubelet had done it; nothing before, between and after.
func TestRecordedLives(t *testing.T) {
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range recordings(t, "*.jsonl") {
		t.Run(strings.TrimPrefix(file, "testdata/recorded/"), func(t *testing.T) {
			var lowered, marked bool // Decided.
			var triggeredAt time.Time
			life := readLife(t, file)
			for i, m := range life {
				pod := m.Pod
				isMarked := pod.Annotations[keys.Resized] == "true"
				if lowered && pod.Generation == 1 || marked && !isMarked {
					continue // Our own write is on its way; see memory.stale.
				}
				d := plan.Decide(plan.Input{Keys: keys, Pod: pod, Now: m.Seen, TriggeredAt: triggeredAt})
				triggeredAt = d.TriggeredAt
				want := plan.Wait
				switch {
				case isMarked:
				case pod.Generation > 1 && carriedOut(pod):
					want = plan.Record
				case pod.Generation == 1 && allStarted(pod, d.Target):
					want = plan.Resize
				}
				if d.Action != want {
					t.Fatalf("moment %d of %d: decided %s (%s: %s), want %s", i, len(life), d.Action, d.Reason, d.Message, want)
				}
				lowered = lowered || d.Action == plan.Resize
				marked = marked || d.Action == plan.Record
				if d.Action == plan.Record && (d.Reason != plan.CPULowered || d.Status.Phase != plan.Steady) {
					t.Errorf("moment %d: recorded %s, %s", i, d.Reason, d.Status)
				}
			}
			if last := life[len(life)-1].Pod; !lowered || !marked || last.Annotations[keys.Resized] != "true" {
				t.Errorf("decided to lower: %t, to record: %t; at the end the pod has %v", lowered, marked, last.Annotations)
			}
		})
	}
}

// allStarted says whether the containers that are to be lowered have started. Without a target there was nothing decided, and
// the two that ever are lowered in these recordings count.
func allStarted(pod *corev1.Pod, target map[string]plan.MilliCPU) bool {
	started := map[string]bool{}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		started[s.Name] = s.Started != nil && *s.Started
		if s.Name == "proxy" { // It has no startup probe, so it counts when it is ready.
			started[s.Name] = s.Ready
		}
	}
	if len(target) == 0 {
		target = map[string]plan.MilliCPU{"app": 0}
		if len(pod.Spec.InitContainers) > 0 {
			target["proxy"] = 0
		}
	}
	for name := range target {
		if !started[name] {
			return false
		}
	}
	return true
}

// carriedOut says whether the kubelet reports the CPU that the spec asks for, as people would read it in the status.
func carriedOut(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			return false
		}
	}
	if seen := pod.Status.ObservedGeneration; seen != 0 && seen < pod.Generation { // 0: Kubernetes 1.33.
		return false
	}
	wanted := map[string]corev1.ResourceList{}
	for _, c := range plan.Containers(&pod.Spec) {
		wanted[c.Name] = c.Resources.Requests
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		want, allocated := wanted[s.Name][corev1.ResourceCPU], s.AllocatedResources[corev1.ResourceCPU]
		if s.State.Running != nil && allocated.Cmp(want) != 0 {
			return false
		}
	}
	return true
}

// TestRecordedAnswers: whatever the version says, pod-resizer takes a pod that is gone for gone, and a refusal for one.
func TestRecordedAnswers(t *testing.T) {
	const ok, isGone, isRefused = "ok", "gone", "refused"
	want := map[string][]string{
		"another pod of that name, resize": {isGone},
		"another pod of that name, status": {isGone},
		"no pod of that name":              {isGone},
		"no container of that name":        {isRefused},
		"another QoS class":                {isRefused},
		"a finished init container":        {isRefused, ok}, // Since 1.36 it may be lowered.
		"below the LimitRange":             {isRefused},
	}
	for _, file := range recordings(t, "answers.json") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var answers []struct {
			Name   string        `json:"name"`
			Status metav1.Status `json:"status"`
		}
		if err := json.Unmarshal(text, &answers); err != nil {
			t.Fatal(err)
		}
		if len(answers) != len(want) {
			t.Errorf("%s: %d answers, want %d", file, len(answers), len(want))
		}
		for _, a := range answers {
			got := ok
			if a.Status.Status != metav1.StatusSuccess {
				err := error(&apierrors.StatusError{ErrStatus: a.Status})
				switch {
				case gone(err):
					got = isGone
				case refused(err):
					got = isRefused
				default:
					got = err.Error()
				}
			}
			if !slices.Contains(want[a.Name], got) {
				t.Errorf("%s: %s: %s, want %s", file, a.Name, got, want[a.Name])
			}
		}
	}
}
