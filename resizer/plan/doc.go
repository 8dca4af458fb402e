// Package plan is the pure core that admission and the resizer share: the vocabulary (Keys), what an author may ask for
// (Spec), what it comes to in numbers (Resolved), the QoS class Kubernetes gives (QoS), and what to do next with a pod
// (Decide). It knows no client, no clock, no log: whoever calls it brings the pod and the time and carries the answer
// out.
//
// A pod goes through
//
//	          trigger, or deadline        kubelet reports it
//	Startup ───────────────────▶ Resizing ──────────────────▶ Steady ◀──────────┐
//	 │  │                         │  │  ▲                        │              │
//	 │  │ bad annotation,         │  │  │ the cause is gone      │ a container  │ it has started,
//	 │  │ QoS would change        │  │  │                        │ restarts     │ or there is no room
//	 │  └─▶ Skipped               │  └─▶ Refused (API server)    ▼              │
//	 │                            ├────▶ Deferred (kubelet)   Boosting ─────────┘
//	 │ no room for the boost      └────▶ Infeasible (kubelet; the spec is put back)
//	 └──────────────────────────▶ Resizing
//
// and from Steady to Skipped when something else sets its CPU.
//
// None of this is kept anywhere but on the pod: Decide derives it from spec, status and annotations each time.
package plan
