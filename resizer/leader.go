package resizer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The times of Kubernetes' own components (component-base/config/v1alpha1/defaults.go): a leader that died is replaced
// within leaseDuration + retryPeriod, and one that cannot renew gives up leaseDuration - renewDeadline before that.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// Election lets one of several replicas lead, by a Lease that must exist (so that no right to create is needed).
type Election struct {
	Client    kubernetes.Interface
	Namespace string
	Name      string
	Identity  string // Of this replica, unique.
	Log       *slog.Logger

	health *leaderelection.HealthzAdaptor
}

// NewElection returns e ready for Run and Live.
func NewElection(e Election) *Election {
	e.health = leaderelection.NewLeaderHealthzAdaptor(leaseDuration)
	return &e
}

// Live is an error when this replica believes to lead but has not renewed its lease for longer than it lasts.
func (e *Election) Live() error { return e.health.Check(nil) }

// Run calls lead each time this replica becomes the leader, with a context that ends when it no longer is, until ctx ends
// or lead returns an error. A new election starts only after lead has returned, and the lease is released only then, so
// that two leaders never write at once.
func (e *Election) Run(ctx context.Context, lead func(context.Context) error) error {
	for ctx.Err() == nil {
		if err := e.term(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

func (e *Election) term(ctx context.Context, lead func(context.Context) error) error {
	elected := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: e.Name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
			Client:     e.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		WatchDog:        e.health,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { elected <- ctx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("setting up the election %s/%s: %w", e.Namespace, e.Name, err)
	}

	// The election outlives ctx until lead has returned; only then may the lease be released.
	election, resign := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(election)
	}()
	defer func() {
		resign()
		<-ended
	}()
	select {
	case <-ctx.Done():
		return nil
	case leading := <-elected:
		e.Log.Info("leading", "identity", e.Identity)
		defer e.Log.Info("no longer leading", "identity", e.Identity)
		leading, stop := context.WithCancel(leading)
		defer stop()
		defer context.AfterFunc(ctx, stop)()
		return lead(leading) //nolint:contextcheck // The elector's context; AfterFunc ties it to ours.
	}
}
