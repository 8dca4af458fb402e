package resizer

import (
	"fmt"
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
}

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
	return plan.Input{Keys: c.keys, Pod: pod, Now: time.Now(), TriggeredAt: m.triggeredAt}
}
