package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"pod-resizer/test/cluster"
)

var scalePods = flag.Int("pods", 5000, "pods that TestThousandsOfPods starts at once")

// scalePatience is many times what 5,000 pods take on two cores; how long they took, the test prints.
const scalePatience = 10 * time.Minute

// TestThousandsOfPods starts thousands of opted-in pods at once, on simulated nodes. Each ends steady, with two writes of the
// product's.
func TestThousandsOfPods(t *testing.T) {
	l := shared
	if l.cluster.Node() == cluster.Real {
		t.Skip("needs simulated nodes: make e2e NODE=simulated")
	}
	ctx, cancel := context.WithTimeout(t.Context(), scalePatience)
	defer cancel()
	namespace := l.namespace(t)
	began := time.Now()
	var creators errgroup.Group
	creators.SetLimit(16)
	go func() {
		for i := range *scalePods {
			creators.Go(func() error {
				pod := l.samplePod(nil)
				pod.Name = fmt.Sprintf("sample-%d", i)
				pod.Spec.NodeSelector = map[string]string{cluster.SimulatedLabel: cluster.SimulatedValue}
				pod.Spec.Tolerations = []corev1.Toleration{{Key: cluster.SimulatedLabel, Operator: corev1.TolerationOpExists}}
				_, err := l.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
				if err != nil {
					cancel() // The others would wait for it.
				}
				return err
			})
		}
	}()
	// An informer, because the API server drops a plain watch that cannot follow.
	var mu sync.Mutex
	created, started, steady := map[string]bool{}, map[string]bool{}, map[string]bool{}
	informer := informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace(namespace)).Core().V1().Pods().Informer()
	see := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		created[pod.Name] = true
		if s := pod.Status.ContainerStatuses; len(s) == 1 && s[0].Started != nil && *s[0].Started {
			started[pod.Name] = true
		}
		if pod.Annotations[l.keys.Resized] == "true" {
			if request, limit := cpuOf(pod); request != steadyCPU || limit != steadyCPU || pod.Status.QOSClass != corev1.PodQOSGuaranteed {
				t.Errorf("%s: marked with request %s, limit %s, %s", pod.Name, request, limit, pod.Status.QOSClass)
			}
			steady[pod.Name] = true
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }}); err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go informer.RunWithContext(watching)
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%5.1fs: %d created, %d started, %d steady%s", time.Since(began).Seconds(), len(created), len(started), len(steady), what)
	}
	for _, stage := range []struct {
		name string
		pods map[string]bool
	}{{"created", created}, {"started", started}, {"steady", steady}} {
		lastNote := time.Now()
		if err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
			if time.Since(lastNote) > 10*time.Second {
				lastNote = time.Now()
				note("")
			}
			mu.Lock()
			defer mu.Unlock()
			return len(stage.pods) == *scalePods, nil
		}); err != nil {
			note("")
			t.Fatal(errors.Join(err, creators.Wait()))
		}
		note(": all are " + stage.name)
	}
	stop()
	if err := creators.Wait(); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, w := range l.allWrites(t) {
		if w.ObjectRef.Namespace == namespace && w.User.Username == account && w.ObjectRef.Resource == "pods" {
			counts[w.String()]++
		}
	}
	if len(counts) != 2 || counts["patch pods/resize 200"] != *scalePods || counts["patch pods/status 200"] != *scalePods {
		t.Errorf("the product wrote %v", counts)
	}
	// Other tests are not to run beside the removal of thousands of pods.
	if err := l.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		left, err := l.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(left.Items) == 0, err
	}); err != nil {
		t.Fatal(err)
	}
	note(": all are removed")
}
