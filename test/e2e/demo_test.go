package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pod-resizer/test/deploy"
)

// TestDemo runs the demo as `make demo` does: with pod-resizer at work it must succeed, without it must fail and say what did
// not hold. It is not parallel to any other test, for it scales pod-resizer to 0.
func TestDemo(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "pod-resizer/test/demo").CombinedOutput(); err != nil {
		t.Fatalf("building the demo: %v\n%s", err, out)
	}
	demo := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(os.Environ(), "KEEP=")
		out, err := cmd.CombinedOutput()
		t.Logf("demo %v:\n%s", args, out)
		return string(out), err
	}
	if out, err := demo("--use-deployed"); err != nil || strings.Contains(out, "✗") || strings.Count(out, "✓") < 8 {
		t.Errorf("the demo failed: %v", err)
	}
	if out, err := demo("--use-deployed", "--without-resizer"); err == nil || !strings.Contains(out, "✗ lowered to 50m") || !strings.Contains(out, "did not hold") {
		t.Errorf("the demo did not fail without the resizer: %v", err)
	}
	// It has cleaned up, and pod-resizer is back.
	if _, err := shared.client.CoreV1().Namespaces().Get(t.Context(), "demo", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the demo's namespace is still there: %v", err)
	}
	if err := deploy.AwaitProduct(t.Context(), shared.cluster); err != nil {
		t.Error(err)
	}
}
