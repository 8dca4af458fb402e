// Package cluster builds and runs a Kubernetes cluster from Go modules alone, with no distribution package, registry or
// docker: API server, controller manager, scheduler and etcd; a real node with kubelet, containerd and runc; simulated
// nodes that KWOK plays; or both.
//
// With a real node, all of it lives under one supervisor process, PID 1 of namespaces of its own. The host sees that
// process tree, a cgroup subtree, one folder and one port on loopback; with the supervisor gone, the kernel takes the rest
// away. With simulated nodes alone it is a handful of plain processes on loopback ports, and needs neither root nor Linux.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DirVariable names the environment variable that leads a command to a running cluster's folder.
const DirVariable = "POD_RESIZER_CLUSTER_DIR"

var (
	// ErrUp says that the cluster is up already.
	ErrUp = errors.New("the cluster is up already")
	// ErrNotUp says that there is no running cluster.
	ErrNotUp = errors.New("the cluster is not up")
)

// Options say which cluster is meant. The zero value is the default one.
type Options struct {
	Name       string    // default "default"; two clusters may run side by side under two names
	Dir        string    // folder of its state; default $POD_RESIZER_CLUSTER_DIR, else one in the user's cache folder
	Kubernetes string    // default DefaultKubernetes
	Node       Node      // default Real where that is possible, else Simulated
	Out        io.Writer // progress for a person; default none
}

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" && o.Name == "" { // A name that was asked for goes before the environment.
		o.Dir = os.Getenv(DirVariable)
	}
	if o.Name == "" {
		o.Name = "default"
	}
	// The name becomes part of a cgroup's path.
	if !regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`).MatchString(o.Name) {
		return o, fmt.Errorf("cluster name %q: use up to 32 small letters, digits and dashes", o.Name)
	}
	if o.Kubernetes == "" {
		o.Kubernetes = DefaultKubernetes
	}
	if o.Node == "" {
		o.Node, _ = ChooseNode()
	}
	if !slices.Contains([]Node{Real, Simulated, Both}, o.Node) {
		return o, fmt.Errorf("node %q: use %s, %s or %s", o.Node, Real, Simulated, Both)
	}
	if o.Dir == "" {
		cache, err := cacheDir()
		if err != nil {
			return o, err
		}
		o.Dir = filepath.Join(cache, "cluster", o.Name)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("finding the cluster's folder: %w", err)
	}
	o.Dir = dir
	return o, nil
}

// Cluster is a running cluster.
type Cluster struct {
	dir   string
	state state

	mu      sync.Mutex
	control *os.File // held by the process that started the cluster, which dies with it unless Detach was called
}

// Open finds the running cluster that Up, in this or another process, has started.
func Open(o Options) (*Cluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s, err := readState(o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if !s.Ready || !s.Supervisor.Alive() {
		return nil, fmt.Errorf("%w (looked in %s): start it with `make cluster-up`", ErrNotUp, o.Dir)
	}
	return &Cluster{dir: o.Dir, state: s}, nil
}

// Detach lets the cluster outlive the process that called Up; until then it ends with that process, even on kill -9.
func (c *Cluster) Detach() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control == nil {
		return nil
	}
	defer func() { c.control = nil }()
	if err := detach(c.control); err != nil {
		return fmt.Errorf("detaching the cluster: %w", err)
	}
	c.state.Detached = true
	return c.state.write(c.dir)
}

// Detached says whether the cluster outlives the process that started it.
func (c *Cluster) Detached() bool { return c.state.Detached }

// Down ends the cluster and removes every trace of it.
func (c *Cluster) Down(ctx context.Context) error {
	err := Down(ctx, Options{Name: c.state.Name, Dir: c.dir})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control != nil {
		c.control.Close()
		c.control = nil
	}
	return err
}

// Dir is the folder that holds everything the cluster keeps.
func (c *Cluster) Dir() string { return c.dir }

// Kubernetes is the version that runs.
func (c *Cluster) Kubernetes() string { return c.state.Kubernetes }

// Node says what runs its pods.
func (c *Cluster) Node() Node { return c.state.Node }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, kubeconfigFile) }

// AuditLog is the path of the API server's audit log: one JSON event a line for every write, reads left out.
func (c *Cluster) AuditLog() string { return filepath.Join(c.dir, auditFile) }

// Logs is the folder of the components' logs.
func (c *Cluster) Logs() string { return filepath.Join(c.dir, logsDir) }

// RESTConfig is the administrator's, without client-go's rate limit.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's kubeconfig: %w", err)
	}
	config.QPS = -1
	// With thousands of pods, JSON is what costs both ends most. (Dynamic clients use it all the same.)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config, nil
}

// Client is the administrator's client.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the Kubernetes client: %w", err)
	}
	return client, nil
}

// Status is what a person wants to know about a cluster.
type Status struct {
	Name       string    `json:"name"`
	Up         bool      `json:"up"`
	Reason     string    `json:"reason,omitempty"` // why it is not up or not healthy
	Dir        string    `json:"dir"`
	Kubernetes string    `json:"kubernetes,omitempty"`
	Node       Node      `json:"node,omitempty"`
	Server     string    `json:"server,omitempty"`
	Kubeconfig string    `json:"kubeconfig,omitempty"`
	Nodes      int       `json:"nodes"`
	NodesReady bool      `json:"nodesReady"` // all of them
	Pods       int       `json:"pods"`
	PID        int       `json:"pid,omitempty"` // of the supervisor
	Started    time.Time `json:"started,omitzero"`
}

// ReadStatus looks at a cluster, up or not.
func ReadStatus(ctx context.Context, o Options) (Status, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Status{}, err
	}
	status := Status{Name: o.Name, Dir: o.Dir}
	c, err := Open(o)
	if err != nil {
		status.Reason = err.Error()
		if words := lastWords(o.Dir); words != "" {
			status.Reason += "\nlast run: " + words
		}
		return status, nil
	}
	status = Status{
		Name: c.state.Name, Up: true, Dir: c.dir, Kubernetes: c.state.Kubernetes, Node: c.state.Node, Server: c.state.Server,
		Kubeconfig: c.Kubeconfig(), PID: c.state.Supervisor.PID, Started: c.state.Started,
	}
	if err := c.ask(ctx, &status); err != nil {
		status.Reason = err.Error() // an answer too, to the question how the cluster is
	}
	return status, nil
}

// ask fills in what the API server knows.
func (c *Cluster) ask(ctx context.Context, status *Status) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	status.Nodes = c.state.Node.count()
	if err := nodesReady(ctx, client, status.Nodes); err != nil {
		return err
	}
	status.NodesReady = true
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	status.Pods = len(pods.Items)
	return nil
}
