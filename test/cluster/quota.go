package cluster

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"pod-resizer/test/cluster/internal/cgroup"
)

func cgroupName(cluster string) string { return "pod-resizer-" + cluster }

// Quota is the CPU that the kernel grants to a cgroup: Micros microseconds in each PeriodMicros; -1 is no limit.
type Quota struct{ Micros, PeriodMicros int64 }

// MilliCPU is the quota in the unit in which pods ask for CPU; -1 is no limit.
func (q Quota) MilliCPU() int64 {
	if q.Micros < 0 {
		return -1
	}
	return q.Micros * 1000 / q.PeriodMicros
}

// CPUQuota reads, from the machine's cgroups, the CPU quota of a container and of its pod. The container's id may carry
// the "containerd://" of a pod's status.
func (c *Cluster) CPUQuota(pod types.UID, containerID string) (container, sandbox Quota, err error) {
	dir, v2, err := c.podCgroup(pod)
	if err != nil {
		return container, sandbox, err
	}
	if sandbox, err = readQuota(dir, v2); err != nil {
		return container, sandbox, err
	}
	container, err = readQuota(filepath.Join(dir, containerName(containerID)), v2)
	return container, sandbox, err
}

// podCgroup is the folder of a pod in the hierarchy that grants CPU.
func (c *Cluster) podCgroup(pod types.UID) (dir string, v2 bool, err error) {
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return "", false, err
	}
	cpu, err := cgroup.CPU(hs)
	if err != nil {
		return "", false, err
	}
	// A Guaranteed pod lies directly in kubepods, the others one level further down.
	for _, class := range []string{"", "burstable", "besteffort"} {
		dir := filepath.Join(cpu.Mount, cgroupName(c.state.Name), "kubepods", class, "pod"+string(pod))
		if _, err := os.Stat(dir); err == nil {
			return dir, cpu.V2, nil
		}
	}
	return "", false, fmt.Errorf("finding the cgroup of pod %s (has it started? is it gone?): %w", pod, fs.ErrNotExist)
}

// containerName is a container's id, and its cgroup's name, without the "containerd://" of a pod's status.
func containerName(id string) string { return strings.TrimPrefix(id, "containerd://") }

// readQuota reads cpu.max on v2 and the two cfs files on v1.
func readQuota(dir string, v2 bool) (Quota, error) {
	files := []string{"cpu.cfs_quota_us", "cpu.cfs_period_us"}
	if v2 {
		files = []string{"cpu.max"} // "QUOTA PERIOD", or "max PERIOD"
	}
	var words []string
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return Quota{}, fmt.Errorf("reading a CPU quota: %w", err)
		}
		words = append(words, strings.Fields(string(b))...)
	}
	if len(words) != 2 {
		return Quota{}, fmt.Errorf("reading a CPU quota in %s: want a quota and a period, got %q", dir, words)
	}
	if words[0] == "max" {
		words[0] = "-1"
	}
	micros, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil {
		return Quota{}, fmt.Errorf("reading a CPU quota in %s: %w", dir, err)
	}
	period, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil || period <= 0 {
		return Quota{}, fmt.Errorf("reading a CPU period in %s: %q is no positive number", dir, words[1])
	}
	return Quota{Micros: micros, PeriodMicros: period}, nil
}
