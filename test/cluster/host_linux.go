package cluster

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// isolated are the attributes of a process that gets the namespaces of a machine of its own.
func isolated(attributes *syscall.SysProcAttr) {
	attributes.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
}

// onOverlay says whether dir lies on an overlay file system.
func onOverlay(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC
}
