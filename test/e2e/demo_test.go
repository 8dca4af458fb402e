package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

// demo runs the demo as `make demo` does, but with the pod-resizer that is there.
func demo(t *testing.T, args ...string) (string, error) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "pod-resizer/test/demo").CombinedOutput(); err != nil {
		t.Fatalf("building the demo: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary, append(args, "--use-deployed")...)
	cmd.Env = append(os.Environ(), "KEEP=")
	out, err := cmd.CombinedOutput()
	t.Logf("demo %v:\n%s", args, out)
	return string(out), err
}

// TestDemo: with pod-resizer at work it succeeds.
func TestDemo(t *testing.T) {
	t.Parallel()
	claims := 8
	if shared.cluster.Node() == cluster.Simulated {
		claims = 5
	}
	out, err := demo(t)
	if err != nil || strings.Contains(out, "✗") || strings.Count(out, "✓") != claims {
		t.Errorf("the demo failed: %v", err)
	}
	if simulated := strings.Contains(out, "Columns with a * are simulated"); simulated != (shared.cluster.Node() == cluster.Simulated) {
		t.Errorf("the demo says what is simulated: %t", simulated)
	}
	if _, err := shared.client.CoreV1().Namespaces().Get(t.Context(), "demo", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the demo's namespace is still there: %v", err)
	}
}

// TestDemoFails: without pod-resizer it fails and says what did not hold. It is not parallel to any other test, for it scales
// pod-resizer to 0.
func TestDemoFails(t *testing.T) {
	out, err := demo(t, "--without-resizer", "--patience", "5s")
	if err == nil || !strings.Contains(out, "✗ lowered to 50m") || !strings.Contains(out, "did not hold") {
		t.Errorf("the demo did not fail without the resizer: %v", err)
	}
	if err := deploy.AwaitProduct(t.Context(), shared.cluster); err != nil { // It is back.
		t.Error(err)
	}
}
