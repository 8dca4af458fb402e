// Package deploy puts pod-resizer and the sample workload into a test cluster the way a stranger would: the binary as an
// image, and manifests/install.yaml exactly as it stands.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"pod-resizer/test/cluster"
)

// Names that manifests/install.yaml fixes.
const (
	Namespace    = "pod-resizer"
	Name         = "pod-resizer"
	productImage = "pod-resizer:v0.1.0"
)

// SampleImage is the workload of test/sample.
const SampleImage = "sample:v0.1.0"

// readyTimeout is far above the few seconds that two replicas take on two cores.
const readyTimeout = 90 * time.Second

// Step tells a person that something has begun and returns what tells its end.
type Step func(text string) (done func(error))

// Steps tells it on out.
func Steps(out io.Writer) Step {
	progress := cluster.NewProgress(out)
	return func(text string) func(error) { return progress.Step(text, 0) }
}

// do runs one step.
func (s Step) do(text string, f func() error) error {
	done := s(text)
	err := f()
	done(err)
	return err
}

// Product builds pod-resizer from this checkout (race: with Go's race detector), applies manifests/install.yaml and waits
// until every replica is ready. On a real node it runs as the manifest says; on simulated nodes, which run nothing, it
// takes the manifest's Deployment's place as a process of this machine.
func Product(ctx context.Context, c *cluster.Cluster, race bool, step Step) error {
	flags := []string{"-ldflags", "-s -w -X main.version=v0.1.0"}
	cgo := "0"
	if race {
		// The race detector needs cgo, and the image has no libc: link it in. Otherwise built as `go test -race` builds, so
		// that the two share what is compiled.
		flags, cgo = []string{"-race", "-ldflags", "-linkmode external -extldflags -static -X main.version=race"}, "1"
		if c.Node() == cluster.Simulated {
			flags[2] = "-X main.version=race"
		}
	}
	binary := productBinary(c)
	if err := step.do("building pod-resizer", func() error {
		if c.Node() == cluster.Simulated {
			// It goes first: another binary under its name would not be another program to the cluster.
			if err := c.RunBeside(ctx); err != nil {
				return err
			}
		}
		return goBuild(ctx, binary, Root(), "./cmd/pod-resizer", cgo, flags...)
	}); err != nil {
		return err
	}
	return step.do("deploying pod-resizer", func() error {
		if c.Node() == cluster.Simulated {
			return startProcess(ctx, c)
		}
		if err := c.LoadImage(ctx, cluster.Image{Ref: productImage, Files: map[string]string{"/pod-resizer": binary}}); err != nil {
			return err
		}
		if err := Apply(ctx, c, Manifest()); err != nil {
			return err
		}
		// Pods of an earlier deployment go on running what the image's name stood for then.
		if err := deletePods(ctx, c); err != nil {
			return err
		}
		return AwaitProduct(ctx, c)
	})
}

// RemoveProduct takes away what Product has put in.
func RemoveProduct(ctx context.Context, c *cluster.Cluster) error {
	if c.Node() == cluster.Simulated {
		if err := c.RunBeside(ctx); err != nil {
			return err
		}
	}
	return Remove(ctx, c, Manifest())
}

// productBinary lies in the cluster's folder, and goes with it.
func productBinary(c *cluster.Cluster) string { return filepath.Join(c.Temp(), "pod-resizer") }

// Manifest is the file that installs pod-resizer.
func Manifest() string { return filepath.Join(Root(), "manifests", "install.yaml") }

func deletePods(ctx context.Context, c *cluster.Cluster) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	if err := client.CoreV1().Pods(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("deleting the pods of pod-resizer: %w", err)
	}
	return nil
}

// Sample builds the sample workload and loads it as an image; simulated nodes run none.
func Sample(ctx context.Context, c *cluster.Cluster, step Step) error {
	if c.Node() == cluster.Simulated {
		return nil
	}
	return step.do("building the sample workload", func() error {
		binary := filepath.Join(c.Temp(), "sample")
		if err := goBuild(ctx, binary, filepath.Join(Root(), "test"), "./sample", "0", "-ldflags", "-s -w"); err != nil {
			return err
		}
		return c.LoadImage(ctx, cluster.Image{Ref: SampleImage, Files: map[string]string{"/sample": binary}})
	})
}

// Scale sets the number of replicas and waits until it is reached.
func Scale(ctx context.Context, c *cluster.Cluster, replicas int32) error {
	if c.Node() == cluster.Simulated {
		return scaleProcess(ctx, c, replicas)
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	deployments := client.AppsV1().Deployments(Namespace)
	scale, err := deployments.GetScale(ctx, Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the scale of pod-resizer: %w", err)
	}
	scale.Spec.Replicas = replicas
	if _, err := deployments.UpdateScale(ctx, Name, scale, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("scaling pod-resizer: %w", err)
	}
	return AwaitProduct(ctx, c)
}

// AwaitProduct waits until exactly the wanted replicas are there and ready.
func AwaitProduct(ctx context.Context, c *cluster.Cluster) error {
	if c.Node() == cluster.Simulated {
		return awaitProcess(ctx, c)
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	var last appsv1.DeploymentStatus
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, readyTimeout, true, func(ctx context.Context) (bool, error) {
		d, err := client.AppsV1().Deployments(Namespace).Get(ctx, Name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("reading the Deployment of pod-resizer: %w", err)
		}
		last = d.Status
		pods, err := client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
		if err != nil {
			return false, fmt.Errorf("listing the pods of pod-resizer: %w", err)
		}
		want := *d.Spec.Replicas
		return last.ObservedGeneration >= d.Generation && last.UpdatedReplicas == want && last.ReadyReplicas == want &&
			len(pods.Items) == int(want), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for pod-resizer (%d of %d replicas ready): %w", last.ReadyReplicas, last.Replicas, err)
	}
	return nil
}

// Apply applies every document of a manifest, server-side.
func Apply(ctx context.Context, c *cluster.Cluster, path string) error {
	return apply(ctx, c, path, func(*unstructured.Unstructured) (bool, error) { return true, nil })
}

// apply applies those documents for which edit returns true, with the changes that it makes.
func apply(ctx context.Context, c *cluster.Cluster, path string, edit func(*unstructured.Unstructured) (bool, error)) error {
	return eachObject(c, path, func(client dynamic.NamespaceableResourceInterface, object *unstructured.Unstructured) error {
		if wanted, err := edit(object); err != nil || !wanted {
			return err
		}
		// An empty namespace is right for what has none.
		_, err := client.Namespace(object.GetNamespace()).Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "deploy", Force: true})
		return err
	}, false)
}

// Remove deletes every object of a manifest, the last first: the webhook goes before what answers it. It returns when the
// namespaces are gone, because nothing can be created in them before.
func Remove(ctx context.Context, c *cluster.Cluster, path string) error {
	if err := eachObject(c, path, func(client dynamic.NamespaceableResourceInterface, object *unstructured.Unstructured) error {
		err := client.Namespace(object.GetNamespace()).Delete(ctx, object.GetName(), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}, true); err != nil {
		return err
	}
	return eachObject(c, path, func(client dynamic.NamespaceableResourceInterface, object *unstructured.Unstructured) error {
		if object.GetKind() != "Namespace" {
			return nil
		}
		return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, readyTimeout, true, func(ctx context.Context) (bool, error) {
			_, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return true, nil
			}
			return false, err
		})
	}, true)
}

func eachObject(c *cluster.Cluster, path string, f func(dynamic.NamespaceableResourceInterface, *unstructured.Unstructured) error, reverse bool) error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the dynamic client: %w", err)
	}
	typed, err := c.Client()
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(typed.Discovery()))
	objects, err := read(path)
	if err != nil {
		return err
	}
	if reverse {
		slices.Reverse(objects)
	}
	for _, object := range objects {
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("%s: finding the resource of %s: %w", path, kind, err)
		}
		if err := f(client.Resource(mapping.Resource), object); err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

func read(path string) ([]*unstructured.Unstructured, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", path, len(objects)+1, err)
		}
		if len(object.Object) > 0 { // A comment alone is an empty document.
			objects = append(objects, object)
		}
	}
}

// goBuild builds one program.
func goBuild(ctx context.Context, binary, dir, pkg, cgo string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false", "-o", binary}, append(flags, pkg)...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// Root is the repository's folder, known from where this file was compiled.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
