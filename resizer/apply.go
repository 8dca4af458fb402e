package resizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"pod-resizer/resizer/plan"
)

// fieldManager names our writes in managedFields and, with the account, in the audit log.
const fieldManager = "pod-resizer"

// writeTimeout bounds one write. It is shorter than the time between a lost leadership (renewDeadline) and its expiry
// (leaseDuration), so that no write of an old leader meets one of the new.
const writeTimeout = leaseDuration - renewDeadline - time.Second

// apply carries out a decision: at most one write.
func (c *Controller) apply(ctx context.Context, in plan.Input, d plan.Decision, m *memory) error {
	switch d.Action {
	case plan.Resize:
		return c.resize(ctx, in, d, m)
	case plan.Record:
		return c.record(ctx, in.Pod, d, m)
	case plan.Tell:
		if !m.told {
			m.told = true
			c.events.Event(in.Pod, corev1.EventTypeWarning, string(d.Reason), d.Message)
		}
		return nil
	default:
		return nil
	}
}

// resize sets other CPU. A refusal for good reason is told to people, and retried with back-off because its cause (a
// LimitRange, a quota) may go away.
func (c *Controller) resize(ctx context.Context, in plan.Input, d plan.Decision, m *memory) error {
	// In the order of the spec: the API server takes another order for an attempt to reorder containers, and refuses it.
	patch := podPatch{Spec: &specPatch{
		InitContainers: containers(in.Pod.Spec.InitContainers, d.Target),
		Containers:     containers(in.Pod.Spec.Containers, d.Target),
	}}
	count := func(result string) { c.metrics.resizes.WithLabelValues(string(d.Reason), result).Inc() }
	err := c.patch(ctx, in.Pod, patch, "resize", m)
	switch {
	case err == nil:
		count(resultAccepted)
		m.resized = time.Now()
		c.metrics.reaction.Observe(m.resized.Sub(m.since).Seconds())
		if d.Reason == plan.DoesNotFit { // The pod may wait on, and nothing else would say why it has other CPU now.
			c.events.Event(in.Pod, corev1.EventTypeWarning, string(d.Reason), d.Message)
		}
		if d.Warning != "" {
			c.events.Event(in.Pod, corev1.EventTypeWarning, string(plan.NotGuaranteed), d.Warning)
		}
		return nil
	case gone(err):
		return nil
	case refused(err):
		count(resultRefused)
		// Decide again, now knowing the refusal: it is recorded unless the pod says so already.
		refusal := in.Refuse(d, err.Error())
		if err := c.apply(ctx, in, refusal, m); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", errRefused, err)
	default:
		count(resultError)
		return err
	}
}

// containers is the patch of those containers that have a target.
func containers(containers []corev1.Container, target map[string]plan.MilliCPU) []containerPatch {
	var patches []containerPatch
	for _, container := range containers {
		if cpu, ok := target[container.Name]; ok {
			amount := corev1.ResourceList{corev1.ResourceCPU: *cpu.Quantity()}
			patches = append(patches, containerPatch{
				Name: container.Name, Resources: corev1.ResourceRequirements{Requests: amount, Limits: amount},
			})
		}
	}
	return patches
}

// record writes status annotation, condition and, at the end of a good start, the marker, or takes all of them away; and in any
// case the guards: one patch on pods/status, which unlike a patch on pods could never change an image.
func (c *Controller) record(ctx context.Context, pod *corev1.Pod, d plan.Decision, m *memory) error {
	condition := conditionPatch{PodCondition: d.Condition(c.keys)}
	condition.LastTransitionTime = metav1.Now()
	annotations := map[string]*string{c.keys.Status: nil, c.keys.Resized: nil}
	if d.Clear {
		condition = conditionPatch{PodCondition: corev1.PodCondition{Type: c.keys.Steady}, Directive: "delete"}
	} else {
		annotations[c.keys.Status] = new(d.Status.String())
	}
	if d.Status.Phase == plan.Steady {
		annotations[c.keys.Resized] = new("true")
	}
	maps.Copy(annotations, d.Unguard)
	patch := podPatch{Status: &statusPatch{Conditions: []conditionPatch{condition}}}
	patch.Metadata.Annotations = annotations
	if err := c.patch(ctx, pod, patch, "status", m); err != nil {
		if gone(err) {
			return nil
		}
		return err
	}
	c.metrics.outcomes.WithLabelValues(string(d.Reason)).Inc()
	if d.Status.Phase == plan.Steady && !m.resized.IsZero() {
		c.metrics.actuation.Observe(time.Since(m.resized).Seconds())
	}
	m.resized = time.Time{}
	if d.Status.StartupSeconds > 0 {
		c.metrics.startup.Observe(d.Status.StartupSeconds)
	}
	eventType := corev1.EventTypeWarning
	if d.Clear || d.Status.Phase == plan.Steady || d.Status.Phase == plan.Boosting {
		eventType = corev1.EventTypeNormal
	}
	c.events.Event(pod, eventType, string(d.Reason), d.Message)
	return nil
}

// podPatch is a strategic merge patch: it merges containers and conditions by their names and leaves all else alone.
type podPatch struct {
	Metadata struct {
		// UID is a precondition: a pod of the same name that came since (a StatefulSet's) is refused with 422.
		UID         types.UID          `json:"uid"`
		Annotations map[string]*string `json:"annotations,omitempty"` // null removes one.
	} `json:"metadata"`
	Spec   *specPatch   `json:"spec,omitempty"`
	Status *statusPatch `json:"status,omitempty"`
}

type specPatch struct {
	InitContainers []containerPatch `json:"initContainers,omitempty"`
	Containers     []containerPatch `json:"containers,omitempty"`
}

type containerPatch struct {
	Name      string                      `json:"name"`
	Resources corev1.ResourceRequirements `json:"resources"`
}

type statusPatch struct {
	Conditions []conditionPatch `json:"conditions"`
}

type conditionPatch struct {
	corev1.PodCondition
	Directive string `json:"$patch,omitempty"`
}

// patch sends one patch to a subresource of the pod and remembers the version it led to. The metadata client asks for no
// more than metadata in return, which spares encoding and decoding a whole pod.
func (c *Controller) patch(ctx context.Context, pod *corev1.Pod, patch podPatch, subresource string, m *memory) error {
	patch.Metadata.UID = pod.UID
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encoding the patch of pods/%s of %s/%s: %w", subresource, pod.Namespace, pod.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	after, err := c.writer.Namespace(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager}, subresource)
	if err != nil {
		return fmt.Errorf("patching pods/%s of %s/%s: %w", subresource, pod.Namespace, pod.Name, err)
	}
	m.written = after.ResourceVersion
	return nil
}

// refused says whether the API server has said no for good reason: admission (a LimitRange, a quota, the node's size), or
// validation.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// gone says whether the pod that a write was meant for is no more: deleted, or replaced by another of the same name.
func gone(err error) bool {
	if apierrors.IsNotFound(err) {
		return true
	}
	var status *apierrors.StatusError
	return errors.As(err, &status) && status.ErrStatus.Details != nil &&
		slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}
