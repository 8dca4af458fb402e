package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"pod-resizer/test/cluster"
)

func root() *cobra.Command {
	var o cluster.Options
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "A Kubernetes cluster, built from Go modules and gone without a trace",
		Long: `A Kubernetes cluster (API server, controller manager, scheduler, etcd), built from Go modules with Go and a C
compiler alone. Its nodes are

  real       one node with kubelet, containerd and runc. It needs root on Linux. Everything runs under one process in
             namespaces of its own: the machine's network, mounts and sysctls are not changed
  simulated  ten nodes that KWOK plays: pods start, are resized and restart in what the API server says of them, and
             nothing runs. It needs neither root nor Linux
  both       simulated nodes beside the real one`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.Name, "name", "", `name of the cluster, for several side by side (default "default")`)
	flags.StringVar(&o.Dir, "dir", "", "folder for its state (default $"+cluster.DirVariable+", else one in the user's cache folder)")
	flags.StringVar(&o.Kubernetes, "kubernetes", cluster.DefaultKubernetes, "version of Kubernetes: "+versions())
	flags.StringVar((*string)(&o.Node), "node", "", "real, simulated or both (default real where that is possible, else simulated)")
	cmd.AddCommand(up(&o), down(&o), status(&o), run(&o), build(&o), loadImage(&o))
	return cmd
}

func versions() string {
	all, err := cluster.Versions()
	if err != nil {
		return err.Error()
	}
	return strings.Join(all, ", ")
}

func up(o *cluster.Options) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Build what is missing and start the cluster",
		Example: `  cluster up
  cluster up --yes --name second --node simulated`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := start(cmd, *o, yes)
			if errors.Is(err, cluster.ErrUp) {
				fmt.Fprintf(cmd.OutOrStdout(), "The cluster is up already.\nKUBECONFIG=%s\n", c.Kubeconfig())
				return nil
			}
			if err != nil {
				return err
			}
			if err := c.Detach(); err != nil {
				return errors.Join(err, c.Down(cmd.Context()))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "KUBECONFIG=%s\n", c.Kubeconfig())
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask first (CI=true does the same)")
	return cmd
}

// start asks, unless it need not, and brings the cluster up. With cluster.ErrUp it returns the one that is up.
func start(cmd *cobra.Command, o cluster.Options, yes bool) (*cluster.Cluster, error) {
	if c, err := cluster.Open(o); err == nil {
		running := fmt.Sprintf("Kubernetes %s, node %s", c.Kubernetes(), c.Node())
		if wanted := fmt.Sprintf("Kubernetes %s, node %s", o.Kubernetes, cmp.Or(o.Node, c.Node())); running != wanted {
			return nil, fmt.Errorf("the cluster is up with %s, and not with %s: run `make cluster-down` first (bin/cluster has --name for two side by side)",
				running, wanted)
		}
		if !c.Detached() {
			return nil, errors.New("the cluster is up for another command, and goes down with it: wait for its end (bin/cluster has --name for two side by side)")
		}
		return c, cluster.ErrUp
	}
	if o.Node == "" {
		var why string
		o.Node, why = cluster.ChooseNode()
		fmt.Fprintln(cmd.ErrOrStderr(), why)
	}
	if err := cluster.Supported(); err != nil && o.Node != cluster.Simulated {
		return nil, fmt.Errorf("%w; or choose NODE=%s", err, cluster.Simulated)
	}
	// Simulated nodes alone are a few processes of the user's own, and change nothing.
	if o.Node != cluster.Simulated && !yes && os.Getenv("CI") != "true" {
		if err := confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr()); err != nil {
			return nil, err
		}
	}
	o.Out = cmd.ErrOrStderr()
	return cluster.Up(cmd.Context(), o)
}

const touches = `This starts a Kubernetes cluster on this machine, as root. While it is up the
machine has
  - a tree of processes in mount, PID, network, UTS and IPC namespaces of its own
  - a cgroup subtree /pod-resizer-NAME, for the pods
  - a folder for its state and one for the built programs, in your cache folder
  - one port, on 127.0.0.1
The machine's network, mounts, sysctls and other files stay as they are.
"make cluster-down" takes all but the built programs away; so does the end of
the command that the cluster was started for.
`

func confirm(ctx context.Context, in io.Reader, out io.Writer) error {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return errors.New("starting a cluster changes this machine a little, and there is no terminal to ask on: set CI=true, as in `CI=true make demo`")
	}
	fmt.Fprint(out, touches, "Go on? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done(): // Ctrl-C does not end a read
		fmt.Fprintln(out)
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	}
	return errors.New("not started; nothing was changed")
}

func down(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "End the cluster and remove every trace of it, also what a killed run has left",
		Example: "  cluster down",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			began := time.Now()
			c, _ := cluster.Open(*o) // nil if there is none
			if err := cluster.Down(cmd.Context(), *o); err != nil {
				return err
			}
			if c == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "No cluster was up; what was left of one is gone.")
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "The cluster is down (%.1fs).\n", time.Since(began).Seconds())
			return nil
		},
	}
}

func status(o *cluster.Options) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Say whether the cluster is up; exit code 1 if it is not, or a node is not ready",
		Example: "  cluster status --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: use text or json", output)
			}
			// An API server that hangs is an answer too.
			ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
			defer cancel()
			s, err := cluster.ReadStatus(ctx, *o)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output == "json" {
				encoder := json.NewEncoder(out)
				encoder.SetIndent("", "  ")
				err = encoder.Encode(s)
			} else {
				err = printStatus(out, s)
			}
			if err == nil && !s.NodesReady {
				err = errors.New(s.Reason)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&output, "output", "text", "text or json")
	return cmd
}

func printStatus(out io.Writer, s cluster.Status) error {
	if !s.Up {
		return nil // the error says it all
	}
	nodes := "ready"
	if !s.NodesReady {
		nodes = "not all ready"
	}
	_, err := fmt.Fprintf(out, "cluster     %s, Kubernetes %s, up for %s\nnodes       %d, %s, %s; %d pods\nserver      %s\nfolder      %s\nKUBECONFIG=%s\n",
		s.Name, s.Kubernetes, time.Since(s.Started).Round(time.Second), s.Nodes, s.Node, nodes, s.Pods, s.Server, s.Dir, s.Kubeconfig)
	return err
}

// childError is how the command of run ended. Programs that fail underneath, such as go build, are no such command: what
// they said has to be printed.
type childError struct{ *exec.ExitError }

func run(o *cluster.Options) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command with a cluster that lasts as long as it does",
		Long: `Starts the cluster, runs the command with KUBECONFIG and ` + cluster.DirVariable + ` set, and takes the cluster down
again however the command ends. The exit code is the command's. A cluster that is up already is used and left up.`,
		Example: "  cluster run -- go test ./e2e/...",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			c, err := start(cmd, *o, yes)
			switch {
			case errors.Is(err, cluster.ErrUp):
				fmt.Fprintf(cmd.ErrOrStderr(), "Using the cluster that is up already: Kubernetes %s, node %s.\n", c.Kubernetes(), c.Node())
			case err != nil:
				return err
			default:
				defer func() {
					if downErr := c.Down(cmd.Context()); downErr != nil {
						fmt.Fprintln(cmd.ErrOrStderr(), "Error:", downErr)
						err = errors.Join(downErr, err)
					}
				}()
			}
			child := exec.CommandContext(cmd.Context(), args[0], args[1:]...)
			child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
			child.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), cluster.DirVariable+"="+c.Dir())
			// A Ctrl-C on the terminal has reached the command by itself; other signals have not.
			child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
			child.WaitDelay = 30 * time.Second
			err = child.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return childError{exit}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask first (CI=true does the same)")
	return cmd
}

func build(o *cluster.Options) *cobra.Command {
	var addOns []string
	cmd := &cobra.Command{
		Use:     "build",
		Short:   "Build the cluster's programs into the cache folder and start nothing; needs no root",
		Example: "  cluster build",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.ErrOrStderr()
			if err := cluster.Build(cmd.Context(), *o); err != nil {
				return err
			}
			for _, name := range addOns {
				if _, _, err := cluster.AddOn(cmd.Context(), name, o.Out); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&addOns, "add-on", nil, "build this, too: argo-rollouts")
	return cmd
}

func loadImage(o *cluster.Options) *cobra.Command {
	var image cluster.Image
	cmd := &cobra.Command{
		Use:     "load-image REF PATH=FILE...",
		Short:   "Make an image of some files and load it into the running cluster",
		Example: "  cluster load-image pod-resizer:dev /pod-resizer=bin/pod-resizer",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Open(*o)
			if err != nil {
				return err
			}
			image.Ref, image.Files = args[0], map[string]string{}
			for _, arg := range args[1:] {
				path, file, ok := strings.Cut(arg, "=")
				if !ok {
					return fmt.Errorf("%q: want PATH=FILE, the path in the image and the file on this machine", arg)
				}
				image.Files[path] = file
			}
			return c.LoadImage(cmd.Context(), image)
		},
	}
	cmd.Flags().StringSliceVar(&image.Entrypoint, "entrypoint", nil, "program and arguments, with commas (default the only file)")
	cmd.Flags().StringVar(&image.User, "user", "", "user and group (default 65532:65532)")
	return cmd
}
