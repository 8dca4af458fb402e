package resizer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// askAgain is how long a role that lacks something is left before it is looked at again. Nobody may watch one's own rights.
const askAgain = 10 * time.Second

// Rights finds out at the start what this replica's account may not do, and not from the first pod, which would by then have
// been given a startup CPU that nobody can take back.
type Rights struct {
	client          kubernetes.Interface
	namespace, name string // Of the Lease.
	log             *slog.Logger
	missing         atomic.Pointer[string] // Empty if nothing is; nil until that is known.
}

// NewRights returns Rights to Run; namespace and name are those of the Lease.
func NewRights(client kubernetes.Interface, namespace, name string, log *slog.Logger) *Rights {
	return &Rights{client: client, namespace: namespace, name: name, log: log}
}

// Ready is an error while something is missing.
func (r *Rights) Ready() error {
	switch missing := r.missing.Load(); {
	case missing == nil:
		return errors.New("the API server has not said yet what this account may do")
	case *missing != "":
		return fmt.Errorf("this account may not %s: apply the roles of manifests/install.yaml", *missing)
	}
	return nil
}

// Run asks the API server until nothing is missing, or ctx ends.
func (r *Rights) Run(ctx context.Context) {
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		missing, err := r.ask(ctx)
		if err != nil {
			r.log.Warn("rights not known", "error", err)
			return
		}
		all := strings.Join(missing, ", ")
		if before := r.missing.Swap(&all); all != "" && (before == nil || *before != all) {
			r.log.Error("rights missing", "error", r.Ready())
		}
		if all == "" {
			enough()
		}
	}, askAgain)
}

// ask names what the account may not do, such as "patch pods/resize".
func (r *Rights) ask(ctx context.Context) ([]string, error) {
	var missing []string
	for _, a := range []authorizationv1.ResourceAttributes{
		{Verb: "list", Resource: "pods"},
		{Verb: "watch", Resource: "pods"},
		{Verb: "patch", Resource: "pods", Subresource: "resize"},
		{Verb: "patch", Resource: "pods", Subresource: "status"},
		{Verb: "create", Resource: "events"},
		{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: r.namespace, Name: r.name},
	} {
		review, err := r.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("asking what this account may do: %w", err)
		}
		if !review.Status.Allowed {
			what := a.Resource
			if a.Subresource != "" {
				what += "/" + a.Subresource
			}
			missing = append(missing, a.Verb+" "+what)
		}
	}
	return missing, nil
}
