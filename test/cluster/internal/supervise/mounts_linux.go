package supervise

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// staging is where a folder is put together before it is moved into place; it lies on the tmpfs over /run.
const staging = "/run/pod-resizer"

// setUpMounts gives this mount namespace its own /proc and private versions of the folders in which containerd, kubelet
// and CNI plugins have hard-coded paths, so that no file of theirs appears on the host.
func setUpMounts(s Isolation) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making all mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	// Sockets, lock files and network namespaces; nothing of the host's /run may be seen, or containerd would meet a
	// containerd that is already there.
	if err := tmpfs("/run"); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib", "/var/log"} {
		if err := extend(dir); err != nil {
			return fmt.Errorf("making a private %s: %w", dir, err)
		}
	}
	for _, b := range s.Binds {
		if err := os.MkdirAll(b.Target, 0o755); err != nil {
			return fmt.Errorf("making a mount point: %w", err)
		}
		if b.Source == "" {
			if err := tmpfs(b.Target); err != nil {
				return err
			}
		} else if err := bind(b.Source, b.Target); err != nil {
			return err
		}
	}
	// Last, because a folder cannot be moved below a shared mount. Shared is what a pod with mountPropagation needs.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("making all mounts shared inside the namespace: %w", err)
	}
	return maskSysctls(s.Sysctls)
}

// extend replaces dir, in this namespace only, by a tmpfs that shows the same entries and takes new ones. A plain tmpfs
// would hide what is there, and that may be the state folder itself (a service account's home often lies in /var/lib).
func extend(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(staging, 0o755); err != nil {
		return err
	}
	if err := tmpfs(staging); err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(dir, e.Name()), filepath.Join(staging, e.Name())
		if e.Type()&fs.ModeSymlink != 0 {
			link, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(link, to)
			}
			if err != nil {
				return err
			}
			continue
		}
		if e.IsDir() {
			err = os.Mkdir(to, 0o755)
		} else {
			err = os.WriteFile(to, nil, 0o644)
		}
		if err == nil {
			err = bind(from, to)
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Mount(staging, dir, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving it into place: %w", err)
	}
	return nil
}

// maskSysctls puts files with the expected values over the sysctls that the kubelet would otherwise set: they belong to
// the whole machine, not to a namespace.
func maskSysctls(values map[string]string) error {
	for name, value := range values {
		target := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); err != nil {
			continue // a kernel without it; the kubelet skips it too
		}
		source := filepath.Join("/run", "sysctl."+strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(source, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("masking sysctls: %w", err)
		}
		if err := bind(source, target); err != nil {
			return fmt.Errorf("masking sysctls: %w", err)
		}
	}
	return nil
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", source, target, err)
	}
	return nil
}

func tmpfs(target string) error {
	if err := unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mounting a tmpfs at %s: %w", target, err)
	}
	return nil
}
