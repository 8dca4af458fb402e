package cluster

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Node says what runs the cluster's pods.
type Node string

// The kinds.
const (
	Real      Node = "real"      // one node: kubelet, containerd, runc; needs root on Linux
	Simulated Node = "simulated" // nodes that KWOK plays; needs neither, and runs nothing
	Both      Node = "both"      // simulated nodes beside the real one
)

// ChooseNode chooses what this machine can do, and says why in one sentence.
func ChooseNode() (Node, string) {
	if err := Supported(); err != nil {
		return Simulated, "Nodes are simulated: " + err.Error() + "."
	}
	return Real, "The node is real, as this is Linux and you are root (NODE=simulated needs neither)."
}

// real and simulated say whether nodes of that kind are there.
func (n Node) real() bool      { return n != Simulated }
func (n Node) simulated() bool { return n != Real }

// Simulated nodes, enough for 10,000 pods; kwok/stages.yaml says how large each is.
const (
	simulatedNodes = 10
	// SimulatedLabel is on every simulated node, with the value SimulatedValue (kwok/stages.yaml selects it). Beside a real node they
	// carry a taint of the same key and value, so that only pods that tolerate it go there.
	SimulatedLabel = "type"
	SimulatedValue = "kwok"
)

// count is the number of nodes.
func (n Node) count() int {
	count := 0
	if n.real() {
		count++
	}
	if n.simulated() {
		count += simulatedNodes
	}
	return count
}

// uses are the pins that the nodes need.
func (n Node) uses() []use {
	uses := []use{always}
	if n.real() {
		uses = append(uses, withReal)
	}
	if n.simulated() {
		uses = append(uses, withSimulated)
	}
	return uses
}

// createNodes makes the Node objects that KWOK plays; a kubelet makes its own.
func (n Node) createNodes(ctx context.Context, client kubernetes.Interface) error {
	if !n.simulated() {
		return nil
	}
	for i := range simulatedNodes {
		name := fmt.Sprintf("simulated-%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			SimulatedLabel: SimulatedValue, corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
		}}}
		if n.real() {
			node.Spec.Taints = []corev1.Taint{{Key: SimulatedLabel, Value: SimulatedValue, Effect: corev1.TaintEffectNoSchedule}}
		}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating a simulated node: %w", err)
		}
	}
	return nil
}

// nodesReady says why not all of the nodes are ready.
func nodesReady(ctx context.Context, client kubernetes.Interface, count int) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the nodes: %w", err)
	}
	if len(nodes.Items) < count {
		return fmt.Errorf("%d of %d nodes are registered", len(nodes.Items), count)
	}
	for _, node := range nodes.Items {
		i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		if i < 0 {
			return fmt.Errorf("%s has not reported yet", node.Name)
		}
		if c := node.Status.Conditions[i]; c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%s is not ready: %s", node.Name, c.Message)
		}
	}
	return nil
}
