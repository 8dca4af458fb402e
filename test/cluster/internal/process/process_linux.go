package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func identify(pid int) (Process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Process{}, err
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return Process{}, os.ErrProcessDone
	}
	if err != nil {
		return Process{}, err
	}
	s, err := parseStat(string(line))
	if err != nil {
		return Process{}, err
	}
	// A process whose first thread has ended looks like a zombie, while others may still be at work: PID 1 of a namespace
	// ends with the thread that waits for the namespace's other processes.
	if s.state == "Z" && s.threads <= 1 {
		return Process{}, os.ErrProcessDone
	}
	return Process{PID: pid, Start: s.start, Boot: strings.TrimSpace(string(boot))}, nil
}

type stat struct {
	state   string
	threads int
	start   uint64
}

// parseStat reads /proc/PID/stat. The second field, the program's name, may hold blanks and parentheses.
func parseStat(line string) (stat, error) {
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	// f begins with field 3 of proc(5): num_threads is field 20, starttime is field 22.
	if len(f) < 20 {
		return stat{}, fmt.Errorf("parsing /proc/PID/stat: %q is too short", line)
	}
	threads, err := strconv.Atoi(f[17])
	if err != nil {
		return stat{}, fmt.Errorf("parsing /proc/PID/stat: %w", err)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("parsing /proc/PID/stat: %w", err)
	}
	return stat{state: f[0], threads: threads, start: start}, nil
}

// signal goes through a descriptor: from the second look on it holds on to this very process.
func (p Process) signal(s unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, s, nil, 0)
}
