// Package resizer lowers the CPU of opted-in pods in place once their startup is over. One replica, the leader, runs it.
//
// It looks at pods only, never at their owners, so every kind of workload works alike. What to do is plan.Decide's
// business; this package brings the pods (observe.go), asks (reconcile.go) and carries the answer out (apply.go, the only
// file that writes to the API).
package resizer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"pod-resizer/resizer/plan"
)

// A retry starts after retryMin, short because most failures are a moment's, and doubles up to retryMax, which is how long
// a pod may stay at its startup CPU after the cause of a refusal is gone.
const (
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Minute
)

// errRefused marks a refusal that people have been told about; it asks for a retry and no more.
var errRefused = errors.New("refused by the API server")

// Options are what a Controller needs.
type Options struct {
	Config     *rest.Config // How to reach the API server. Its own rate limit is up to the caller; -1 QPS is none.
	Keys       plan.Keys
	Workers    int // Pods that are worked on at the same time; each costs a goroutine that mostly waits for the API server.
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// Controller is the resizer. Run may be called again after it has returned (a new term as leader).
type Controller struct {
	client  kubernetes.Interface
	writer  metadata.Getter
	keys    plan.Keys
	workers int
	log     *slog.Logger
	metrics *metrics

	// Of one term as leader.
	pods     corelisters.PodLister
	queue    workqueue.TypedRateLimitingInterface[cache.ObjectName]
	events   record.EventRecorder
	mu       sync.Mutex
	memories map[types.UID]*memory
}

// New makes a Controller and registers its metrics.
func New(o Options) (*Controller, error) {
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("making the Kubernetes client: %w", err)
	}
	writer, err := metadata.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("making the metadata client: %w", err)
	}
	return &Controller{
		client:  client,
		writer:  writer.Resource(corev1.SchemeGroupVersion.WithResource("pods")),
		keys:    o.Keys,
		workers: o.Workers,
		log:     o.Log,
		metrics: newMetrics(o.Registerer),
	}, nil
}

// Run resizes until ctx ends, and returns once nothing of it runs any more.
//
// The informer starts anew with each term: its first list is read from etcd's present state, so it holds all that the
// leader before has written, and the replicas that only serve admission need no memory for pods.
func (c *Controller) Run(ctx context.Context) error {
	c.metrics.leader.Set(1)
	defer c.metrics.leader.Set(0)
	defer c.metrics.ledger.clear()
	c.memories = map[types.UID]*memory{}
	c.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](retryMin, retryMax))
	defer c.metrics.queueLength.Set(0)

	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	c.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: fieldManager})

	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithTransform(c.trim))
	pods := factory.Core().V1().Pods()
	c.pods = pods.Lister()
	if _, err := pods.Informer().AddEventHandler(c.handler()); err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()

	var workers sync.WaitGroup
	defer workers.Wait()
	defer c.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), pods.Informer().HasSynced) {
		return nil // ctx ended first.
	}
	c.log.Info("resizing", "workers", c.workers)
	for range c.workers {
		workers.Go(func() {
			for c.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

// handler queues opted-in pods on every change. All that it does for the others is to look at one annotation.
func (c *Controller) handler() cache.ResourceEventHandler {
	enqueue := func(obj any) {
		if pod := obj.(*corev1.Pod); c.keys.Concerns(pod) {
			c.remember(pod.UID).due(time.Now())
			c.queue.Add(cache.MetaObjectToName(pod))
			c.metrics.queueLength.Set(float64(c.queue.Len()))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue,
		UpdateFunc: func(before, after any) {
			if before, after := before.(*corev1.Pod), after.(*corev1.Pod); before.UID != after.UID {
				c.forget(before.UID) // Deleted and created again between two events.
			}
			enqueue(after)
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			pod := obj.(*corev1.Pod)
			c.forget(pod.UID)
			c.queue.Forget(cache.MetaObjectToName(pod))
		},
	}
}

// work takes one pod from the queue; false once the queue is shut down.
func (c *Controller) work(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	c.metrics.queueLength.Set(float64(c.queue.Len()))
	after, err := c.reconcile(ctx, key)
	switch {
	case ctx.Err() != nil:
		return false // A new leader goes on; whatever failed now failed because of the end.
	case err != nil:
		level := slog.LevelWarn
		if errors.Is(err, errRefused) {
			level = slog.LevelInfo // The pod and its events say so already.
		}
		c.queue.AddRateLimited(key)
		c.log.Log(ctx, level, "will retry", "pod", key.String(), "retries", c.queue.NumRequeues(key), "error", err)
	default:
		c.queue.Forget(key)
		if after > 0 {
			c.queue.AddAfter(key, after)
		}
	}
	return true
}
