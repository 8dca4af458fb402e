package cluster

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Supported says whether this process may start a cluster, and if not, what to do.
func Supported() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the cluster runs on Linux only, not on %s: use a Linux machine or virtual machine", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("the cluster needs root, for namespaces and cgroups: run the same command with sudo env \"PATH=$PATH\" in front")
	}
	return nil
}

// onOverlay says whether dir lies on an overlay file system.
func onOverlay(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC
}
