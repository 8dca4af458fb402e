// Command demo shows the main job on the running test cluster: of two Deployments of one workload, the one that is opted in
// starts with four times the CPU, and gives it back without a restart. Every claim it prints is checked.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

const namespace = "demo"

func main() { os.Exit(exitCode()) }

// exitCode is main with deferred calls that happen.
func exitCode() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted. If it was to be kept, its cluster is still up: make cluster-down")
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	return 1
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a pod's CPU lowered in place, on the running test cluster",
		Long: `demo deploys pod-resizer and two Deployments into the running test cluster, prints what happens to their pods, and
checks each claim it makes: its exit code is 0 only if all of them hold. It cleans up what it has deployed. On simulated
nodes it says which columns are simulated, and makes no claim about them.`,
		Example: `  make demo                  # cluster, demo, and everything gone again
  make demo NODE=simulated   # the same without root or Linux; nothing runs, the API server is real
  make demo KEEP=1           # leave all of it to play with`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Open(cluster.Options{})
			if err != nil {
				return err
			}
			return run(cmd.Context(), c, os.Stdout, o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.keep, "keep", false, "leave pod-resizer and the two Deployments in the cluster")
	f.BoolVar(&o.useDeployed, "use-deployed", false, "use the pod-resizer that stands in the cluster, as the tests do")
	f.DurationVar(&o.patience, "patience", 45*time.Second, "how long to wait for both pods; four times what the slow one takes")
	f.BoolVar(&o.withoutResizer, "without-resizer", false, "scale pod-resizer to 0 first, so that the demo has to fail")
	for _, name := range []string{"use-deployed", "without-resizer", "patience"} {
		if err := f.MarkHidden(name); err != nil {
			panic(err) // Only for a flag that does not exist.
		}
	}
	return cmd
}

type options struct {
	keep, useDeployed, withoutResizer bool
	patience                          time.Duration
}

func run(ctx context.Context, c *cluster.Cluster, out io.Writer, o options) (err error) {
	unlock, err := lock(c)
	if err != nil {
		return err
	}
	defer unlock()
	client, err := c.Client()
	if err != nil {
		return err
	}
	step := deploy.Steps(out)
	if !o.useDeployed {
		if err := deploy.Product(ctx, c, false, step); err != nil {
			return err
		}
		if !o.keep {
			defer func() {
				err = errors.Join(err, cleanUp(ctx, "removing pod-resizer", step, func(ctx context.Context) error {
					return deploy.RemoveProduct(ctx, c)
				}))
			}()
		}
	}
	if o.withoutResizer {
		if err := deploy.Scale(ctx, c, 0); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, deploy.Scale(context.WithoutCancel(ctx), c, 2)) }()
	}
	if err := deploy.Sample(ctx, c, step); err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); err == nil {
		if err := cleanUp(ctx, "removing the demo that was kept", step, func(ctx context.Context) error { return removeNamespace(ctx, client) }); err != nil {
			return err
		}
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the namespace %s: %w", namespace, err)
	}
	if !o.keep {
		defer func() {
			err = errors.Join(err, cleanUp(ctx, "removing the demo", step, func(ctx context.Context) error { return removeNamespace(ctx, client) }))
		}()
	}

	fmt.Fprintln(out)
	if c.Node() == cluster.Both {
		fmt.Fprintln(out, "This is on the real node; the simulated ones stand beside it.")
	}
	timeline, err := watch(ctx, c, client, out, o.patience)
	if err != nil {
		return err
	}
	if err := timeline.summary(out); err != nil {
		return err
	}
	if !o.keep {
		fmt.Fprint(out, "\nTo look around in it: make demo KEEP=1. To install it: README.md, \"Install\".\n\n")
		return nil
	}
	logs := fmt.Sprintf("kubectl -n %s logs -l app.kubernetes.io/name=pod-resizer", deploy.Namespace)
	if c.Node() == cluster.Simulated {
		logs = "cat " + filepath.Join(c.Logs(), deploy.Name+".log")
	}
	fmt.Fprintf(out, "\nAll of it is still there (kubectl is yours to bring):\n  export KUBECONFIG=%s\n  kubectl -n %s describe pod -l app=%s\n  %s\n"+
		"  make cluster-down   # when you have seen enough\n\n"+
		"test/demo/workloads.yaml shows how to use the sample workload. There is no DNS in the cluster.\n",
		c.Kubeconfig(), namespace, opted, logs)
	return nil
}

// lock keeps two demos apart. The kernel drops it with the process.
func lock(c *cluster.Cluster) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.Temp(), "demo.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the demo: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("another demo is running in this cluster: wait for its end")
		}
		return nil, fmt.Errorf("locking the demo: %w", err)
	}
	return func() { f.Close() }, nil
}

// cleanUp runs also after Ctrl-C, but not for ever.
func cleanUp(ctx context.Context, text string, step deploy.Step, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	done := step(text)
	err := f(ctx)
	done(err)
	return err
}

func removeNamespace(ctx context.Context, client kubernetes.Interface) error {
	if err := client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting the namespace %s: %w", namespace, err)
	}
	return wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// watch applies the workloads and follows their pods until both have ended their start, or patience has.
func watch(ctx context.Context, c *cluster.Cluster, client kubernetes.Interface, out io.Writer, patience time.Duration) (*timeline, error) {
	// Watching begins before the pods exist, so that their first state is seen, too.
	watcher, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("watching the demo's pods: %w", err)
	}
	defer watcher.Stop()
	if err := deploy.Apply(ctx, c, filepath.Join(deploy.Root(), "test", "demo", "workloads.yaml")); err != nil {
		return nil, err
	}
	t := newTimeline(c, out)
	deadline := time.After(patience)
	// The kernel announces no change of a quota; 20 ms is finer than the timeline's tenths.
	cgroups := time.NewTicker(20 * time.Millisecond)
	defer cgroups.Stop()
	for !t.complete() {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline:
			return t, nil // What is missing, the checks name.
		case <-cgroups.C:
			t.readQuotas()
			t.stillWaiting()
		case event, open := <-watcher.ResultChan():
			if !open {
				return nil, errors.New("watching the demo's pods: the API server ended the watch")
			}
			if pod, ok := event.Object.(*corev1.Pod); ok {
				t.see(pod)
			}
		}
	}
	return t, nil
}
