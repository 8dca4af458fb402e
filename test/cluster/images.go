package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// nonRoot is the user id that distroless images made customary.
const nonRoot = "65532:65532"

// Image describes an image made of a few files on an empty base.
type Image struct {
	Ref        string            // such as pod-resizer:v0.1.0; the kubelet finds it with imagePullPolicy Never or IfNotPresent
	Files      map[string]string // absolute path in the image: file on the host
	Entrypoint []string          // default: the only file
	User       string            // default: 65532:65532
}

// Build makes the image. The same files always give the same image.
func (i Image) Build() (v1.Image, error) {
	entrypoint := i.Entrypoint
	if len(entrypoint) == 0 {
		if len(i.Files) != 1 {
			return nil, fmt.Errorf("building image %s: it needs an Entrypoint, having %d files", i.Ref, len(i.Files))
		}
		entrypoint = slices.Collect(maps.Keys(i.Files))
	}
	user := i.User
	if user == "" {
		user = nonRoot
	}
	content, err := i.layer()
	if err != nil {
		return nil, fmt.Errorf("building image %s: %w", i.Ref, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, fmt.Errorf("building image %s: %w", i.Ref, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("building image %s: %w", i.Ref, err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("building image %s: %w", i.Ref, err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Entrypoint: entrypoint, User: user, WorkingDir: "/"}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return nil, fmt.Errorf("building image %s: %w", i.Ref, err)
	}
	return image, nil
}

// layer is a tar of the files and their parent folders, in order and without times or owners of this machine.
func (i Image) layer() ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{"/": true}
	for _, file := range slices.Sorted(maps.Keys(i.Files)) {
		if !path.IsAbs(file) {
			return nil, fmt.Errorf("file %q: its path in the image must be absolute", file)
		}
		var parents []string
		for dir := path.Dir(file); !made[dir]; dir = path.Dir(dir) {
			made[dir] = true
			parents = append(parents, dir)
		}
		for _, dir := range slices.Backward(parents) {
			h := &tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: time.Unix(0, 0)}
			if err := w.WriteHeader(h); err != nil {
				return nil, err
			}
		}
		info, err := os.Stat(i.Files[file])
		if err != nil {
			return nil, err
		}
		content, err := os.ReadFile(i.Files[file])
		if err != nil {
			return nil, err
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(file, "/"), Size: int64(len(content)), ModTime: time.Unix(0, 0),
			Mode: 0o444 | int64(info.Mode().Perm()&0o111),
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

// LoadImage makes the image and imports it into the cluster's containerd, replacing one of the same name.
func (c *Cluster) LoadImage(ctx context.Context, i Image) error {
	if !c.state.Node.real() {
		return fmt.Errorf("loading image %s: simulated nodes run nothing, and take no images", i.Ref)
	}
	image, err := i.Build()
	if err != nil {
		return err
	}
	// containerd knows images by their full name only, with the registry that a short one stands for.
	tag, err := name.NewTag(i.Ref)
	if err != nil {
		return fmt.Errorf("loading image %s: %w", i.Ref, err)
	}
	f, err := os.CreateTemp(filepath.Join(c.dir, tmpDir), "image-*.tar")
	if err != nil {
		return fmt.Errorf("loading image %s: %w", i.Ref, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := tarball.Write(tag, image, f); err != nil {
		return fmt.Errorf("loading image %s: %w", i.Ref, err)
	}
	// containerd's socket lies on a tmpfs of the supervisor's, which the kernel shows here; that path is also short
	// enough for a socket however long the folder's is.
	socket := fmt.Sprintf("/proc/%d/root%s", c.state.Supervisor.PID, containerdSocket)
	out, err := exec.CommandContext(ctx, c.state.Ctr, "-a", socket, "-n", "k8s.io", "images", "import", f.Name()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("importing image %s: %w: %s", i.Ref, err, out)
	}
	return nil
}
