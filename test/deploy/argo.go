package deploy

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"pod-resizer/test/cluster"
)

// Names that the manifest of Argo Rollouts, and its controller, fix.
const (
	argoNamespace = "argo-rollouts"
	argoLease     = "argo-rollouts-controller-lock"
)

// ArgoRollouts builds the real Argo Rollouts controller, loads it as an image, applies the manifest that its module brings
// along and waits until it is at work.
func ArgoRollouts(ctx context.Context, c *cluster.Cluster, step Step) error {
	var program, module string
	if err := step.do("building the Argo Rollouts controller", func() (err error) {
		program, module, err = cluster.AddOn(ctx, "argo-rollouts", nil)
		return err
	}); err != nil {
		return err
	}
	return step.do("deploying Argo Rollouts", func() error {
		began := time.Now()
		// The module's folder is named such as argo-rollouts@v1.10.1: with another pin, the Deployment changes, too.
		image := strings.Replace(filepath.Base(module), "@", ":", 1)
		if err := c.LoadImage(ctx, cluster.Image{Ref: image, Files: map[string]string{"/rollouts-controller": program}}); err != nil {
			return err
		}
		if err := applyArgo(ctx, c, filepath.Join(module, "manifests", "install.yaml"), image); err != nil {
			return fmt.Errorf("applying the manifest of Argo Rollouts: %w", err)
		}
		return awaitArgo(ctx, c, began)
	})
}

// applyArgo does what `kubectl apply --namespace argo-rollouts` does, with the image that is there instead of one to pull.
func applyArgo(ctx context.Context, c *cluster.Cluster, path, image string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: argoNamespace}},
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return apply(ctx, c, path, func(object *unstructured.Unstructured) (bool, error) {
		switch object.GetKind() {
		case "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding": // These are in no namespace.
			return true, nil
		}
		object.SetNamespace(argoNamespace)
		if object.GetKind() != "Deployment" {
			return true, nil
		}
		containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return false, err
		}
		for _, container := range containers {
			if container, ok := container.(map[string]any); ok {
				container["image"], container["imagePullPolicy"] = image, "IfNotPresent"
				delete(container, "resources") // Ephemeral storage, which this node's kubelet does not count out.
			}
		}
		return true, unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers")
	})
}

// awaitArgo waits until the controller leads, which it renews every two seconds: it has no readiness probe, and so is Ready
// long before it is at work.
func awaitArgo(ctx context.Context, c *cluster.Cluster, began time.Time) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, readyTimeout, true, func(ctx context.Context) (bool, error) {
		lease, err := client.CoordinationV1().Leases(argoNamespace).Get(ctx, argoLease, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("reading the lease of Argo Rollouts: %w", err)
		}
		return lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(began), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the controller of Argo Rollouts to lead (look at its pod in namespace %s): %w", argoNamespace, err)
	}
	return nil
}
