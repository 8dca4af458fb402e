package cluster

import (
	"errors"
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
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return container, sandbox, err
	}
	cpu, err := cgroup.CPU(hs)
	if err != nil {
		return container, sandbox, err
	}
	// A Guaranteed pod lies directly in kubepods, the others one level further down.
	for _, class := range []string{"", "burstable", "besteffort"} {
		dir := filepath.Join(cpu.Mount, cgroupName(c.state.Name), "kubepods", class, "pod"+string(pod))
		if sandbox, err = readQuota(dir, cpu.V2); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return container, sandbox, err
		}
		container, err = readQuota(filepath.Join(dir, strings.TrimPrefix(containerID, "containerd://")), cpu.V2)
		return container, sandbox, err
	}
	return container, sandbox, fmt.Errorf("reading the CPU quota of pod %s: it has no cgroup (has it started? is it gone?): %w", pod, fs.ErrNotExist)
}

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
