package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// Kill ends a container as the kernel's OOM killer would: SIGKILL, with no word to the kubelet. Its cgroup, which is this
// cluster's alone, says which processes it has.
func (c *Cluster) Kill(pod types.UID, containerID string) error {
	dir, _, err := c.podCgroup(pod)
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(dir, containerName(containerID), "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("reading the processes of a container: %w", err)
	}
	pids := strings.Fields(string(list))
	if len(pids) == 0 {
		return fmt.Errorf("killing container %s of pod %s: it has no process", containerID, pod)
	}
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil || pid <= 1 { // 0 stands for a process that this PID namespace cannot see.
			return fmt.Errorf("killing container %s of pod %s: process id %q", containerID, pod, text)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("killing process %d of container %s: %w", pid, containerID, err)
		}
	}
	return nil
}
