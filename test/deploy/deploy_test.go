package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pod-resizer/test/cluster"
)

// TestDockerfileMakesTheSameImage compares what can be compared without docker: base, file, user and entrypoint of the
// Dockerfile's last stage against the image that the test cluster runs.
func TestDockerfileMakesTheSameImage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Root(), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	for line := range strings.Lines(string(text)) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if instruction == "FROM" {
			clear(last)
		}
		last[instruction] = rest
	}

	image := cluster.Image{Ref: productImage, Files: map[string]string{"/pod-resizer": filepath.Join(Root(), "go.mod")}} // Any file.
	built, err := image.Build()
	if err != nil {
		t.Fatal(err)
	}
	config, err := built.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	var entrypoint []string
	if err := json.Unmarshal([]byte(last["ENTRYPOINT"]), &entrypoint); err != nil {
		t.Fatal(err)
	}
	if last["FROM"] != "scratch" || last["COPY"] != "--from=build /pod-resizer /pod-resizer" ||
		last["USER"] != config.Config.User || !slices.Equal(entrypoint, config.Config.Entrypoint) {
		t.Errorf("the Dockerfile ends with %q, the cluster's image has user %q and entrypoint %q",
			last, config.Config.User, config.Config.Entrypoint)
	}
	layers, err := built.Layers()
	if err != nil || len(layers) != 1 {
		t.Errorf("%d layers, %v", len(layers), err)
	}
}
