// Command record writes down what one version of Kubernetes says of the lives of pods that pod-resizer takes care of, and how
// it refuses what it refuses. The product's unit tests replay the records of all versions (resizer/recorded_test.go), those
// of versions that the tests on a cluster do not run included.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

const (
	namespace = "record"
	patience  = time.Minute
	// afterwards is how long a pod is watched after its end: the kubelet may report once more.
	afterwards = 3 * time.Second
)

func main() { os.Exit(exitCode()) }

// exitCode is main with deferred calls that happen.
func exitCode() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		return 1
	}
	return 0
}

func command() *cobra.Command {
	return &cobra.Command{
		Use:           "record FOLDER",
		Short:         "Write the life of pods on the running test cluster into FOLDER/VERSION",
		Example:       "  make record KUBERNETES=1.36.3",
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Open(cluster.Options{})
			if err != nil {
				return err
			}
			return run(cmd.Context(), c, filepath.Join(args[0], c.Kubernetes()))
		},
	}
}

func run(ctx context.Context, c *cluster.Cluster, dir string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		return err
	}
	step := deploy.Steps(os.Stdout)
	if err := deploy.Product(ctx, c, false, step); err != nil {
		return err
	}
	if err := deploy.Sample(ctx, c, step); err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the namespace %s: %w", namespace, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, pod := range []*corev1.Pod{onePod(keys), manyContainers(keys)} {
		done := step("recording the life of " + pod.Name)
		err := recordLife(ctx, client, keys, pod, filepath.Join(dir, pod.Name+".jsonl"))
		done(err)
		if err != nil {
			return err
		}
	}
	done := step("recording refusals")
	err = recordRefusals(ctx, client, filepath.Join(dir, "answers.json"))
	done(err)
	return err
}

// moment is one line of a recorded life.
type moment struct {
	Seen time.Time   `json:"seen"`
	Pod  *corev1.Pod `json:"pod"`
}

// recordLife creates the pod and writes down every version of it that the API server tells of.
func recordLife(ctx context.Context, client kubernetes.Interface, keys plan.Keys, pod *corev1.Pod, file string) error {
	watcher, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	defer watcher.Stop()
	if _, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the pod %s: %w", pod.Name, err)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	lines := json.NewEncoder(out)
	end := time.After(patience)
	var steady bool
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			if !steady {
				return fmt.Errorf("pod %s is not steady after %s", pod.Name, patience)
			}
			return out.Close()
		case event, open := <-watcher.ResultChan():
			seen, ok := event.Object.(*corev1.Pod)
			if !open || !ok {
				return fmt.Errorf("the watch ended: %v", event)
			}
			seen.ManagedFields = nil // The product throws them away, too.
			for _, statuses := range [][]corev1.ContainerStatus{seen.Status.InitContainerStatuses, seen.Status.ContainerStatuses} {
				for i := range statuses {
					statuses[i].Image, statuses[i].ImageID = "", "" // The test cluster's own.
				}
			}
			if err := lines.Encode(moment{time.Now().UTC(), seen}); err != nil {
				return fmt.Errorf("writing %s: %w", file, err)
			}
			if !steady && seen.Annotations[keys.Resized] == "true" {
				steady, end = true, time.After(afterwards)
			}
		}
	}
}

// answer is what the API server said to one patch.
type answer struct {
	Name        string        `json:"name"`
	Subresource string        `json:"subresource"`
	Patch       string        `json:"patch"`
	Status      metav1.Status `json:"status"`
}

// recordRefusals asks for what cannot be, of a running pod.
func recordRefusals(ctx context.Context, client kubernetes.Interface, file string) error {
	pods := client.CoreV1().Pods(namespace)
	pod := onePod(plan.Keys{})
	pod.Name, pod.Annotations = "refuses", nil
	pod.Spec.InitContainers = []corev1.Container{container("init", "100m", "-help")}
	pod.Spec.Containers[0].Resources.Requests = pod.Spec.Containers[0].Resources.Limits
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a pod: %w", err)
	}
	for pod.Status.Phase != corev1.PodRunning {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if pod, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("reading the pod: %w", err)
		}
	}
	lower := func(list, name string) string {
		return fmt.Sprintf(`{"metadata":{"uid":%q},"spec":{%q:[{"name":%q,"resources":{"requests":{"cpu":"50m"},"limits":{"cpu":"50m"}}}]}}`,
			pod.UID, list, name)
	}
	const stranger = `{"metadata":{"uid":"00000000-0000-0000-0000-000000000000"}}`
	var answers []answer
	ask := func(name, pod, subresource, patch string) error {
		_, err := pods.Patch(ctx, pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresource)
		a := answer{Name: name, Subresource: subresource, Patch: patch, Status: metav1.Status{Status: metav1.StatusSuccess}}
		var refused *apierrors.StatusError
		if errors.As(err, &refused) {
			a.Status = refused.ErrStatus
		} else if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		answers = append(answers, a)
		return nil
	}
	if err := errors.Join(
		ask("another pod of that name, resize", pod.Name, "resize", stranger),
		ask("another pod of that name, status", pod.Name, "status", stranger),
		ask("no pod of that name", "nobody", "resize", lower("containers", "app")),
		ask("no container of that name", pod.Name, "resize", lower("containers", "web")),
		ask("another QoS class", pod.Name, "resize",
			`{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"50m"}}}]}}`),
		ask("a finished init container", pod.Name, "resize", lower("initContainers", "init")),
	); err != nil {
		return err
	}
	if _, err := client.CoreV1().LimitRanges(namespace).Create(ctx, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "at-least"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Min: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		}}},
	}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a LimitRange: %w", err)
	}
	if err := ask("below the LimitRange", pod.Name, "resize", lower("containers", "app")); err != nil {
		return err
	}
	text, err := json.MarshalIndent(answers, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// onePod is an opted-in pod as teams write it.
func onePod(keys plan.Keys) *corev1.Pod {
	app := container("app", "200m", "-burn", "300ms")
	app.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("50m")
	healthz := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}
	app.StartupProbe = &corev1.Probe{ProbeHandler: healthz, PeriodSeconds: 1, FailureThreshold: 60}
	app.ReadinessProbe = &corev1.Probe{ProbeHandler: healthz, PeriodSeconds: 1}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "one-container", Annotations: map[string]string{
			keys.Enabled: "true", keys.SteadyResources: `{"app":{"limits":{"cpu":"50m"}}}`,
		}},
		Spec: corev1.PodSpec{DNSPolicy: corev1.DNSDefault, Containers: []corev1.Container{app}},
	}
}

// manyContainers has an init container, a sidecar and two others besides.
func manyContainers(keys plan.Keys) *corev1.Pod {
	pod := onePod(keys)
	pod.Name = "many-containers"
	pod.Annotations[keys.SteadyResources] = `{"app":{"limits":{"cpu":"50m"}},"proxy":{"limits":{"cpu":"20m"}}}`
	always := corev1.ContainerRestartPolicyAlways
	proxy := container("proxy", "100m", "-burn", "10ms", "-listen", ":8081")
	proxy.RestartPolicy = &always
	pod.Spec.InitContainers = []corev1.Container{container("init", "100m", "-help"), proxy}
	pod.Spec.Containers = append(pod.Spec.Containers, container("log", "40m", "-burn", "10ms", "-listen", ":8082"))
	return pod
}

// container has the same request and limit.
func container(name, cpu string, args ...string) corev1.Container {
	amounts := func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("32Mi")}
	}
	return corev1.Container{
		Name: name, Image: deploy.SampleImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
		Resources: corev1.ResourceRequirements{Requests: amounts(), Limits: amounts()},
	}
}
