// Package process names processes for good and ends them.
package process

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Process is one process and no other: its pid alone may be reused.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // when it was started, in the system's own unit
	Boot  string `json:"boot"`  // the machine's boot that Start counts from
}

// Identify looks at a running process.
func Identify(pid int) (Process, error) {
	p, err := identify(pid)
	if err != nil {
		return Process{}, fmt.Errorf("identifying process %d: %w", pid, err)
	}
	return p, nil
}

// Alive says whether the process still runs.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	now, err := identify(p.PID)
	return err == nil && now == p
}

// Kill ends the process and returns when it is gone.
func (p Process) Kill(ctx context.Context) error { return p.end(ctx, syscall.SIGKILL) }

// Terminate asks the process to end and returns when it is gone; after the grace it kills it.
func (p Process) Terminate(ctx context.Context, grace time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := p.end(limited, syscall.SIGTERM); err == nil || ctx.Err() != nil {
		return err
	}
	return p.Kill(ctx)
}

func (p Process) end(ctx context.Context, signal syscall.Signal) error {
	if !p.Alive() {
		return nil
	}
	if err := p.signal(signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("ending process %d: %w", p.PID, err)
	}
	for p.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for process %d to end: %w", p.PID, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}
