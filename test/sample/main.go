// Command sample is the workload of the demo and the tests: like an application that compiles or loads while it starts, it
// burns a set amount of CPU before it answers.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	burn := flag.Duration("burn", 400*time.Millisecond, "CPU time to burn before /healthz answers 200; at 200m, 400ms take 2s")
	listen := flag.String("listen", ":8080", "address of /healthz (200 once started, 503 before) and /crash (exits with 1)")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Burns CPU while it starts, then serves.\n\nExample: sample -burn 400ms -listen :8080\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()

	var started atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !started.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { os.Exit(1) })
	go func() {
		begin := time.Now()
		for cpuTime() < *burn { // Nothing but the check itself: it is what burns.
		}
		log.Printf("started: burned %s of CPU in %s", *burn, time.Since(begin).Round(time.Millisecond))
		started.Store(true)
	}()
	// A container's first process dies of SIGTERM only if it asks to.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() { log.Fatal(http.ListenAndServe(*listen, mux)) }() //nolint:gosec // A test workload; nobody attacks it.
	<-stop
}

// cpuTime is what this process has used so far, on all cores. A container that is throttled uses less of it per second.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
