package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pod-resizer/test/cluster/internal/process"
)

// The entries of a cluster's folder. Nothing else in it is ever removed.
const (
	stateFile      = "state.json" // also marks the folder as a cluster's
	specFile       = "supervisor.json"
	processesFile  = "processes.json"
	socketFile     = "supervisor.sock"
	kubeconfigFile = "kubeconfig"
	auditFile      = "audit.log"
	pkiDir         = "pki"
	besideDir      = "beside" // in pki: tls.crt and tls.key for programs that run beside the cluster
	configDir      = "config"
	logsDir        = "logs"
	tmpDir         = "tmp"
	etcdDir        = "etcd"
	containerdDir  = "containerd"
	kubeletDir     = "kubelet"
	cniDir         = "cni"
	podLogsDir     = "pod-logs"
)

func entries() []string {
	return []string{
		specFile, processesFile, socketFile, kubeconfigFile, auditFile, pkiDir, configDir, logsDir, tmpDir, etcdDir, containerdDir, kubeletDir,
		cniDir, podLogsDir, stateFile,
	}
}

// state is what one run has to tell the next.
type state struct {
	Name       string          `json:"name"`
	Kubernetes string          `json:"kubernetes"`
	Server     string          `json:"server,omitempty"`
	Node       Node            `json:"node"`
	Supervisor process.Process `json:"supervisor,omitzero"`
	Ctr        string          `json:"ctr,omitempty"` // the program that talks to containerd
	Ready      bool            `json:"ready"`         // up has finished
	Detached   bool            `json:"detached"`      // it outlives the process that started it
	Started    time.Time       `json:"started"`
}

func readState(dir string) (state, error) {
	var s state
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return s, fmt.Errorf("reading the cluster's state: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("reading the cluster's state %s: %w", filepath.Join(dir, stateFile), err)
	}
	return s, nil
}

// readProcesses lists the plain processes that a supervisor recorded; none if there is no record.
func readProcesses(dir string) ([]process.Process, error) {
	b, err := os.ReadFile(filepath.Join(dir, processesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's processes: %w", err)
	}
	var all []process.Process
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("reading the cluster's processes %s: %w", filepath.Join(dir, processesFile), err)
	}
	return all, nil
}

// write replaces the state file in one step, so that a kill in between leaves the old one and not half of the new.
func (s state) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the cluster's state: %w", err)
	}
	tmp := filepath.Join(dir, stateFile+".new")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the cluster's state: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, stateFile)); err != nil {
		return fmt.Errorf("writing the cluster's state: %w", err)
	}
	return nil
}

// lock keeps two commands from working on one folder at once. The kernel drops it with the process, even on kill -9.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking the cluster's folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another up or down is at work on %s: wait for it, or end it first", dir)
		}
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// claim refuses a folder that holds something other than a cluster, because up and down remove files in it.
func claim(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, stateFile)); err == nil {
		return nil
	}
	es, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking into the cluster's folder: %w", err)
	}
	for _, e := range es {
		if !slices.Contains(entries(), strings.TrimSuffix(e.Name(), ".new")) {
			return fmt.Errorf("%s holds %q, which is no cluster's: choose an empty folder with --dir", dir, e.Name())
		}
	}
	return nil
}

// clear removes what a cluster left in its folder, except what keep names.
func clear(dir string, keep ...string) error {
	var errs []error
	for _, e := range append(entries(), stateFile+".new", processesFile+".new") {
		if !slices.Contains(keep, e) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clearing the cluster's folder: %w", err)
	}
	return nil
}

// within runs f with a context that outlives ctx's cancellation: cleaning up must go on after Ctrl-C.
func within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return f(ctx)
}
