// Package cgroup makes and removes one cgroup subtree in every hierarchy of the machine, with cgroup v1, v2 or both.
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	Mount       string
	V2          bool
	Controllers []string
}

// required are the controllers without which the kubelet refuses a cgroup root on v2, unless the machine lacks them too
// (getSupportedUnifiedControllers in k8s.io/kubernetes/pkg/kubelet/cm).
var required = []string{"cpu", "cpuset", "memory", "hugetlb", "pids"}

// Hierarchies lists the hierarchies that this process sees.
func Hierarchies() ([]Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing cgroup hierarchies: %w", err)
	}
	defer f.Close()
	hs, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("listing cgroup hierarchies: %w", err)
	}
	if len(hs) == 0 {
		return nil, errors.New("listing cgroup hierarchies: none is mounted under /sys/fs/cgroup")
	}
	for i, h := range hs {
		if h.V2 {
			b, err := os.ReadFile(filepath.Join(h.Mount, "cgroup.controllers"))
			if err != nil {
				return nil, fmt.Errorf("listing cgroup hierarchies: %w", err)
			}
			hs[i].Controllers = strings.Fields(string(b))
		}
	}
	return hs, nil
}

// parse reads mountinfo lines, "ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG...] - TYPE SOURCE SUPEROPTIONS".
// Only /sys/fs/cgroup counts, because kubelet and runc look nowhere else; a hierarchy that is mounted twice counts once.
func parse(r io.Reader) ([]Hierarchy, error) {
	var hs []Hierarchy
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		l, s := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(s) < 3 || !strings.HasPrefix(s[0], "cgroup") {
			continue
		}
		if mount := l[4]; (mount == "/sys/fs/cgroup" || strings.HasPrefix(mount, "/sys/fs/cgroup/")) && !seen[l[2]] {
			seen[l[2]] = true
			h := Hierarchy{Mount: mount, V2: s[0] == "cgroup2"}
			if !h.V2 {
				h.Controllers = strings.Split(s[2], ",")
			}
			hs = append(hs, h)
		}
	}
	return hs, lines.Err()
}

// CPU is the hierarchy that holds the CPU quotas.
func CPU(hs []Hierarchy) (Hierarchy, error) {
	i := slices.IndexFunc(hs, func(h Hierarchy) bool { return slices.Contains(h.Controllers, "cpu") })
	if i < 0 {
		return Hierarchy{}, errors.New("finding the cpu cgroup hierarchy: no hierarchy has that controller")
	}
	return hs[i], nil
}

// Create makes the cgroup in every hierarchy. On v2 it also switches on, in the root and in the new cgroup, the
// controllers that pods need. Those of the root stay on afterwards: another program may have come to rely on them.
func Create(hs []Hierarchy, name string) error {
	for _, h := range hs {
		dir := filepath.Join(h.Mount, name)
		// Beside v1 hierarchies, which hold the CPU, pods need nothing of the v2 one.
		delegate := h.V2 && slices.Contains(h.Controllers, "cpu")
		if delegate {
			if err := enable(h, h.Mount); err != nil {
				return err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making the cgroup: %w (in a container, run it privileged with a writable /sys/fs/cgroup)", err)
		}
		if delegate {
			if err := enable(h, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func enable(h Hierarchy, dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("enabling cgroup controllers: %w", err)
	}
	on := strings.Fields(string(b))
	var off []string
	for _, c := range required {
		// A kernel may lack some, hugetlb for one.
		if slices.Contains(h.Controllers, c) && !slices.Contains(on, c) {
			off = append(off, "+"+c)
		}
	}
	if len(off) == 0 {
		return nil
	}
	// In one write, which the kernel refuses as a whole. cpu alone it would take where processes lie, and would then let
	// nobody move them into a child.
	if err := os.WriteFile(file, []byte(strings.Join(off, " ")), 0o644); err != nil {
		return fmt.Errorf("enabling cgroup controllers (%s): %w (in a container, move its processes out of the root cgroup first)", strings.Join(off, " "), err)
	}
	return nil
}

// Processes are the ids of all processes in the subtree.
func Processes(hs []Hierarchy, name string) ([]string, error) {
	var pids []string
	for _, h := range hs {
		for _, dir := range tree(h, name) {
			b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("listing a cgroup's processes: %w", err)
			}
			pids = append(pids, strings.Fields(string(b))...)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Remove removes the subtree from every hierarchy, children first. The kernel reports a cgroup as busy for some
// milliseconds after its last process is gone, so Remove tries again until ctx ends.
func Remove(ctx context.Context, hs []Hierarchy, name string) error {
	for {
		var errs []error
		for _, h := range hs {
			for _, dir := range slices.Backward(tree(h, name)) {
				if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, err)
				}
			}
		}
		if len(errs) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("removing cgroups: %w", errors.Join(errs...))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tree lists the subtree's folders, parents first.
func tree(h Hierarchy, name string) []string {
	var dirs []string
	// Cgroups may vanish while they are walked; what vanished needs no listing.
	_ = filepath.WalkDir(filepath.Join(h.Mount, name), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}
