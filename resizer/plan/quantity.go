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

// Bytes is an amount of memory.
type Bytes int64

// Quantity is the amount as the API takes it.
func (b Bytes) Quantity() *resource.Quantity {
	return resource.NewQuantity(int64(b), resource.BinarySI)
}

// maxMemory, a pebibyte, bounds memory as maxCPU bounds CPU.
const maxMemory Bytes = 1 << 50

// amount is CPU or memory as people write it in JSON: "50m", or a bare number, as in the resources of a pod.
type amount string

// UnmarshalJSON takes a string or a number.
func (a *amount) UnmarshalJSON(data []byte) error {
	switch first := data[0]; {
	case first == '"':
		return json.Unmarshal(data, (*string)(a))
	case first == '-' || first >= '0' && first <= '9':
		*a = amount(data)
		return nil
	case string(data) == "null":
		return nil // As everywhere in JSON.
	default:
		return errors.New(`an amount is a string, such as "50m"`)
	}
}

// maxAmount is longer than any amount that makes sense; ParseQuantity takes its time for long ones.
const maxAmount = 32

// quantity parses the amount. An exponent is refused, because ParseQuantity computes it digit by digit: ten characters such
// as 1E10000000 would keep it busy for seconds.
func (a amount) quantity() (q resource.Quantity, ok bool) {
	if len(a) > maxAmount || strings.ContainsAny(string(a), "eE") {
		return q, false
	}
	q, err := resource.ParseQuantity(string(a))
	return q, err == nil
}

// cpu is what the amount comes to.
func (a amount) cpu() (MilliCPU, error) {
	q, ok := a.quantity()
	if !ok {
		return 0, errors.New("is not a quantity of CPU")
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

// memory is what the amount comes to.
func (a amount) memory() (Bytes, error) {
	q, ok := a.quantity()
	switch {
	case !ok:
		return 0, errors.New("is not a quantity of memory")
	case q.Sign() <= 0:
		return 0, errors.New("is not more than zero, and a pod without memory is not Guaranteed")
	case q.Cmp(*maxMemory.Quantity()) > 0:
		return 0, fmt.Errorf("is more than any node has (%s)", maxMemory.Quantity())
	}
	bytes := Bytes(q.Value()) // Rounded up.
	if q.Cmp(*bytes.Quantity()) != 0 {
		return 0, errors.New("is not a whole number of bytes") // Such as "256m", thousandths of a byte.
	}
	return bytes, nil
}
