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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"pod-resizer/test/cluster"
)

// asMain makes this test binary act as the program itself, in processes of its own that can be killed.
const asMain = "POD_RESIZER_TEST_AS_CLUSTER"

// powerless is the value of asMain with which the program has no capability left, and so no more power over the machine than
// any other user has: what simulated nodes have to do with.
const powerless = "powerless"

func TestMain(m *testing.M) {
	switch os.Getenv(asMain) {
	case "":
		os.Exit(m.Run())
	case powerless:
		if err := giveUpPower(); err != nil {
			panic(err)
		}
	}
	main()
}

// giveUpPower starts this program anew without any capability.
func giveUpPower() error {
	runtime.LockOSThread() // Capabilities are a thread's.
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		// EINVAL: a kernel that does not know it.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	if err := os.Setenv(asMain, "1"); err != nil {
		return err
	}
	return syscall.Exec(os.Args[0], os.Args, os.Environ())
}

// program is the cluster program, working on one cluster of the test's own.
type program struct {
	t    *testing.T
	name string
	dir  string
	node cluster.Node
}

func newProgram(t *testing.T, name string, node cluster.Node) program {
	t.Helper()
	return program{t: t, name: fmt.Sprintf("%s-%d", name, os.Getpid()), dir: filepath.Join(t.TempDir(), name), node: node}
}

func (p program) command(args ...string) *exec.Cmd {
	flags := []string{"--name", p.name, "--dir", p.dir, "--node", string(p.node)}
	i := slices.Index(args, "--") // flags come before the command of run
	if i < 0 {
		i = len(args)
	}
	cmd := exec.Command(os.Args[0], slices.Concat(args[:i], flags, args[i:])...)
	as := "1"
	if p.node == cluster.Simulated {
		as = powerless
	}
	cmd.Env = append(os.Environ(), asMain+"="+as, "CI=true")
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

// upUntil starts `up`, does something to it once it prints the words, and returns what it printed and the exit error.
func (p program) upUntil(words string, then func(*os.Process) error) (string, error) {
	p.t.Helper()
	cmd := p.command("up", "--yes")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	var out strings.Builder
	done := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		fmt.Fprintln(&out, lines.Text())
		if !done && strings.Contains(lines.Text(), words) {
			done = true
			fmt.Fprintln(&out, "-> now")
			if err := then(cmd.Process); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	p.t.Logf("cluster up, until %q\n%s", words, out.String())
	if !done {
		p.t.Fatalf("up ended before it said %q: %v", words, err)
	}
	return out.String(), err
}

func send(signal syscall.Signal) func(*os.Process) error {
	return func(p *os.Process) error { return p.Signal(signal) }
}

// nodes are the kinds of cluster that this machine can have.
func nodes(t *testing.T) []cluster.Node {
	t.Helper()
	if err := cluster.Supported(); err != nil {
		t.Logf("only simulated nodes: %v", err)
		return []cluster.Node{cluster.Simulated}
	}
	return []cluster.Node{cluster.Real, cluster.Simulated}
}

// TestAnUnfinishedBuildLeavesNothing: a build that fails says why, and one that is interrupted ends.
func TestAnUnfinishedBuildLeavesNothing(t *testing.T) {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	fake := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = build ] || exec " + goCommand + " \"$@\"\necho gcc not found >&2\nexit 3\n"
	if err := os.WriteFile(filepath.Join(fake, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	t.Setenv("GOCACHE", goCache(t)) // Go's own is not the cluster's.
	path := os.Getenv("PATH")
	t.Setenv("XDG_CACHE_HOME", cache)
	for _, node := range nodes(t) {
		p := newProgram(t, "unbuilt", node)
		before := machine(t, p)
		t.Setenv("PATH", path)
		if out, err := p.upUntil("building kube-apiserver", send(syscall.SIGINT)); err == nil || !strings.Contains(out, "Error: building kube-apiserver: ") {
			t.Errorf("an interrupted build exits with %v", err)
		}
		t.Setenv("PATH", fake+":"+path)
		for _, command := range []string{"build", "up"} {
			if out := p.run(1, command); !strings.Contains(out, "Error: building") || !strings.Contains(out, "gcc not found") {
				t.Errorf("a failed %s does not say why", command)
			}
		}
		compare(t, before, machine(t, p))
		if goes := compilers(t, cache); len(goes) != 0 {
			t.Errorf("still building: %q", goes)
		}
		left, err := filepath.Glob(filepath.Join(cache, "pod-resizer", "*", "*"))
		if err != nil || len(left) != 0 {
			t.Errorf("left in the cache folder: %q, %v", left, err)
		}
		if es, err := os.ReadDir(p.dir); err == nil && len(es) != 0 {
			t.Errorf("left in the cluster's folder: %v", es)
		}
	}
}

// compilers are the processes that build into the cache folder.
func compilers(t *testing.T, cache string) []string {
	t.Helper()
	return processes(t, program{name: "none", dir: filepath.Join(cache, "pod-resizer")})
}

func goCache(t *testing.T) string {
	t.Helper()
	dir, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(dir))
}

// TestAClusterLeavesNoTrace ends clusters in every way there is, at every stage, and compares the machine with what it was.
func TestAClusterLeavesNoTrace(t *testing.T) {
	for _, node := range nodes(t) {
		t.Run(string(node), func(t *testing.T) { leavesNoTrace(t, node) })
	}
}

func leavesNoTrace(t *testing.T, node cluster.Node) {
	p := newProgram(t, "trace", node)
	// Builds for minutes where nothing is built yet, so no time limit of this test's own applies to it.
	if err := cluster.Build(context.Background(), cluster.Options{Node: node, Out: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	p.downAtTheEnd()
	before := machine(t, p)
	onlyLogsAreLeft := func(after string) {
		t.Helper()
		if es, err := os.ReadDir(p.dir); err != nil || len(es) != 1 || es[0].Name() != "logs" {
			t.Errorf("after %s, want the logs alone in the folder, got %v, %v", after, es, err)
		}
		compare(t, before, machine(t, p))
	}

	last := "kubelet started"
	if node == cluster.Simulated {
		last = "kwok started"
	}
	for _, stage := range []string{"starting Kubernetes", "etcd ready", "kube-apiserver ready", last} {
		if _, err := p.upUntil(stage, send(syscall.SIGINT)); err == nil {
			t.Fatal("an interrupted up exits with 0")
		}
		if es, err := os.ReadDir(p.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after an interrupt at %s the folder is still there: %v, %v", stage, es, err)
		}
		compare(t, before, machine(t, p))
	}
	out, err := p.upUntil("etcd ready", func(*os.Process) error { return p.kill(t, "etcd") })
	if err == nil || !strings.Contains(out, "etcd ended by itself (signal: killed)") {
		t.Errorf("when a component dies, up says %v", err)
	}
	onlyLogsAreLeft("the death of a component")

	if _, err := p.upUntil("kube-scheduler started", send(syscall.SIGKILL)); err == nil {
		t.Fatal("kill -9 had no effect")
	}
	p.run(1, "status")
	p.run(0, "up", "--yes")
	p.run(0, "up", "--yes") // says that it is up
	if node == cluster.Simulated {
		hasNoPower(t, p)
	}
	p.run(0, "status", "--output", "json")
	if out := p.run(7, "run", "--", "sh", "-c", `test -r "$KUBECONFIG" && exit 7`); !strings.Contains(out, "up already") {
		t.Error("run does not say that it uses the running cluster")
	}
	if node == cluster.Simulated { // A cluster that another run started would go away under its user.
		own := newProgram(t, "own", node)
		own.downAtTheEnd()
		if out := own.run(1, "run", "--", os.Args[0], "run", "--name", own.name, "--dir", own.dir, "--node", string(node), "--", "true"); !strings.Contains(out, "is up for another command") {
			t.Error("a run uses the cluster of another run")
		}
	}

	// A second one, of the same kind, beside it.
	second := newProgram(t, "second", node)
	second.downAtTheEnd()
	second.run(0, "up", "--yes")
	var both sync.WaitGroup
	for _, q := range []program{p, second} {
		both.Go(func() { resizePod(ctx, t, q) })
	}
	both.Wait()

	// The hardest end: nobody left to tidy up.
	s, err := cluster.ReadStatus(ctx, cluster.Options{Dir: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if left := slices.Concat(cgroups(t, p), processes(t, p)); len(left) == 0 {
		t.Error("a killed supervisor left nothing; this test then proves nothing about cleaning up")
	}
	p.run(0, "down")
	second.run(0, "status")
	second.run(0, "down")
	compare(t, before, machine(t, p))
	compare(t, nil, map[string][]string{"second cluster": slices.Concat(cgroups(t, second), processes(t, second))})
	for _, q := range []program{p, second} {
		if _, err := os.Stat(q.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after down the folder is still there: %v", err)
		}
	}
}

// TestBothKindsOfNode: with simulated nodes beside the real one, each runs the pods that are meant for it.
func TestBothKindsOfNode(t *testing.T) {
	if err := cluster.Supported(); err != nil {
		t.Skip(err)
	}
	if err := cluster.Build(context.Background(), cluster.Options{Node: cluster.Both, Out: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	p := newProgram(t, "both", cluster.Both)
	p.downAtTheEnd()
	p.run(0, "up", "--yes")
	if out := p.run(0, "status"); !strings.Contains(out, "11, both, ready") {
		t.Error("want 11 nodes")
	}
	resizePod(ctx, t, p)
	simulated := p
	simulated.node = cluster.Simulated // where the next pod is to go
	resizePod(ctx, t, simulated)
	p.run(0, "down")
}

// hasNoPower checks that the cluster's processes came up without capabilities.
func hasNoPower(t *testing.T, p program) {
	t.Helper()
	all := processes(t, p)
	if len(all) < 5 {
		t.Errorf("only these processes: %q", all)
	}
	for _, found := range all {
		dir, _, _ := strings.Cut(found, " ")
		status, err := os.ReadFile(dir + "/status")
		if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000\n") {
			t.Errorf("%s has capabilities: %v", found, err)
		}
	}
}

func (p program) downAtTheEnd() {
	p.t.Cleanup(func() {
		if err := cluster.Down(context.Background(), cluster.Options{Name: p.name, Dir: p.dir}); err != nil {
			p.t.Error(err)
		}
	})
}

// kill kills a component of the cluster.
func (p program) kill(t *testing.T, component string) error {
	t.Helper()
	for _, found := range processes(t, p) {
		dir, cmdline, _ := strings.Cut(found, " ")
		path, _, _ := strings.Cut(cmdline, " ")
		if filepath.Base(path) == component {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return err
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("no process of %s", component)
}

// resizePod takes a Guaranteed pod from 200m to 50m and reads that where the node keeps it: on a real one, where the pod
// also talks to the API server, in its cgroup.
func resizePod(ctx context.Context, t *testing.T, p program) {
	t.Helper()
	c, err := cluster.Open(cluster.Options{Dir: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	name := "on-" + string(p.node)
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "probe", Image: "probe:v1", ImagePullPolicy: corev1.PullNever,
			Resources: corev1.ResourceRequirements{Requests: limits, Limits: limits},
		}}},
	}
	if p.node == cluster.Simulated {
		pod.Spec.NodeSelector = map[string]string{cluster.SimulatedLabel: cluster.SimulatedValue}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: cluster.SimulatedLabel, Operator: corev1.TolerationOpExists}}
	} else {
		probe := filepath.Join(t.TempDir(), "probe")
		build := exec.CommandContext(ctx, "go", "build", "-o", probe, "./testdata/probe")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		p.run(0, "load-image", "probe:v1", "/probe="+probe)
	}
	pods := client.CoreV1().Pods("default")
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quota := func() int64 {
		if pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].Resources == nil {
			return 0
		}
		if p.node == cluster.Simulated {
			return pod.Status.ContainerStatuses[0].Resources.Limits.Cpu().MilliValue()
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
		for {
			if pod, err = pods.Get(ctx, name, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if done() {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("%s: not after 30 s: %+v", what, pod.Status)
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("%s: %s after %.1fs", p.name, what, time.Since(began).Seconds())
	}
	await("a quota of 200m", func() bool { return quota() == 200 })
	container := pod.Status.ContainerStatuses[0].ContainerID
	if p.node != cluster.Simulated {
		await("the pod's log", func() bool {
			log, err := pods.GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
			return err == nil && strings.Contains(string(log), "api server: 403")
		})
	}
	patch := `{"spec":{"containers":[{"name":"probe","resources":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}]}}`
	if _, err := pods.Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
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
	// A namespace that outlives its processes is held by a mount, seen above, or by its name in /run/netns, below.
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		found["links"] = append(found["links"], l.Name)
	}
	found["packet filter"] = packetFilter(t)
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

// packetFilter lists the chains of nftables and the tables of the older iptables.
func packetFilter(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		names, _ := os.ReadFile("/proc/net/" + file) // There once a table is.
		for _, name := range strings.Fields(string(names)) {
			found = append(found, file+" "+name)
		}
	}
	if os.Geteuid() != 0 {
		return found // Only root may ask, and change anything.
	}
	filter, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	chains, err := filter.ListChains()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) {
		return found // A kernel without nftables.
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, chain := range chains {
		rules, err := filter.GetRules(chain.Table, chain)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, fmt.Sprintf("chain %s %s of %d rules", chain.Table.Name, chain.Name, len(rules)))
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
	me := fmt.Sprintf("/proc/%d", os.Getpid())
	var found []string
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(dir + "/cmdline") // it may be gone by now
		cgroup, _ := os.ReadFile(dir + "/cgroup")
		if dir != me && strings.Contains(string(cmdline), p.dir) || strings.Contains(string(cgroup), p.name) {
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
