package resizer

import (
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"pod-resizer/resizer/plan"
)

// trim is the informer's transform. A large cluster has far more pods than opted-in ones (devworkspace-operator #888 died
// of keeping them all), so the others shrink to the little that tells a later opt-in apart from an unchanged pod.
func (c *Controller) trim(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok { // A tombstone of the informer's own; it holds what was trimmed before.
		return obj, nil
	}
	if c.keys.Concerns(pod) {
		pod.ManagedFields = nil
		return pod, nil
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}, nil
}

// memory is what this leader remembers of a pod. All of it may be lost: a new leader starts without and does the same.
type memory struct {
	triggeredAt time.Time // See plan.Input.TriggeredAt.
	told        bool      // What a decision to Tell says; a new leader says it again.
	written     string    // The resourceVersion that our own last write returned.
	since       time.Time // When what is decided on was there to be seen.
	resized     time.Time // When the API server accepted the last resize; zero once something was recorded.

	dueAt atomic.Int64 // When what has not been looked at yet arrived, in Unix nanoseconds; zero if all has been.
}

// due notes when there was something to look at.
func (m *memory) due(at time.Time) { m.dueAt.CompareAndSwap(0, at.UnixNano()) }

// remember returns the memory of a pod, which only the worker that holds the pod's key may change.
func (c *Controller) remember(uid types.UID) *memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.memories[uid]
	if !ok {
		m = &memory{}
		c.memories[uid] = m
	}
	return m
}

func (c *Controller) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.memories, uid)
	c.metrics.ledger.remove(uid)
}

// stale says whether the informer has not seen our own last write yet. Deciding on such a pod would repeat the write; the
// event that the write caused is on its way. Resource versions are comparable since KEP-5504.
func (m *memory) stale(pod *corev1.Pod) (bool, error) {
	if m.written == "" {
		return false, nil
	}
	order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, m.written)
	if err != nil {
		return false, fmt.Errorf("comparing resource versions of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return order < 0, nil
}

// observe gathers what a decision is made on.
func (c *Controller) observe(pod *corev1.Pod, m *memory) plan.Input {
	now := time.Now()
	m.since = now
	if due := m.dueAt.Swap(0); due > 0 {
		m.since = time.Unix(0, due)
	}
	return plan.Input{Keys: c.keys, Pod: pod, Now: now, TriggeredAt: m.triggeredAt}
}
