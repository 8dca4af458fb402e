//go:build !linux

package supervise

import (
	"errors"
	"runtime"
	"syscall"
)

// Only Linux has namespaces.
func (i Isolation) enter(func(error)) error {
	return errors.New("a real node needs Linux, and this is " + runtime.GOOS)
}

func (i Isolation) killAll() {}

func (i Isolation) leave() error { return nil }

// dyingWithParent is something that only Linux knows. Elsewhere the record of processes has to do.
func dyingWithParent() *syscall.SysProcAttr { return nil }
