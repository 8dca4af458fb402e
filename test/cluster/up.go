package cluster

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/test/cluster/internal/cgroup"
	"pod-resizer/test/cluster/internal/process"
	"pod-resizer/test/cluster/internal/supervise"
)

const (
	// nodeTimeout bounds the wait from the kubelet's start to a Ready node, 3 s on two free cores.
	nodeTimeout = 90 * time.Second
	// cleanupTimeout bounds what follows Ctrl-C or a failure: kill, rmdir, remove files; a second as a rule.
	cleanupTimeout = 30 * time.Second
	// startEstimate is what `up` takes on two cores once everything is built.
	startEstimate = 8 * time.Second
)

// Up builds what is missing and starts the cluster; it returns when the node is Ready and pods can be created. The
// cluster ends with this process, unless Detach is called. What an earlier run left behind in the folder is cleaned
// first. When Up fails, it leaves nothing behind but the logs, in the folder; when ctx ends, nothing.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := Supported(); err != nil && o.Node.real() {
		return nil, fmt.Errorf("%w; or choose simulated nodes, NODE=%s", err, Simulated)
	}
	if err := claim(o.Dir); err != nil {
		return nil, err
	}
	unlock, err := lock(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c, err := Open(o); err == nil {
		return c, fmt.Errorf("%w in %s", ErrUp, o.Dir)
	}
	progress := NewProgress(o.Out)
	binaries, err := build(ctx, o.Kubernetes, progress, o.Node.uses()...)
	if err != nil {
		return nil, err
	}
	if err := cleanUp(ctx, o); err != nil {
		return nil, fmt.Errorf("cleaning up after an earlier run: %w", err)
	}
	done := progress.Step("starting Kubernetes "+o.Kubernetes, startEstimate)
	c, err := start(ctx, o, binaries, progress)
	done(err)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, errors.Join(errors.New("interrupted; the cluster is gone"), within(ctx, cleanupTimeout, func(ctx context.Context) error {
			if err := cleanUp(ctx, o); err != nil {
				return err
			}
			return removeFolder(o.Dir)
		}))
	}
	return nil, errors.Join(err, within(ctx, cleanupTimeout, func(ctx context.Context) error { return cleanUp(ctx, o, logsDir) }))
}

func start(ctx context.Context, o Options, binaries binaries, progress *Progress) (*Cluster, error) {
	began := time.Now()
	// The state file comes first: it marks the folder as ours.
	c := &Cluster{dir: o.Dir, state: state{Name: o.Name, Kubernetes: o.Kubernetes, Node: o.Node, Started: began.UTC(), Ctr: binaries["ctr"]}}
	if err := c.state.write(o.Dir); err != nil {
		return nil, err
	}
	ports, err := choosePorts(ctx, o.Node)
	if err != nil {
		return nil, err
	}
	address := local(ports.apiServer)
	var listening *os.File
	if o.Node.real() {
		// Made here, in the host's network namespace, and handed on.
		if listening, address, err = listen(ctx); err != nil {
			return nil, err
		}
		defer listening.Close()
	}
	c.state.Server = "https://" + address
	config := config{dir: o.Dir, name: o.Name, node: o.Node, ports: ports, server: c.state.Server, binaries: binaries}
	if err := config.write(); err != nil {
		return nil, err
	}
	spec, err := json.MarshalIndent(config.spec(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the supervisor's spec: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.Dir, specFile), spec, 0o600); err != nil {
		return nil, fmt.Errorf("writing the supervisor's spec: %w", err)
	}
	events, err := c.startSupervisor(listening, binaries["supervisor"])
	if err != nil {
		return nil, err
	}
	up := false
	defer func() {
		if !up {
			c.control.Close() // the supervisor ends the rest
		}
	}()
	if err := c.follow(ctx, events, config.spec().Components, binaries["pause"], progress); err != nil {
		return nil, err
	}
	nodesBegan := time.Now()
	if err := c.awaitNodes(ctx, events); err != nil {
		return nil, err
	}
	progress.Note(fmt.Sprintf("  %s ready after %s", plural(o.Node.count(), "node"), short(time.Since(nodesBegan))))
	c.state.Ready = true
	if err := c.state.write(o.Dir); err != nil {
		return nil, err
	}
	up = true
	return c, nil
}

// listen opens a port of the host's for the API server.
func listen(ctx context.Context) (listening *os.File, address string, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("opening a port for the API server: %w", err)
	}
	defer l.Close() // File is a copy
	listening, err = l.(*net.TCPListener).File()
	if err != nil {
		return nil, "", fmt.Errorf("handing on the API server's port: %w", err)
	}
	return listening, l.Addr().String(), nil
}

// startSupervisor starts the supervisor, with a real node as PID 1 of new namespaces, records who it is, and only then lets
// it go on.
func (c *Cluster) startSupervisor(listening *os.File, program string) (<-chan supervise.Event, error) {
	controlRead, controlWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making the supervisor's pipes: %w", err)
	}
	defer controlRead.Close()
	eventsRead, eventsWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making the supervisor's pipes: %w", err)
	}
	defer eventsWrite.Close()
	log, err := os.Create(filepath.Join(c.Logs(), "supervisor.log"))
	if err != nil {
		return nil, fmt.Errorf("opening the supervisor's log: %w", err)
	}
	defer log.Close()

	cmd := exec.Command(program, filepath.Join(c.dir, specFile)) //nolint:noctx // it lives on when Up has returned
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.ExtraFiles = []*os.File{controlRead, eventsWrite} // ControlFD, EventsFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}  // a Ctrl-C on the terminal is the launcher's to handle
	hint := ""
	if c.state.Node.real() {
		cmd.ExtraFiles = append(cmd.ExtraFiles, listening) // ListenerFD
		isolated(cmd.SysProcAttr)
		hint = " in namespaces of its own (in a container, run it privileged)"
	}
	if err := cmd.Start(); err != nil {
		controlWrite.Close()
		eventsRead.Close()
		return nil, fmt.Errorf("starting the supervisor%s: %w", hint, err)
	}
	go func() { _ = cmd.Wait() }() // its log and its last event tell why it ended
	c.control = controlWrite
	if c.state.Supervisor, err = process.Identify(cmd.Process.Pid); err == nil {
		err = c.state.write(c.dir)
	}
	if err == nil {
		_, err = controlWrite.Write([]byte{supervise.Go})
	}
	if err != nil {
		controlWrite.Close() // makes the supervisor, which has not begun, end
		return nil, err
	}
	events := make(chan supervise.Event)
	go func() {
		defer close(events)
		defer eventsRead.Close()
		for lines := bufio.NewScanner(eventsRead); lines.Scan(); {
			var e supervise.Event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				events <- e
			}
		}
	}()
	return events, nil
}

func detach(control *os.File) error {
	_, err := control.Write([]byte{supervise.Detach})
	return errors.Join(err, control.Close())
}

// follow reports the components' start and loads the sandbox image as soon as containerd takes it.
func (c *Cluster) follow(ctx context.Context, events <-chan supervise.Event, components []supervise.Component, pause string, progress *Progress) (err error) {
	var loading errgroup.Group
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
		err = cmp.Or(err, loading.Wait()) // The program that loads must not outlive us.
		cancel()
	}()
	for ready := 0; ready < len(components); ready++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-events:
			if !ok || e.Error != "" {
				return c.ended(e)
			}
			if e.Waited {
				progress.Note(fmt.Sprintf("  %s ready after %s", e.Component, short(time.Duration(e.Seconds*float64(time.Second)))))
			} else {
				progress.Note(fmt.Sprintf("  %s started", e.Component))
			}
			if e.Component == "containerd" {
				loading.Go(func() error {
					return c.LoadImage(ctx, Image{Ref: pauseImage, Files: map[string]string{"/pause": pause}, User: "0:0"})
				})
			}
		}
	}
	return nil
}

// ended turns the supervisor's last event, or its silent end, into an error.
func (c *Cluster) ended(e supervise.Event) error {
	if e.Error == "" {
		e.Error = lastWords(c.dir)
	}
	return fmt.Errorf("the cluster ended: %s\nlogs: %s", e.Error, c.Logs())
}

// lastWords is the end of the supervisor's log.
func lastWords(dir string) string {
	file := filepath.Join(dir, logsDir, "supervisor.log")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file + " ends with\n" + supervise.Tail(file)
}

// awaitNodes waits until pods can be created and run: the nodes are Ready and the default ServiceAccount exists.
func (c *Cluster) awaitNodes(ctx context.Context, events <-chan supervise.Event) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	if err := c.state.Node.createNodes(ctx, client); err != nil {
		return err
	}
	deadline := time.After(nodeTimeout)
	for {
		err := nodesReady(ctx, client, c.state.Node.count())
		if err == nil {
			if _, err = client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{}); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-events:
			return c.ended(e)
		case <-deadline:
			return fmt.Errorf("waiting %s for the nodes to be Ready: %w\nlogs: %s", nodeTimeout, err, c.Logs())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Down ends the cluster that Options name, whichever process started it, and removes every trace of it. Where nothing
// runs it cleans up what a killed run has left.
func Down(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := claim(o.Dir); err != nil {
		return err
	}
	if _, err := os.Stat(o.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock, err := lock(o.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := within(ctx, cleanupTimeout, func(ctx context.Context) error { return cleanUp(ctx, o) }); err != nil {
		return err
	}
	return removeFolder(o.Dir)
}

// removeFolder removes what is empty by now, unless a person has put something in.
func removeFolder(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		return fmt.Errorf("removing the cluster's folder: %w", err)
	}
	return nil
}

// dyingTimeout is how long killed processes may take to end: milliseconds on an idle machine.
const dyingTimeout = 5 * time.Second

// cleanUp takes the recorded run away: its processes, which takes mounts, links and addresses with them, its cgroups,
// its files. It finds its way with any part of that missing, because a kill -9 may strike at any moment.
func cleanUp(ctx context.Context, o Options, keep ...string) error {
	s, err := readState(o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s.Name == "" {
		s.Name = o.Name
	}
	// PID 1 of a namespace takes all others with it. Without, the supervisor has to end them itself.
	end := s.Supervisor.Kill
	if s.Node == Simulated {
		end = func(ctx context.Context) error { return s.Supervisor.Terminate(ctx, dyingTimeout) }
	}
	if err := end(ctx); err != nil {
		return err
	}
	// Those of a supervisor that a kill -9 kept from ending them.
	left, err := readProcesses(o.Dir)
	if err != nil {
		return err
	}
	for _, p := range left {
		if err := p.Kill(ctx); err != nil {
			return err
		}
	}
	// Where no real node can be, there are no cgroups, either.
	if Supported() == nil {
		if err := removeCgroups(ctx, o, s.Name); err != nil {
			return err
		}
	}
	return clear(o.Dir, keep...)
}

func removeCgroups(ctx context.Context, o Options, name string) error {
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	pids, err := cgroup.Processes(hierarchies, cgroupName(name))
	// After a kill -9 of the supervisor, the kernel is still busy with the containers, which lie in namespaces of their own.
	for until := time.Now().Add(dyingTimeout); err == nil && len(pids) > 0 && time.Now().Before(until); {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the end of processes %s: %w", strings.Join(pids, " "), ctx.Err())
		case <-time.After(20 * time.Millisecond):
			pids, err = cgroup.Processes(hierarchies, cgroupName(name))
		}
	}
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		return fmt.Errorf("cgroup %s holds processes (%s) that %s knows nothing of: another cluster of that name runs from another folder; choose another --name",
			cgroupName(name), strings.Join(pids, " "), o.Dir)
	}
	return cgroup.Remove(ctx, hierarchies, cgroupName(name))
}
