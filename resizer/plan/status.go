package plan

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// Phase is where a pod stands between creation and its steady CPU; see the package comment.
type Phase string

// The phases.
const (
	Startup    Phase = "Startup"    // It has its startup CPU and is still starting.
	Resizing   Phase = "Resizing"   // The API server has taken the steady CPU, the kubelet has not reported it yet.
	Steady     Phase = "Steady"     // The kubelet has actuated the steady CPU.
	Boosting   Phase = "Boosting"   // A container has restarted and has its startup CPU again.
	Deferred   Phase = "Deferred"   // The kubelet has no room for what it was asked, and will retry by itself.
	Infeasible Phase = "Infeasible" // The kubelet says that this node cannot do it.
	Refused    Phase = "Refused"    // The API server says no: a LimitRange, a quota, a policy.
	Skipped    Phase = "Skipped"    // pod-resizer leaves the CPU alone, for the reason given.
)

// Phases are all there are, in the order of a pod's life.
func Phases() []Phase {
	return []Phase{Startup, Resizing, Steady, Boosting, Deferred, Infeasible, Refused, Skipped}
}

// Reason says why a Decision was made. It is the log value, the condition's reason, the event's reason and the metric
// label all at once, so the set is closed.
type Reason string

// The reasons.
const (
	NotOptedIn        Reason = "NotOptedIn"        // The enabled annotation is not "true".
	Ended             Reason = "Ended"             // The pod is being deleted, or has succeeded or failed.
	AwaitingStart     Reason = "AwaitingStart"     // No kubelet has taken the pod yet.
	AwaitingTrigger   Reason = "AwaitingTrigger"   // At least one container to be lowered is still starting.
	AwaitingDelay     Reason = "AwaitingDelay"     // The trigger has come; delay-seconds have not passed.
	CrashLoopBackOff  Reason = "CrashLoopBackOff"  // A resize would reset the back-off (Kubernetes' kuberuntime/helpers.go).
	DoesNotFit        Reason = "DoesNotFit"        // No node has room for the startup CPU: start with the steady CPU.
	Raised            Reason = "Raised"            // Created with the steady CPU: raise it for the start.
	NoRoom            Reason = "NoRoom"            // The node has no room for the startup CPU: the start goes on with the steady CPU.
	StartupOver       Reason = "StartupOver"       // Lower the CPU now.
	DeadlinePassed    Reason = "DeadlinePassed"    // Lower the CPU now, although the trigger has not come.
	SteadyChanged     Reason = "SteadyChanged"     // The author wants another steady CPU than the pod has.
	Restarted         Reason = "Restarted"         // A container runs again: it gets its startup CPU back until it has started.
	PutBack           Reason = "PutBack"           // The node cannot resize the pod: the spec says again what it holds.
	AwaitingKubelet   Reason = "AwaitingKubelet"   // Accepted by the API server, not yet reported by the kubelet.
	AwaitingRoom      Reason = "AwaitingRoom"      // The kubelet has put the resize off and will retry by itself.
	CPULowered        Reason = "CPULowered"        // The kubelet reports the steady CPU: done.
	NothingToLower    Reason = "NothingToLower"    // Startup and steady CPU are the same, or it was created with its steady CPU: done.
	AlreadyMarked     Reason = "AlreadyMarked"     // All is done; the marker says so.
	InvalidAnnotation Reason = "InvalidAnnotation" // The author's annotations cannot be followed.
	BelowSteady       Reason = "BelowSteady"       // Somebody set less than the steady CPU before the end of the startup.
	SetByOthers       Reason = "SetByOthers"       // Somebody set other CPU than the pod was left with.
	OptedOut          Reason = "OptedOut"          // The author has changed his mind: what stands on the pod goes, the CPU stays.
	QoSWouldChange    Reason = "QoSWouldChange"    // Kubernetes refuses a resize that changes the QoS class (KEP-1287).
	NodeCannotResize  Reason = "NodeCannotResize"  // The kubelet answered Infeasible, as with a static CPU manager.
	APIRefused        Reason = "APIRefused"        // The API server answered 403 or 422.
	NotGuaranteed     Reason = "NotGuaranteed"     // A warning beside another decision; see Decision.Warning.
)

// RecordedReasons are those that end up on a pod, in its condition and its status annotation.
func RecordedReasons() []Reason {
	return []Reason{
		CPULowered, NothingToLower, NoRoom, Restarted, OptedOut, InvalidAnnotation, BelowSteady, SetByOthers, QoSWouldChange, NodeCannotResize, APIRefused,
	}
}

// ResizeReasons are those of a resize.
func ResizeReasons() []Reason {
	return []Reason{StartupOver, DeadlinePassed, SteadyChanged, Restarted, Raised, NoRoom, DoesNotFit, PutBack}
}

// Status is the value of the status annotation.
type Status struct {
	Phase  Phase  `json:"phase"`
	Reason Reason `json:"reason"`
	// StartupSeconds is the time from the start of the first container that was lowered to the trigger. Kubernetes
	// keeps container starts in whole seconds, so it may be up to a second too long. It is absent when the leader
	// changed between trigger and actuation.
	StartupSeconds float64 `json:"startupSeconds,omitempty"`
	// ReleasedMilliCPU is what the pod gave back. It is absent when admission did not see the pod.
	ReleasedMilliCPU MilliCPU `json:"releasedMilliCPU,omitempty"`
	// Containers are those that have been lowered, or that a node could not lower, by name.
	Containers map[string]Left `json:"containers,omitempty"`
}

// Left is what a container was left with. Whatever differs later has happened since.
type Left struct {
	MilliCPU MilliCPU `json:"milliCPU"`
	Restarts int32    `json:"restarts,omitempty"` // As its restartCount said.
}

// String is the annotation's value.
func (s Status) String() string { return mustJSON(s) }

// StatusOf reads the status annotation back; the zero Status if there is none or it is not ours.
func (k Keys) StatusOf(pod *corev1.Pod) Status {
	var s Status
	if json.Unmarshal([]byte(pod.Annotations[k.Status]), &s) != nil {
		return Status{}
	}
	return s
}
