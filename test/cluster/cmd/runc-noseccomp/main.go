// Command runc-noseccomp is what containerd runs as runc. The kubelet asks for the RuntimeDefault seccomp profile for
// every sandbox, and a runc that was built without libseccomp, a C library that a fresh machine lacks, refuses any
// bundle that names a profile. So this drops the profile from the bundle and becomes runc. A test cluster of one's own
// images loses nothing by it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	err := dropSeccomp(os.Args)
	if err == nil {
		var runc string
		if runc, err = exec.LookPath("runc"); err == nil {
			err = syscall.Exec(runc, append([]string{"runc"}, os.Args[1:]...), os.Environ())
		}
	}
	fmt.Fprintln(os.Stderr, "runc-noseccomp:", err)
	os.Exit(1)
}

func dropSeccomp(args []string) error {
	i := slices.Index(args, "--bundle")
	if i < 0 || i+1 >= len(args) {
		return nil // only create and run read a bundle
	}
	file := filepath.Join(args[i+1], "config.json")
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	// RawMessage keeps every other field as it is, those included that this program has never heard of.
	var spec, linux map[string]json.RawMessage
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("parsing %s: %w", file, err)
	}
	if err := json.Unmarshal(spec["linux"], &linux); err != nil {
		return fmt.Errorf("parsing linux in %s: %w", file, err)
	}
	delete(linux, "seccomp")
	if spec["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if b, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}
