// Package plan is the pure core that admission and the resizer share: the vocabulary (Keys), what an author may ask for
// (Spec), what it comes to in numbers (Resolved), the QoS class Kubernetes gives (QoS), and what to do next with a pod
// (Decide). It knows no client, no clock, no log: whoever calls it brings the pod and the time and carries the answer
// out.
//
// A pod goes through
//
//	          trigger                kubelet reports it
//	Startup ───────────▶ Resizing ─────────────────────▶ Steady
//	   │                    │ ▲
//	   │ bad annotation,    │ │ the cause is gone
//	   │ QoS would change   ▼ │
//	   └──────▶ Skipped   Refused (API server), Infeasible (kubelet)
//
// None of this is kept anywhere but on the pod: Decide derives it from spec, status and annotations each time.
package plan
