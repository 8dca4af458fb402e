package supervise

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pod-resizer/test/cluster/internal/cgroup"
)

// enter makes the namespaces that this process was started in what the components need.
func (i Isolation) enter(fail func(error)) error {
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := cgroup.Create(hierarchies, i.Cgroup); err != nil {
		return err
	}
	if err := setUpMounts(i); err != nil {
		return err
	}
	if err := setUpNetwork(i); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(i.Hostname)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	l, err := listener()
	if err != nil {
		return err
	}
	go func() { fail(proxy(l, i.Proxy)) }()
	return nil
}

// killAll kills every other process of the PID namespace and of those below it, for that is what -1 means to PID 1.
func (i Isolation) killAll() {
	for syscall.Kill(-1, syscall.SIGKILL) == nil {
		time.Sleep(10 * time.Millisecond)
	}
}

// leave removes what the end of the namespaces does not.
func (i Isolation) leave() error {
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return cgroup.Remove(ctx, hierarchies, i.Cgroup)
}

// dyingWithParent makes the kernel end a component with its supervisor, even on kill -9. (Go's threads, one of which is the
// parent in the kernel's eyes, last as long as the process.)
func dyingWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
