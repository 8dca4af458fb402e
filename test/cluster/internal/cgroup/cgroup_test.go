package cgroup

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, mountinfo string
		want            []Hierarchy
	}{{
		name: "v2 alone",
		mountinfo: `24 30 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot`,
		want: []Hierarchy{{Mount: "/sys/fs/cgroup", V2: true}},
	}, {
		name: "v1 with a v2 hierarchy beside it, and two controllers in one mount",
		mountinfo: `30 22 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
39 30 0:36 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
40 30 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw`,
		want: []Hierarchy{
			{Mount: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"rw", "cpu", "cpuacct"}},
			{Mount: "/sys/fs/cgroup/systemd", Controllers: []string{"rw", "name=systemd"}},
			{Mount: "/sys/fs/cgroup/unified", V2: true},
		},
	}, {
		name: "a second mount of the same hierarchy, and one elsewhere",
		mountinfo: `31 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 30 0:28 / /sys/fs/cgroup/again rw - cgroup cgroup rw,cpu
33 30 0:29 / /mnt/cgroup rw - cgroup cgroup rw,memory`,
		want: []Hierarchy{{Mount: "/sys/fs/cgroup/cpu", Controllers: []string{"rw", "cpu"}}},
	}} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(strings.NewReader(c.mountinfo))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(got, c.want, func(a, b Hierarchy) bool {
				return a.Mount == b.Mount && a.V2 == b.V2 && slices.Equal(a.Controllers, b.Controllers)
			}) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestCPUIsFoundOnBothVersions(t *testing.T) {
	for _, hs := range [][]Hierarchy{
		{{Mount: "m", Controllers: []string{"rw", "memory"}}, {Mount: "c", Controllers: []string{"rw", "cpu", "cpuacct"}}},
		{{Mount: "c", V2: true, Controllers: []string{"cpuset", "cpu", "io"}}},
	} {
		if h, err := CPU(hs); err != nil || h.Mount != "c" {
			t.Errorf("CPU(%+v) = %+v, %v", hs, h, err)
		}
	}
	if _, err := CPU([]Hierarchy{{Mount: "x", Controllers: []string{"cpuset"}}}); err == nil {
		t.Error("no error without a cpu controller")
	}
}

// The kubelet ends at once if one of them is off in its cgroup root but known to the machine's.
func TestCreateOnV2SwitchesOnEachControllerThatTheKubeletDemands(t *testing.T) {
	demanded := []string{"cpuset", "cpu", "memory", "hugetlb", "pids"}
	for i, off := range demanded {
		root := t.TempDir()
		on := strings.Join(slices.Delete(slices.Clone(demanded), i, i+1), " ")
		files := []string{filepath.Join(root, "cgroup.subtree_control"), filepath.Join(root, "x", "cgroup.subtree_control")}
		if err := os.Mkdir(filepath.Join(root, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(file, []byte(on), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		h := Hierarchy{Mount: root, V2: true, Controllers: append([]string{"io", "rdma", "misc"}, demanded...)}
		if err := Create([]Hierarchy{h}, "x"); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if b, err := os.ReadFile(file); err != nil || string(b) != "+"+off {
				t.Errorf("%s off: %s: %q, %v; want it switched on", off, file, b, err)
			}
		}
	}
}

// One write is all or nothing. Had cpu gone in before the kernel refused memory, because of processes in the root, they
// could no longer be moved out of it.
func TestCreateOnV2SwitchesAllOnInOneWrite(t *testing.T) {
	root := t.TempDir()
	files := []string{filepath.Join(root, "cgroup.subtree_control"), filepath.Join(root, "x", "cgroup.subtree_control")}
	if err := os.Mkdir(filepath.Join(root, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := Hierarchy{Mount: root, V2: true, Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}}
	if err := Create([]Hierarchy{h}, "x"); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err != nil || string(b) != "+cpu +cpuset +memory +pids" {
			t.Errorf("%s: %q, %v; want one write of all that the machine knows", file, b, err)
		}
	}
}

// A plain folder stands in for the hierarchies: of v2 there is none on a v1 machine, and the other way round.
func TestCreateOnV2SwitchesControllersOnAndRemoveTakesTheTreeAway(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{root, filepath.Join(root, "x")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("cpuset cpu memory"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := Hierarchy{Mount: root, V2: true, Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}}
	if err := Create([]Hierarchy{h}, "x"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{root, filepath.Join(root, "x")} {
		file := filepath.Join(dir, "cgroup.subtree_control")
		if b, err := os.ReadFile(file); err != nil || string(b) != "+pids" {
			t.Errorf("%s: %q, %v; want only what was off switched on", file, b, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "x", "kubepods", "pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Remove(context.Background(), []Hierarchy{h}, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "x")); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}
