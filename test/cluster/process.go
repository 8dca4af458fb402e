package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process names one process for good: a pid alone may be reused, and a start time counts from the machine's boot.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	Boot  string `json:"boot"`
}

func identify(pid int) (process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, fmt.Errorf("identifying process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, fmt.Errorf("identifying process %d: %w", pid, err)
	}
	state, start, err := parseStat(string(stat))
	if err != nil {
		return process{}, fmt.Errorf("identifying process %d: %w", pid, err)
	}
	if state == "Z" {
		return process{}, fmt.Errorf("identifying process %d: %w", pid, os.ErrProcessDone)
	}
	return process{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// parseStat reads /proc/PID/stat. The second field, the program's name, may hold blanks and parentheses.
func parseStat(stat string) (state string, start uint64, err error) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	// starttime is field 22, so the 20th from the third on.
	if len(f) < 20 {
		return "", 0, fmt.Errorf("parsing /proc/PID/stat: %q is too short", stat)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return f[0], start, err
}

func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	now, err := identify(p.PID)
	return err == nil && now == p
}

// kill ends the process and returns when it is gone. For the supervisor that means that everything under it is gone:
// the kernel lets PID 1 of a namespace end only after the others.
func (p process) kill(ctx context.Context) error {
	if !p.alive() {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() {
		return nil // checked again, because only from here on the descriptor holds on to this very process
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", p.PID, err)
	}
	ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors are small numbers
	for {
		n, err := unix.Poll(ended, int((100 * time.Millisecond).Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for process %d to end: %w", p.PID, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for process %d to end: %w", p.PID, ctx.Err())
		}
	}
}
