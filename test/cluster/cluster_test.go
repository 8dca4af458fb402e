package cluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func TestRunningSaysHowFarAndHowLong(t *testing.T) {
	for _, c := range []struct {
		elapsed, estimate time.Duration
		want              string
	}{
		{0, 390 * time.Second, "building x (1 of 9), about 6m30s"},
		{130 * time.Second, 390 * time.Second, "building x (1 of 9), 2m10s of about 6m30s"},
		{0, 0, "building x (1 of 9)"},
		{2500 * time.Millisecond, 0, "building x (1 of 9), 2.5s"},
	} {
		if got := running("building x (1 of 9)", c.elapsed, c.estimate); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got, want := ended("x", 61*time.Second, errors.New("no")), "x: stopped after 1m1s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProgressWithoutATerminalIsWholeLines(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out)
	done := p.Step("starting", 12*time.Second)
	p.Note("  etcd ready after 0.5s")
	done(nil)
	if got, want := out.String(), "starting, about 12s\n  etcd ready after 0.5s\nstarting: done in 0.0s\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHashChangesWithWhateverDecidesTheBinaries(t *testing.T) {
	dir := t.TempDir()
	write := func(file, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module x\n\ngo 1.26.0\n")
	write("go.sum", "")
	write("a.go", "package a")
	hash := func(p pin) string {
		t.Helper()
		p.Dir, p.Sources = dir, []string{dir}
		h, err := p.hash(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := hash(pin{})
	seen := []string{first}
	for name, change := range map[string]func() pin{
		"ldflags": func() pin { return pin{LDFlags: "-s"} },
		"tags":    func() pin { return pin{Tags: "x"} },
		"cgo":     func() pin { return pin{CGO: true} },
		"go.sum":  func() pin { write("go.sum", "y"); return pin{} },
		"source":  func() pin { write("a.go", "package b"); return pin{} },
	} {
		h := hash(change())
		if slices.Contains(seen, h) && h != first {
			t.Errorf("%s: hash %s was seen before", name, h)
		}
		if h == first {
			t.Errorf("%s does not change the hash", name)
		}
		seen = append(seen, h)
		write("go.sum", "")
		write("a.go", "package a")
	}
	write("a_test.go", "package a")
	if hash(pin{}) != first {
		t.Error("a test file changes the hash")
	}
}

func TestUnknownKubernetesNamesThePinnedOnes(t *testing.T) {
	root, err := sourceDir()
	if err != nil {
		t.Fatal(err)
	}
	_, err = pins(root, "1.2.3")
	if err == nil || !strings.Contains(err.Error(), "1.36.3, "+DefaultKubernetes) {
		t.Errorf("got %v", err)
	}
}

func TestAPinsFolderIsNamedAfterItsVersion(t *testing.T) {
	root, err := sourceDir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := Versions()
	if err != nil || !slices.Contains(all, DefaultKubernetes) {
		t.Fatalf("%v, %v", all, err)
	}
	for _, version := range all {
		mod, err := os.ReadFile(filepath.Join(root, "pins", "kubernetes-"+version, "go.mod"))
		if err != nil || !strings.Contains(string(mod), "\tk8s.io/kubernetes v"+version+" ") {
			t.Errorf("pins/kubernetes-%s/go.mod pins another version: %v", version, err)
		}
	}
}

// TestEveryPinnedVersionIsTold: the README promises each, and the unit tests replay a recording of each.
func TestEveryPinnedVersionIsTold(t *testing.T) {
	root, err := sourceDir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := Versions()
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range all {
		if !strings.Contains(string(readme), version) {
			t.Errorf("the README does not name %s", version)
		}
		if _, err := os.Stat(filepath.Join(root, "..", "..", "resizer", "testdata", "recorded", version)); err != nil {
			t.Errorf("make record KUBERNETES=%s: %v", version, err)
		}
	}
}

func TestReadQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		v2    bool
		want  Quota
		milli int64
	}{
		{"v1", map[string]string{"cpu.cfs_quota_us": "5000\n", "cpu.cfs_period_us": "100000\n"}, false, Quota{5000, 100000}, 50},
		{"v1 without a limit", map[string]string{"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, false, Quota{-1, 100000}, -1},
		{"v2", map[string]string{"cpu.max": "20000 100000\n"}, true, Quota{20000, 100000}, 200},
		{"v2 without a limit", map[string]string{"cpu.max": "max 100000\n"}, true, Quota{-1, 100000}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for f, content := range c.files {
				if err := os.WriteFile(filepath.Join(dir, f), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := readQuota(dir, c.v2)
			if err != nil || got != c.want || got.MilliCPU() != c.milli {
				t.Errorf("got %+v (%dm), %v; want %+v (%dm)", got, got.MilliCPU(), err, c.want, c.milli)
			}
		})
	}
}

func TestAFolderWithOtherFilesIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := claim(dir); err != nil {
		t.Errorf("an empty folder is refused: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Down(context.Background(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("got %v", err)
	}
}

func TestKubeconfigIsCompleteAndPrivate(t *testing.T) {
	dir := t.TempDir()
	ca, err := newAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.issue(identity{File: "admin", Name: "admin", Groups: []string{"system:masters"}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := ca.writeKubeconfig(path, "https://127.0.0.1:1234", "admin"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil || config.Host != "https://127.0.0.1:1234" || len(config.CAData) == 0 || len(config.CertData) == 0 || len(config.KeyData) == 0 {
		t.Errorf("got %+v, %v", config, err)
	}
}

func TestTheSameFilesGiveTheSameImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app")
	if err := os.WriteFile(file, []byte("#!"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := Image{Ref: "app:v1", Files: map[string]string{"/usr/bin/app": file}}
	digest := func() string {
		t.Helper()
		i, err := image.Build()
		if err != nil {
			t.Fatal(err)
		}
		d, err := i.Digest()
		if err != nil {
			t.Fatal(err)
		}
		config, err := i.ConfigFile()
		if err != nil || config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/app"}) {
			t.Errorf("config %+v, %v", config, err)
		}
		return d.String()
	}
	first := digest()
	if err := os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if again := digest(); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	image.Files["/second"] = file
	if _, err := image.Build(); err == nil {
		t.Error("two files and no entrypoint are accepted")
	}
}
