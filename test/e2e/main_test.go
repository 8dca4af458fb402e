// Package e2e proves on a real cluster what Kubernetes decides: API server, scheduler, kubelet, containerd, runc. The
// product runs in it as its manifests say, built with Go's race detector.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"pod-resizer/resizer/plan"
	"pod-resizer/test/cluster"
	"pod-resizer/test/deploy"
)

// account is the product's, as the audit log names it.
const account = "system:serviceaccount:" + deploy.Namespace + ":" + deploy.Name

// patience bounds every wait. The slowest thing waited for, a start at 50m, takes 10 s on an idle machine.
const patience = 60 * time.Second

// lab is the cluster that all tests share.
type lab struct {
	cluster *cluster.Cluster
	config  *rest.Config
	client  *kubernetes.Clientset
	keys    plan.Keys
}

// shared is set once, by TestMain, which has no other way to hand something to the tests.
var shared lab

func TestMain(m *testing.M) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (int, error) {
	c, err := cluster.Open(cluster.Options{})
	if err != nil {
		return 0, fmt.Errorf("%w; `make test` does all of it", err)
	}
	config, err := c.RESTConfig()
	if err != nil {
		return 0, err
	}
	client, err := c.Client()
	if err != nil {
		return 0, err
	}
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		return 0, err
	}
	shared = lab{c, config, client, keys}
	step := deploy.Steps(os.Stdout)
	// Not with simulated nodes: those tests are about thousands of pods, and how long they take.
	if err := deploy.Product(ctx, c, c.Node() != cluster.Simulated, step); err != nil {
		return 0, err
	}
	if err := deploy.Sample(ctx, c, step); err != nil {
		return 0, err
	}
	code := m.Run()
	return code, shared.productIsWell(ctx)
}

// productIsWell is the last test of all: in the whole run no replica has crashed, nor seen a data race. (The race detector's
// report is in the log, and ends the process with exit code 66; a test that kills a replica leaves 137.)
func (l lab) productIsWell(ctx context.Context) error {
	if l.cluster.Node() == cluster.Simulated {
		log, err := os.ReadFile(filepath.Join(l.cluster.Logs(), deploy.Name+".log"))
		if err != nil {
			return err
		}
		if bytes.Contains(log, []byte("DATA RACE")) || bytes.Contains(log, []byte("panic")) {
			return fmt.Errorf("pod-resizer has found a race or crashed; its log:\n%s", log)
		}
		return deploy.AwaitProduct(ctx, l.cluster)
	}
	pods, err := l.client.CoreV1().Pods(deploy.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) != 2 {
		return fmt.Errorf("%d pods of pod-resizer at the end, not 2", len(pods.Items))
	}
	for _, pod := range pods.Items {
		status := pod.Status.ContainerStatuses[0]
		restarted := status.LastTerminationState.Terminated
		if restarted != nil && restarted.ExitCode != 137 {
			return fmt.Errorf("%s ended with exit code %d", pod.Name, restarted.ExitCode)
		}
		for _, previous := range []bool{false, true} {
			if previous && restarted == nil {
				continue
			}
			log, err := l.client.CoreV1().Pods(deploy.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Previous: previous}).DoRaw(ctx)
			if err != nil {
				return fmt.Errorf("reading the log of %s: %w", pod.Name, err)
			}
			if !bytes.Contains(log, []byte(`"version":"race"`)) || bytes.Contains(log, []byte("DATA RACE")) {
				return fmt.Errorf("%s was not built with the race detector, or has found a race; its log:\n%s", pod.Name, log)
			}
		}
	}
	return nil
}

// namespace makes one for the test, and deletes it afterwards.
func (l lab) namespace(t *testing.T) string {
	t.Helper()
	created, err := l.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's context has ended by now.
		if err := l.client.CoreV1().Namespaces().Delete(context.Background(), created.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return created.Name
}

// needsRealNode skips a test that simulated nodes can say nothing about. On a machine that can have a real node, make runs
// the tests on both kinds.
func (l lab) needsRealNode(t *testing.T, why string) {
	t.Helper()
	if l.cluster.Node() == cluster.Simulated {
		t.Skipf("needs a real node: %s", why)
	}
}

// eventually waits until a condition holds; it says what it last saw if not.
func eventually(t *testing.T, what string, condition func(context.Context) (bool, string)) {
	t.Helper()
	var seen string
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		done, saw := condition(ctx)
		seen = saw
		return done, nil
	}); err != nil {
		t.Fatalf("%s: not within %s; last seen: %s", what, patience, seen)
	}
}

// write is one line of the API server's audit log.
type write struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string    `json:"resource"`
		Namespace   string    `json:"namespace"`
		Name        string    `json:"name"`
		UID         types.UID `json:"uid"`
		Subresource string    `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Annotations map[string]string `json:"annotations"`
}

// String reads "patch pods/resize 200".
func (w write) String() string {
	return fmt.Sprintf("%s %s/%s %d", w.Verb, w.ObjectRef.Resource, w.ObjectRef.Subresource, w.ResponseStatus.Code)
}

// writes are what the product wrote to a pod, in order.
func (l lab) writes(t *testing.T, namespace, pod string) []string {
	t.Helper()
	var all []string
	for _, w := range l.allWrites(t) {
		if ref := w.ObjectRef; w.User.Username == account && ref.Resource == "pods" && ref.Namespace == namespace && ref.Name == pod {
			all = append(all, w.String())
		}
	}
	return all
}

// allWrites is the audit log.
func (l lab) allWrites(t *testing.T) []write {
	t.Helper()
	file, err := os.Open(l.cluster.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []write
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var w write
		if json.Unmarshal(lines.Bytes(), &w) == nil { // The last line may be half written.
			all = append(all, w)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// metric sums a metric over all replicas; the series is as the exposition has it, such as `a_total{b="c"}`.
func (l lab) metric(t *testing.T, series string) float64 {
	t.Helper()
	replicas, err := deploy.Metrics(t.Context(), l.cluster)
	if err != nil {
		t.Fatal(err)
	}
	sum, found := 0.0, false
	for _, body := range replicas {
		for line := range strings.Lines(string(body)) {
			value, ok := strings.CutPrefix(line, series+" ")
			if !ok {
				continue
			}
			var v float64
			if _, err := fmt.Sscan(value, &v); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		t.Fatalf("no replica has the metric %s", series)
	}
	return sum
}

// warnings collects what the API server tells its caller, as kubectl would print it.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// withWarnings is a client that collects warnings.
func (l lab) withWarnings(t *testing.T) (*kubernetes.Clientset, *warnings) {
	t.Helper()
	w := &warnings{}
	config := rest.CopyConfig(l.config)
	config.WarningHandler = w
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, w
}

// events are those that tell of a pod, as "Type Reason Message".
func (l lab) events(ctx context.Context, t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	list, err := l.client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(pod.UID) + ",source=" + deploy.Name,
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list.Items {
		all = append(all, strings.Join([]string{e.Type, e.Reason, e.Message}, " "))
	}
	return all
}
