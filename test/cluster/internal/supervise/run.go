package supervise

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"pod-resizer/test/cluster/internal/process"
)

// readyTimeout bounds a component's start. The slowest, kube-apiserver, takes 4 s on two free cores; a loaded machine
// may need ten times that.
const readyTimeout = 90 * time.Second

type supervisor struct {
	spec   Spec
	log    *slog.Logger
	events *json.Encoder
	failed chan error

	mu       sync.Mutex // held while a process starts, so that its death is not taken for an orphan's
	running  map[int]*child
	stopping bool
}

// child is a running process.
type child struct {
	Component
	process process.Process
	beside  bool          // it may end without the cluster's end
	ended   chan struct{} // closed when it has
}

// Run runs the cluster and returns why it ended, after all its processes are gone.
func Run(spec Spec, log *slog.Logger) error {
	for fd := ControlFD; fd <= ListenerFD; fd++ {
		syscall.CloseOnExec(fd) // none of the components may keep the launcher waiting
	}
	s := &supervisor{
		spec: spec, log: log, events: json.NewEncoder(os.NewFile(EventsFD, "events")),
		failed: make(chan error, 1), running: map[int]*child{},
	}
	control := bufio.NewReader(os.NewFile(ControlFD, "control"))
	if b, err := control.ReadByte(); err != nil || b != Go {
		return errors.New("the launcher went away before the start")
	}
	err := s.start()
	if err == nil {
		go s.obey(control)
		err = <-s.failed
	}
	if markErr := os.WriteFile(spec.Ending, nil, 0o600); markErr != nil && !errors.Is(markErr, os.ErrNotExist) { // its folder may be gone
		err = errors.Join(err, markErr)
	}
	s.emit(Event{Error: err.Error()})
	s.killAll()
	if spec.Isolation != nil {
		err = errors.Join(err, spec.Isolation.leave())
	}
	return err
}

func (s *supervisor) start() error {
	if s.spec.Isolation != nil {
		if err := s.spec.Isolation.enter(s.fail); err != nil {
			return err
		}
	}
	if s.spec.Socket != "" {
		if err := s.listen(); err != nil {
			return err
		}
	}
	go s.reap()
	ready := map[string]chan struct{}{}
	for _, c := range s.spec.Components {
		ready[c.Name] = make(chan struct{})
	}
	for _, c := range s.spec.Components {
		go func() {
			for _, name := range c.After {
				<-ready[name]
			}
			began := time.Now()
			if err := s.startProcess(c, false); err != nil {
				s.fail(err)
				return
			}
			if err := awaitReady(c.Ready); err != nil {
				s.fail(fmt.Errorf("waiting for %s: %w\n%s", c.Name, err, Tail(c.Log)))
				return
			}
			s.emit(Event{Component: c.Name, Waited: c.Ready != "", Seconds: time.Since(began).Seconds()})
			close(ready[c.Name])
		}()
	}
	return nil
}

// obey ends the cluster when the launcher goes away without having let it go, or on a signal.
func (s *supervisor) obey(control *bufio.Reader) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() { s.fail(fmt.Errorf("signal: %s", <-signals)) }()
	if b, err := control.ReadByte(); err != nil || b != Detach {
		s.fail(errors.New("the process that started the cluster went away"))
	}
}

func (s *supervisor) startProcess(c Component, beside bool) error {
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", c.Name, err)
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	defer null.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return fmt.Errorf("starting %s: the cluster is stopping", c.Name)
	}
	p, err := os.StartProcess(c.Path, append([]string{c.Path}, c.Args...), &os.ProcAttr{
		Dir: "/", Env: c.Env, Files: []*os.File{null, out, out}, Sys: dyingWithParent(),
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	started := &child{Component: c, beside: beside, ended: make(chan struct{})}
	s.running[p.Pid] = started
	s.log.Info("process started", "name", c.Name, "pid", p.Pid)
	if s.spec.Processes == "" {
		return nil
	}
	// It cannot have gone so far that it could not be looked at: only reap, which waits for the lock, takes it away.
	started.process, err = process.Identify(p.Pid)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	return s.record()
}

// record writes down which processes run.
func (s *supervisor) record() error {
	var all []process.Process
	for _, c := range s.running {
		all = append(all, c.process)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("recording the processes: %w", err)
	}
	// In one step: a kill -9 in between leaves the old list.
	if err := os.WriteFile(s.spec.Processes+".new", b, 0o600); err != nil {
		return fmt.Errorf("recording the processes: %w", err)
	}
	if err := os.Rename(s.spec.Processes+".new", s.spec.Processes); err != nil {
		return fmt.Errorf("recording the processes: %w", err)
	}
	return nil
}

// reap collects every child, as PID 1 must: components, and orphans such as containerd's shims. A component that ends
// is never restarted: what made it end would be hidden.
func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.ECHILD) {
			s.mu.Lock()
			stopping := s.stopping
			s.mu.Unlock()
			if stopping {
				return
			}
			time.Sleep(20 * time.Millisecond) // no component has been started yet
			continue
		}
		if err != nil {
			continue // EINTR
		}
		s.mu.Lock()
		c, ok := s.running[pid]
		delete(s.running, pid)
		stopping := s.stopping
		s.mu.Unlock()
		if !ok {
			continue
		}
		close(c.ended)
		switch {
		case stopping:
		case c.beside:
			s.log.Info("process ended", "name", c.Name, "how", describe(status))
		default:
			s.fail(fmt.Errorf("%s ended by itself (%s); the end of its log, %s:\n%s", c.Name, describe(status), c.Log, Tail(c.Log)))
		}
	}
}

// killAll returns once no process of the cluster's is left.
func (s *supervisor) killAll() {
	s.mu.Lock()
	s.stopping = true
	children := slices.Collect(maps.Values(s.running))
	s.mu.Unlock()
	if s.spec.Isolation != nil {
		s.spec.Isolation.killAll()
		return
	}
	for _, c := range children {
		s.end(c)
	}
}

// end kills a child of the kind that is recorded and returns when it is gone.
func (s *supervisor) end(c *child) {
	if err := c.process.Kill(context.Background()); err != nil {
		s.log.Error("ending a process", "name", c.Name, "error", err)
	}
	<-c.ended
}

func (s *supervisor) fail(err error) {
	select {
	case s.failed <- err:
	default: // the first reason is the one to report
	}
}

// emit tells the launcher; a launcher that has let the cluster go no longer listens.
func (s *supervisor) emit(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.events.Encode(e)
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

func awaitReady(target string) error {
	scheme, addr, _ := strings.Cut(target, "://")
	probe := func() error {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), scheme, addr)
		if err == nil {
			c.Close()
		}
		return err
	}
	switch scheme {
	case "":
		return nil
	case "https":
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // only asks whether the server has come up
		}}
		probe = func() error {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, target, nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s answers %s", target, resp.Status)
			}
			return nil
		}
	}
	deadline := time.Now().Add(readyTimeout)
	for {
		err := probe()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Tail is the end of a log file, enough to see why a program ended.
func Tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	lines = lines[max(0, len(lines)-15):]
	for i, l := range lines {
		lines[i] = "    " + l[:min(len(l), 300)] // etcd puts whole stack traces into a line
	}
	return strings.Join(lines, "\n")
}
