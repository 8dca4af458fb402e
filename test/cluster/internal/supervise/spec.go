// Package supervise runs a whole cluster under one process. With Isolation that process is PID 1 of a PID namespace and
// has mount, network, UTS and IPC namespaces of its own: when it ends, for whatever reason, the kernel kills everything
// under it and takes its mounts, links and addresses away, and nothing needs to be undone step by step. Without, the
// components are plain processes of the user's.
package supervise

import (
	"encoding/json"
	"fmt"
	"os"
)

// The file descriptors that the launcher hands to the supervisor.
const (
	ControlFD  = 3 + iota // the launcher writes Go, later Detach; its end before Detach ends the cluster
	EventsFD              // the supervisor writes one JSON Event a line
	ListenerFD            // with Isolation: a listening socket of the host's network namespace, proxied to Isolation.Proxy
)

// Commands on ControlFD, one byte each.
const (
	Go     = 'g' // the launcher has recorded who the supervisor is: start
	Detach = 'd' // outlive the launcher
)

// Spec is everything the supervisor does; it decides nothing itself.
type Spec struct {
	Isolation  *Isolation // nil: the components are plain processes
	Components []Component
	Ending     string // File that is made before anything is ended, so that nobody takes what is left for a cluster.
	// Without Isolation, a kill -9 of the supervisor leaves the components behind. This file says which they are.
	Processes string
	// Unix socket that takes the Programs that are to run beside the components; none if empty.
	Socket string
}

// Isolation is a small machine of the cluster's own: what its namespaces are filled with.
type Isolation struct {
	Hostname   string
	Cgroup     string            // subtree to make first and to remove last
	Binds      []Bind            // folders of the state folder put in place of hard-coded ones
	Sysctls    map[string]string // files under /proc/sys that read like this and may be written without effect
	Bridge     string
	BridgeAddr string   // with prefix length
	LocalAddrs []string // further addresses that are this machine's own
	Proxy      string   // where connections to the listener go
}

// Bind shows Source, a folder, at Target. No Source means a fresh tmpfs.
type Bind struct{ Source, Target string }

// Component is one program of the cluster.
type Component struct {
	Name  string
	Path  string
	Args  []string
	Env   []string
	Log   string   // file that gets its output
	After []string // components that must be ready before this one starts
	Ready string   // tcp://ADDR or unix:///PATH that accepts, or an https:// URL that answers 200; none: ready once started
}

// Event tells the launcher how far the start has come.
type Event struct {
	Component string  `json:"component,omitempty"`
	Waited    bool    `json:"waited,omitempty"`  // it is ready, not merely started
	Seconds   float64 `json:"seconds,omitempty"` // from the component's start to its being ready
	Error     string  `json:"error,omitempty"`   // why everything is being stopped
}

// Epitaph stands in the supervisor's log before the reason why it ended.
const Epitaph = "The cluster ended:"

// ReadSpec reads the file that the launcher wrote.
func ReadSpec(path string) (Spec, error) {
	var s Spec
	b, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("reading the supervisor's spec: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("reading the supervisor's spec %s: %w", path, err)
	}
	return s, nil
}
