package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"pod-resizer/test/cluster"
)

// asMain makes this test binary act as the program itself, in processes of its own that can be killed.
const asMain = "POD_RESIZER_TEST_AS_CLUSTER"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program is the cluster program, working on one cluster of the test's own.
type program struct {
	t    *testing.T
	name string
	dir  string
}

func (p program) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append(args, "--name", p.name, "--dir", p.dir)...)
	if i := slices.Index(args, "--"); i >= 0 { // flags come before the command of run
		cmd = exec.Command(os.Args[0], slices.Concat(args[:i], []string{"--name", p.name, "--dir", p.dir}, args[i:])...)
	}
	cmd.Env = append(os.Environ(), asMain+"=1", "CI=true")
	return cmd
}

// run runs the program to its end and wants the exit code.
func (p program) run(code int, args ...string) string {
	p.t.Helper()
	began := time.Now()
	out, err := p.command(args...).CombinedOutput()
	p.t.Logf("cluster %s (%.1fs)\n%s", strings.Join(args, " "), time.Since(began).Seconds(), out)
	got := 0
	if err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			p.t.Fatal(err)
		}
		got = exit.ExitCode()
	}
	if got != code {
		p.t.Fatalf("exit code %d, want %d", got, code)
	}
	return string(out)
}

// upUntil starts `up`, sends the signal once it prints the words, and returns the exit error.
func (p program) upUntil(words string, signal syscall.Signal) error {
	p.t.Helper()
	cmd := p.command("up", "--yes")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	sent := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		p.t.Log(lines.Text())
		if !sent && strings.Contains(lines.Text(), words) {
			sent = true
			p.t.Logf("-> %s", signal)
			if err := cmd.Process.Signal(signal); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	if !sent {
		p.t.Fatalf("up ended before it said %q: %v", words, err)
	}
	return err
}

func TestAFailedBuildSaysWhy(t *testing.T) {
	real, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	fake := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = build ] || exec " + real + " \"$@\"\necho gcc not found >&2\nexit 3\n"
	if err := os.WriteFile(filepath.Join(fake, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", fake+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	p := program{t: t, name: "fails", dir: filepath.Join(t.TempDir(), "state")}
	if out := p.run(1, "build"); !strings.Contains(out, "Error: building") || !strings.Contains(out, "gcc not found") {
		t.Error("a failed build does not say why")
	}
}

func TestAClusterWorksAndLeavesNoTrace(t *testing.T) {
	if err := cluster.Supported(); err != nil {
		t.Fatal(err)
	}
	p := program{t: t, name: fmt.Sprintf("trace-%d", os.Getpid()), dir: filepath.Join(t.TempDir(), "state")}
	// Builds for minutes where nothing is built yet, so no time limit of this test's own applies to it.
	if err := cluster.Build(context.Background(), cluster.Options{Out: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		if err := cluster.Down(context.Background(), cluster.Options{Name: p.name, Dir: p.dir}); err != nil {
			t.Error(err)
		}
	})
	before := machine(t, p)

	for _, stage := range []string{"starting Kubernetes", "etcd ready", "kube-apiserver ready"} {
		if err := p.upUntil(stage, syscall.SIGINT); err == nil {
			t.Fatal("an interrupted up exits with 0")
		}
		if es, err := os.ReadDir(p.dir); err != nil || len(es) != 1 || es[0].Name() != "logs" {
			t.Errorf("after an interrupted up, want the logs alone in the folder, got %v, %v", es, err)
		}
		compare(t, before, machine(t, p))
	}

	if err := p.upUntil("kubelet started", syscall.SIGKILL); err == nil {
		t.Fatal("kill -9 had no effect")
	}
	p.run(1, "status")
	p.run(0, "up", "--yes")
	p.run(0, "up", "--yes") // says that it is up
	p.run(0, "status", "--output", "json")
	if out := p.run(7, "run", "--", "sh", "-c", `test -r "$KUBECONFIG" && exit 7`); !strings.Contains(out, "up already") {
		t.Error("run does not say that it uses the running cluster")
	}
	c, err := cluster.Open(cluster.Options{Dir: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	resizePod(ctx, t, c, p)

	// The hardest end: nobody left to tidy up.
	s, err := cluster.ReadStatus(ctx, cluster.Options{Dir: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if left := cgroups(t, p); len(left) == 0 {
		t.Error("a killed supervisor left no cgroup; this test then proves nothing about cleaning them")
	}
	p.run(0, "down")
	compare(t, before, machine(t, p))
	if _, err := os.Stat(p.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after down the folder is still there: %v", err)
	}
}

// resizePod takes a Guaranteed pod that can talk to the API server from 200m to 50m and reads that in its cgroup.
func resizePod(ctx context.Context, t *testing.T, c *cluster.Cluster, p program) {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "probe")
	build := exec.CommandContext(ctx, "go", "build", "-o", probe, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.run(0, "load-image", "probe:v1", "/probe="+probe)
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods("default")
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	if _, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "probe", Image: "probe:v1", ImagePullPolicy: corev1.PullNever,
			Resources: corev1.ResourceRequirements{Requests: limits, Limits: limits},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pod *corev1.Pod
	quota := func() int64 {
		if pod == nil || pod.Status.Phase != corev1.PodRunning {
			return 0
		}
		container, sandbox, err := c.CPUQuota(pod.UID, pod.Status.ContainerStatuses[0].ContainerID)
		if err != nil {
			t.Fatal(err)
		}
		if container != sandbox {
			return 0 // the kubelet sets one after the other
		}
		return container.MilliCPU()
	}
	await := func(what string, done func() bool) {
		t.Helper()
		began := time.Now()
		for !done() {
			if time.Since(began) > 30*time.Second {
				t.Fatalf("%s: not after 30 s: %+v", what, pod.Status)
			}
			time.Sleep(100 * time.Millisecond)
			if pod, err = pods.Get(ctx, "probe", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s after %.1fs", what, time.Since(began).Seconds())
	}
	await("a quota of 200m", func() bool { return quota() == 200 })
	container := pod.Status.ContainerStatuses[0].ContainerID
	await("the pod's log", func() bool {
		log, err := pods.GetLogs("probe", &corev1.PodLogOptions{}).DoRaw(ctx)
		return err == nil && strings.Contains(string(log), "api server: 403")
	})
	patch := `{"spec":{"containers":[{"name":"probe","resources":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}]}}`
	if _, err := pods.Patch(ctx, "probe", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
		t.Fatal(err)
	}
	await("a quota of 50m", func() bool { return quota() == 50 })
	if s := pod.Status.ContainerStatuses[0]; s.RestartCount != 0 || s.ContainerID != container || pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("restarts %d, container %s (was %s), QoS %s", s.RestartCount, s.ContainerID, container, pod.Status.QOSClass)
	}
	audit, err := os.ReadFile(c.AuditLog())
	if err != nil || !strings.Contains(string(audit), `"subresource":"resize"`) {
		t.Errorf("the audit log does not tell of the resize: %v", err)
	}
}

// machine is everything on this machine that a cluster might change.
func machine(t *testing.T, p program) map[string][]string {
	t.Helper()
	found := map[string][]string{"cgroups": cgroups(t, p), "processes": processes(t, p)}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	found["mounts"] = strings.Split(string(mounts), "\n")
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		found["links"] = append(found["links"], l.Name)
	}
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
		"kernel/keys/root_maxbytes", "kernel/hostname", "net/ipv4/ip_forward",
	} {
		b, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			t.Fatal(err)
		}
		found["sysctls"] = append(found["sysctls"], name+"="+string(b))
	}
	// Whole folders where these programs write by default, and the top level of those that hold them.
	for _, dir := range []string{
		"/run/containerd", "/run/netns", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods",
		"/var/log/containers", "/etc/cni", "/etc/kubernetes", "/opt/containerd", "/opt/cni", "/usr/libexec/kubernetes",
	} {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				found["files"] = append(found["files"], path)
			}
			return nil
		})
	}
	for _, dir := range []string{"/", "/run", "/var", "/var/lib", "/var/log", "/etc", "/opt", "/usr/libexec", "/root"} {
		es, _ := os.ReadDir(dir) // not every machine has them all
		for _, e := range es {
			found["files"] = append(found["files"], filepath.Join(dir, e.Name()))
		}
	}
	return found
}

func cgroups(t *testing.T, p program) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/pod-resizer-", "/sys/fs/cgroup/*/pod-resizer-"} {
		dirs, err := filepath.Glob(pattern + p.name)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	return found
}

// processes lists those that were started for the program's cluster: their command lines name its folder, or their
// cgroup its name.
func processes(t *testing.T, p program) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(dir + "/cmdline") // it may be gone by now
		cgroup, _ := os.ReadFile(dir + "/cgroup")
		if strings.Contains(string(cmdline), p.dir) || strings.Contains(string(cgroup), p.name) {
			found = append(found, dir+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

func compare(t *testing.T, before, after map[string][]string) {
	t.Helper()
	for kind := range after {
		for _, x := range after[kind] {
			if !slices.Contains(before[kind], x) {
				t.Errorf("%s: new: %s", kind, x)
			}
		}
		for _, x := range before[kind] {
			if !slices.Contains(after[kind], x) {
				t.Errorf("%s: gone: %s", kind, x)
			}
		}
	}
}
