package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// pin is a set of programs that one Go module builds: a folder under pins, whose go.mod and go.sum fix every version,
// or, for the programs of this repository, the test module itself.
type pin struct {
	Name     string
	Use      use
	Dir      string // where to run go build
	Sources  []string
	Tags     string
	LDFlags  string
	CGO      bool
	Programs []program
}

// use says which clusters are made of a pin's programs.
type use int

const (
	always        use = iota
	withReal          // clusters with a real node
	withSimulated     // clusters with simulated nodes
	addOn             // only those that ask for it with AddOn
)

type program struct {
	Name    string
	Package string
	Seconds int // a cold build, in this order, on the two cores of the machine on which it was measured
}

// binaries maps a program's name to its file.
type binaries map[string]string

func (b binaries) dirs() []string {
	var dirs []string
	for _, path := range b {
		dirs = append(dirs, filepath.Dir(path))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// DefaultKubernetes is the version that Up starts when Options name none.
const DefaultKubernetes = "1.37.2"

// Versions are the Kubernetes versions that are pinned here: those of the folders pins/kubernetes-VERSION.
func Versions() ([]string, error) {
	root, err := sourceDir()
	if err != nil {
		return nil, err
	}
	return versions(root)
}

func versions(root string) ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "pins", "kubernetes-*"))
	if err != nil {
		return nil, fmt.Errorf("listing the pinned versions: %w", err)
	}
	for i, dir := range dirs {
		dirs[i] = strings.TrimPrefix(filepath.Base(dir), "kubernetes-")
	}
	return dirs, nil
}

// pins lists everything that clusters are made of. root is the folder of this package.
func pins(root, kubernetes string) ([]pin, error) {
	known, err := versions(root)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(known, kubernetes) {
		return nil, fmt.Errorf("kubernetes %q is not pinned here: use one of %s", kubernetes, strings.Join(known, ", "))
	}
	const strip = "-s -w"
	const version = "k8s.io/component-base/version"
	parts := strings.Split(kubernetes, ".")
	module := func(dir string) string { return filepath.Join(root, "pins", dir) }
	own := "pod-resizer/test/cluster/cmd/"
	ownInternal := filepath.Join(root, "internal")
	// Without these the API server says that it is v0.0.0-master.
	kubernetesFlags := fmt.Sprintf("%s -X %s.gitVersion=v%s -X %s.gitMajor=%s -X %s.gitMinor=%s",
		strip, version, kubernetes, version, parts[0], version, parts[1])
	return []pin{{
		Name: "kubernetes", Dir: module("kubernetes-" + kubernetes), LDFlags: kubernetesFlags,
		Programs: []program{
			{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 390},
			{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", 90},
			{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", 30},
		},
	}, {
		Name: "kubelet", Use: withReal, Dir: module("kubernetes-" + kubernetes), LDFlags: kubernetesFlags,
		Programs: []program{{"kubelet", "k8s.io/kubernetes/cmd/kubelet", 60}},
	}, {
		Name: "etcd", Dir: module("etcd"), LDFlags: strip,
		Programs: []program{{"etcd", "go.etcd.io/etcd/server/v3", 105}},
	}, {
		Name: "containerd", Use: withReal, Dir: module("containerd"), LDFlags: strip, Tags: "no_btrfs,no_devmapper,no_zfs",
		Programs: []program{
			{"containerd", "github.com/containerd/containerd/v2/cmd/containerd", 110},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", 10},
			{"ctr", "github.com/containerd/containerd/v2/cmd/ctr", 20},
		},
	}, {
		Name: "runc", Use: withReal, Dir: module("runc"), LDFlags: strip, CGO: true,
		Programs: []program{{"runc", "github.com/opencontainers/runc", 25}},
	}, {
		Name: "cni", Use: withReal, Dir: module("runc"), LDFlags: strip,
		Programs: []program{
			{"bridge", "github.com/containernetworking/plugins/plugins/main/bridge", 8},
			{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local", 3},
			{"loopback", "github.com/containernetworking/plugins/plugins/main/loopback", 3},
		},
	}, {
		Name: "kwok", Use: withSimulated, Dir: module("kwok"), LDFlags: strip,
		Programs: []program{{"kwok", "sigs.k8s.io/kwok/cmd/kwok", 80}},
	}, {
		Name: "argo-rollouts", Use: addOn, Dir: module("argo-rollouts"), LDFlags: strip,
		Programs: []program{{"rollouts-controller", "github.com/argoproj/argo-rollouts/cmd/rollouts-controller", 200}},
	}, {
		Name: "supervisor", Dir: filepath.Dir(root), LDFlags: strip,
		Sources:  []string{ownInternal, filepath.Join(root, "cmd", "supervisor")},
		Programs: []program{{"supervisor", own + "supervisor", 8}},
	}, {
		Name: "own", Use: withReal, Dir: filepath.Dir(root), LDFlags: strip,
		Sources: []string{ownInternal, filepath.Join(root, "cmd", "pause"), filepath.Join(root, "cmd", "runc-noseccomp")},
		Programs: []program{
			{"pause", own + "pause", 2},
			{"runc-noseccomp", own + "runc-noseccomp", 2},
		},
	}}, nil
}

// sourceDir is this package's folder. The pins are modules of their own, which cannot be embedded into a program.
func sourceDir() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Dir(file)
	if _, err := os.Stat(filepath.Join(dir, "pins")); err != nil {
		return "", fmt.Errorf("finding the pinned versions: %w (run this with go run or go test from a checkout, without -trimpath)", err)
	}
	return dir, nil
}

// cacheDir is the user's cache folder of this project.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w (set HOME or XDG_CACHE_HOME)", err)
	}
	return filepath.Join(dir, "pod-resizer"), nil
}

// environment is what go build gets: the caller's settings for the proxy and the caches, but no flags of the caller's,
// which would change what is built.
func (p pin) environment() []string {
	cgo := "0"
	if p.CGO {
		cgo = "1"
	}
	return append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOWORK=off", "CGO_ENABLED="+cgo)
}

// hash names one state of everything that decides what the binaries are.
func (p pin) hash(ctx context.Context) (string, error) {
	h := sha256.New()
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH")
	cmd.Dir, cmd.Env = p.Dir, p.environment()
	env, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("asking go for its version: %w", withStderr(err))
	}
	fmt.Fprintf(h, "%s %s %s %v %v\n", env, p.Tags, p.LDFlags, p.CGO, p.Programs)
	files := []string{filepath.Join(p.Dir, "go.mod"), filepath.Join(p.Dir, "go.sum")}
	for _, dir := range p.Sources {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return "", fmt.Errorf("hashing the sources of %s: %w", p.Name, err)
		}
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("hashing the sources of %s: %w", p.Name, err)
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(file), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// Build builds what is missing of a cluster's programs into the user's cache folder. It needs neither root nor Linux's
// namespaces.
func Build(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	_, err = build(ctx, o.Kubernetes, NewProgress(o.Out), o.Node.uses()...)
	return err
}

// AddOn builds, where that is missing, a program that runs in a cluster but is no part of it, such as another project's
// controller. It returns the program's file and the folder of the module it comes from, with its manifests.
func AddOn(ctx context.Context, name string, out io.Writer) (program, moduleDir string, err error) {
	root, err := sourceDir()
	if err != nil {
		return "", "", err
	}
	all, err := pins(root, DefaultKubernetes)
	if err != nil {
		return "", "", err
	}
	i := slices.IndexFunc(all, func(p pin) bool { return p.Use == addOn && p.Name == name })
	if i < 0 {
		return "", "", fmt.Errorf("%q is no add-on that is pinned here", name)
	}
	p := all[i]
	built, err := buildAll(ctx, []pin{p}, NewProgress(out))
	if err != nil {
		return "", "", err
	}
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Module.Dir}}", p.Programs[0].Package)
	list.Dir, list.Env = p.Dir, p.environment()
	dir, err := list.Output()
	if err != nil {
		return "", "", fmt.Errorf("finding the module of %s: %w", name, withStderr(err))
	}
	return built[p.Programs[0].Name], strings.TrimSpace(string(dir)), nil
}

func build(ctx context.Context, kubernetes string, progress *Progress, uses ...use) (binaries, error) {
	root, err := sourceDir()
	if err != nil {
		return nil, err
	}
	all, err := pins(root, kubernetes)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p pin) bool { return !slices.Contains(uses, p.Use) })
	return buildAll(ctx, all, progress)
}

// buildAll builds those pins that are not in the cache folder yet.
func buildAll(ctx context.Context, all []pin, progress *Progress) (binaries, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return nil, fmt.Errorf("finding go: %w (with sudo, keep the PATH: sudo env \"PATH=$PATH\" ...)", err)
	}
	built := binaries{}
	var missing []pin
	targets := map[string]string{}
	count, seconds := 0, 0
	for _, p := range all {
		hash, err := p.hash(ctx)
		if err != nil {
			return nil, err
		}
		target := filepath.Join(cache, "bin", p.Name+"-"+hash)
		targets[p.Name] = target
		for _, prog := range p.Programs {
			built[prog.Name] = filepath.Join(target, prog.Name)
		}
		if _, err := os.Stat(target); err != nil {
			missing = append(missing, p)
			for _, prog := range p.Programs {
				count, seconds = count+1, seconds+prog.Seconds
			}
		}
	}
	if count == 0 {
		return built, nil
	}
	if seconds > 20 { // more than this repository's own
		progress.Note(fmt.Sprintf("%s to build once, about %s on %d cores, less where Go's build cache helps; kept in %s",
			plural(count, "program"), short(estimate(seconds)), runtime.GOMAXPROCS(0), filepath.Join(cache, "bin")))
	}
	n := 0
	for _, p := range missing {
		if err := p.build(ctx, targets[p.Name], progress, &n, count); err != nil {
			return nil, err
		}
	}
	return built, nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// estimate scales what was measured on two cores to the cores at hand. Compiling, most of the work, runs in parallel.
func estimate(seconds int) time.Duration {
	return max(time.Second, time.Duration(seconds)*time.Second*2/time.Duration(runtime.GOMAXPROCS(0)))
}

// build builds into a folder beside the target and renames it, so that the target is complete whenever it exists.
func (p pin) build(ctx context.Context, target string, progress *Progress, n *int, count int) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("making the folder for binaries: %w", err)
	}
	unlock, err := waitForLock(ctx, target+".lock", progress)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(target); err == nil {
		*n += len(p.Programs)
		return nil // another process has built it meanwhile
	}
	tmp := target + ".tmp"
	if err := os.RemoveAll(tmp); err != nil { // left by a kill -9
		return fmt.Errorf("removing a half-finished build: %w", err)
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return fmt.Errorf("making the folder for binaries: %w", err)
	}
	defer os.RemoveAll(tmp)
	for _, prog := range p.Programs {
		*n++
		done := progress.Step(fmt.Sprintf("building %s (%d of %d)", prog.Name, *n, count), estimate(prog.Seconds))
		err := p.buildOne(ctx, prog, filepath.Join(tmp, prog.Name))
		done(err)
		if err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, target); err != nil {
		return fmt.Errorf("keeping the binaries: %w", err)
	}
	return nil
}

func (p pin) buildOne(ctx context.Context, prog program, out string) error {
	args := []string{"build", "-trimpath"}
	if p.Tags != "" {
		args = append(args, "-tags", p.Tags)
	}
	args = append(args, "-ldflags", p.LDFlags, "-o", out, prog.Package)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = p.Dir, p.environment()
	// go removes its own temporary files on an interrupt; the grace is for its compilers to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("building %s: %w", prog.Name, ctx.Err())
	}
	if err != nil {
		hint := ""
		if p.CGO {
			hint = " (needs a C compiler, such as gcc)"
		}
		return fmt.Errorf("building %s in %s: %w%s\n%s", prog.Name, p.Dir, err, hint, output)
	}
	return nil
}

// waitForLock waits while another process builds the same. The kernel drops the lock with its process. The file is
// removed by its last holder, which is why a lock on a file that is no longer there does not count.
func waitForLock(ctx context.Context, path string, progress *Progress) (unlock func(), err error) {
	var done func(error)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("locking the build: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			mine, err := f.Stat()
			if now, nowErr := os.Stat(path); err == nil && nowErr == nil && os.SameFile(mine, now) {
				if done != nil {
					done(nil)
				}
				return func() { os.Remove(path); f.Close() }, nil
			}
			f.Close()
			continue
		}
		f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking the build: %w", err)
		}
		if done == nil {
			done = progress.Step("waiting for another process that builds the same", 0)
		}
		select {
		case <-ctx.Done():
			done(ctx.Err())
			return nil, fmt.Errorf("waiting for another build: %w", ctx.Err())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// withStderr adds what a program said to the error with which it ended.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
