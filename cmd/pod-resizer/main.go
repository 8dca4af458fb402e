// Command pod-resizer gives pods their startup CPU at creation and lowers it in place once they have started.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=v0.1.0.
var version = "dev"

func main() { os.Exit(run()) }

// run is main with deferred calls that happen.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pod-resizer:", err)
		return 1
	}
	return 0
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "pod-resizer",
		Short: "Startup CPU for pods that stay Guaranteed",
		Long: `pod-resizer creates opted-in pods with their startup CPU, request == limit, and lowers it in place, without a
restart, once they have started. They are Guaranteed before and after.`,
		Version:       version,
		SilenceUsage:  true, // An error of a running server is no wrong usage.
		SilenceErrors: true, // main prints it.
	}
	root.AddCommand(serveCommand(), previewCommand(), statusCommand())
	return root
}
