package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// MilliCPU is an amount of CPU in thousandths of a core, the smallest unit that Kubernetes keeps: the API server rounds
// finer quantities up to it (pkg/apis/core/v1/defaults.go of Kubernetes), and so does milliCPU.
type MilliCPU int64

// String is the amount as a Kubernetes quantity, such as "50m" or "2".
func (m MilliCPU) String() string { return m.Quantity().String() }

// Quantity is the amount as the API takes it.
func (m MilliCPU) Quantity() *resource.Quantity {
	return resource.NewMilliQuantity(int64(m), resource.DecimalSI)
}

func milliCPU(q resource.Quantity) MilliCPU { return MilliCPU(q.MilliValue()) }

// maxCPU bounds what an annotation may ask for: far above any node (10,000 cores), far below where the sum over a pod's
// containers could overflow.
const maxCPU MilliCPU = 10_000_000

func parseCPU(text string) (MilliCPU, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("not a quantity of CPU")
	}
	if q.Sign() <= 0 {
		return 0, fmt.Errorf("must be more than zero: a pod without CPU is not Guaranteed")
	}
	// Compared as a quantity, because MilliValue overflows on what is far too large.
	if q.Cmp(*maxCPU.Quantity()) > 0 {
		return 0, fmt.Errorf("is more than any node has")
	}
	return milliCPU(q), nil
}
