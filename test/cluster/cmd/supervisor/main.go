// Command supervisor is PID 1 of a cluster's namespaces. The cluster package builds and starts it; nobody else does.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"pod-resizer/test/cluster/internal/supervise"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	spec, err := supervise.ReadSpec(os.Args[1])
	if err == nil {
		err = supervise.Run(spec, log)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, supervise.Epitaph, err) // not as a log value, in which a log's tail would be unreadable
		os.Exit(1)
	}
}
