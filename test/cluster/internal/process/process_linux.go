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
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return Process{}, os.ErrProcessDone
	}
	if err != nil {
		return Process{}, err
	}
	state, start, err := parseStat(string(stat))
	if err != nil {
		return Process{}, err
	}
	if state == "Z" {
		return Process{}, os.ErrProcessDone
	}
	return Process{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
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
