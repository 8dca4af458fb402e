// Command cluster builds and runs a real one-node Kubernetes cluster for the tests and the demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := root().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	var child childError
	if errors.As(err, &child) { // run passes on its command's code; the command has said what was wrong
		code := child.ExitCode()
		if status, ok := child.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal()) // as shells do
		}
		os.Exit(code)
	}
	fmt.Fprintln(os.Stderr, "Error:", err)
	os.Exit(1)
}
