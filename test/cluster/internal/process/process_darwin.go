package process

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// zombie is SZOMB of sys/proc.h.
const zombie = 5

// identify needs no boot: macOS keeps the time of day at which a process was started.
func identify(pid int) (Process, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(info.Proc.P_pid) != pid {
		return Process{}, fmt.Errorf("%w (%v)", os.ErrProcessDone, err) //nolint:errorlint // the sysctl's own error is a mere EIO
	}
	if info.Proc.P_stat == zombie {
		return Process{}, os.ErrProcessDone
	}
	started := info.Proc.P_starttime
	return Process{PID: pid, Start: uint64(started.Sec)*1_000_000 + uint64(started.Usec), Boot: "darwin"}, nil
}

func (p Process) signal(s syscall.Signal) error { return syscall.Kill(p.PID, s) }
