package cluster

// Node says what runs the cluster's pods.
type Node string

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
	return Real, "The node is real, as this is Linux and you are root."
}

// real and simulated say whether nodes of that kind are there.
func (n Node) real() bool      { return n != Simulated }
func (n Node) simulated() bool { return n != Real }

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
