package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

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

// milliCPU rounds up to whole thousandths. What is above maxCPU becomes maxCPU + 1, because MilliValue would overflow.
func milliCPU(q resource.Quantity) MilliCPU {
	if q.Cmp(*maxCPU.Quantity()) > 0 {
		return maxCPU + 1
	}
	return MilliCPU(q.MilliValue())
}

// maxCPU bounds what an annotation may ask for: far above any node (10,000 cores), far below where the sum over a pod's
// containers could overflow.
const maxCPU MilliCPU = 10_000_000

// amount is CPU as people write it in JSON: "50m", or a bare number, as in the resources of a pod.
type amount string

// UnmarshalJSON takes a string or a number.
func (a *amount) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*a = amount(text)
		return nil
	}
	var number json.Number
	if err := json.Unmarshal(data, &number); err != nil {
		return errors.New(`an amount of CPU is a string, such as "50m"`)
	}
	*a = amount(number)
	return nil
}

// maxAmount is longer than any amount that makes sense; ParseQuantity takes its time for long ones.
const maxAmount = 32

// cpu is what the amount comes to. An exponent is refused, because ParseQuantity computes it digit by digit: ten characters
// such as 1E10000000 would keep it busy for seconds.
func (a amount) cpu() (MilliCPU, error) {
	notQuantity := errors.New("is not a quantity of CPU")
	if len(a) > maxAmount || strings.ContainsAny(string(a), "eE") {
		return 0, notQuantity
	}
	q, err := resource.ParseQuantity(string(a))
	if err != nil {
		return 0, notQuantity
	}
	if q.Sign() <= 0 {
		return 0, errors.New("is not more than zero, and a pod without CPU is not Guaranteed")
	}
	cpu := milliCPU(q)
	if cpu > maxCPU {
		return 0, fmt.Errorf("is more than any node has (%s)", maxCPU)
	}
	return cpu, nil
}
