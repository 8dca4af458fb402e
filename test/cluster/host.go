package cluster

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Supported says whether this process may start a cluster with a real node, and if not, why.
func Supported() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("a real node needs Linux, and this is %s", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		return errors.New("a real node needs root (sudo env \"PATH=$PATH\" in front of the command)")
	}
	return nil
}
