package resizer

import (
	"context"
	"log/slog"
	"time"

	"pod-resizer/resizer/plan"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// reconcile brings one pod one step further: observe, decide, apply. It returns when to look again without an event (zero:
// an event will come); an error makes the queue retry with back-off.
func (c *Controller) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !c.keys.Concerns(pod) { // Opted out since it was queued.
		return 0, nil
	}
	m := c.remember(pod.UID)
	// It may have been deleted, and forgotten, before it was remembered just now.
	defer func() {
		if now, err := c.pods.Pods(key.Namespace).Get(key.Name); err != nil || now.UID != pod.UID {
			c.forget(pod.UID)
		}
	}()
	if stale, err := m.stale(pod); stale || err != nil {
		return 0, err
	}
	in := c.observe(pod, m)
	d := plan.Decide(in)
	m.triggeredAt = d.TriggeredAt
	c.metrics.ledger.set(pod.UID, d)
	level := slog.LevelInfo
	if d.Action == plan.Wait {
		level = slog.LevelDebug
	}
	c.log.Log(ctx, level, "decided", "pod", key.String(), "uid", pod.UID, "action", d.Action, "phase", d.Phase, "reason", d.Reason,
		"message", d.Message, "requeue_after", d.RequeueAfter.String())
	return d.RequeueAfter, c.apply(ctx, in, d, m)
}
