package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"pod-resizer/resizer/plan"
)

type statusOptions struct {
	domain, kubeconfig, context, namespace, output string
	allNamespaces, watch                           bool
}

// podStatus is a line of the table, and an item of the JSON.
type podStatus struct {
	Namespace        string        `json:"namespace"`
	Name             string        `json:"name"`
	Phase            plan.Phase    `json:"phase"`
	Reason           plan.Reason   `json:"reason"`
	ReservedMilliCPU plan.MilliCPU `json:"reservedMilliCPU"`
	ReleasedMilliCPU plan.MilliCPU `json:"releasedMilliCPU"`
	StartupSeconds   float64       `json:"startupSeconds,omitempty"`
	Message          string        `json:"message,omitempty"`
}

// statusReport is the JSON.
type statusReport struct {
	Pods             []podStatus        `json:"pods"`
	Phases           map[plan.Phase]int `json:"phases"`
	ReservedMilliCPU plan.MilliCPU      `json:"reservedMilliCPU"`
	ReleasedMilliCPU plan.MilliCPU      `json:"releasedMilliCPU"`
}

func statusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show where the opted-in pods of a cluster stand",
		Long: `status shows the opted-in pods of a namespace, or of all: phase and reason, the CPU that they hold for their startup
and that they have given back, and sums. It reads pods and decides as the resizer does; it writes nothing.

As a file named kubectl-resizer in the PATH, it is the kubectl plugin "kubectl resizer status".`,
		Example: `  # The namespace of the current context; all of them; those that went wrong.
  pod-resizer status
  pod-resizer status -A
  pod-resizer status -A --output json | jq '.pods[] | select(.phase == "Skipped")'

  # And each change.
  pod-resizer status -n shop --watch`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.domain, "domain", plan.DefaultDomain, "domain of all annotations, the label and the condition")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "path of a kubeconfig (default $KUBECONFIG, else ~/.kube/config)")
	f.StringVar(&o.context, "context", "", "context of the kubeconfig (default its current one)")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace (default that of the context)")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.BoolVarP(&o.watch, "watch", "w", false, "go on with a line for each change, until interrupted")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	return cmd
}

func (o *statusOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	switch {
	case o.output != "table" && o.output != "json":
		return fmt.Errorf("--output %q: write table or json", o.output)
	case o.output == "json" && o.watch:
		return fmt.Errorf("--watch: write --output table, or leave it out")
	}
	keys, err := plan.KeysFor(o.domain)
	if err != nil {
		return fmt.Errorf("--domain: %w", err)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loading := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.context})
	config, err := loading.ClientConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	namespace := o.namespace
	if namespace == "" {
		if namespace, _, err = loading.Namespace(); err != nil {
			return fmt.Errorf("finding the namespace: %w", err)
		}
	}
	if o.allNamespaces {
		namespace = metav1.NamespaceAll
	}
	config.UserAgent = "pod-resizer/" + version
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the Kubernetes client: %w", err)
	}
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	report := newStatusReport(keys, list.Items, time.Now())
	if o.output == "json" {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	}
	report.table(stdout)
	if len(report.Pods) == 0 {
		fmt.Fprintf(stderr, "No pod is opted in: annotate the pod template with %s: \"true\".\n", keys.Enabled)
	}
	if !o.watch {
		return nil
	}
	return follow(ctx, stdout, client, keys, namespace, list)
}

// newStatusReport looks at each pod as the resizer does, without what that remembers.
func newStatusReport(keys plan.Keys, pods []corev1.Pod, now time.Time) statusReport {
	r := statusReport{Pods: []podStatus{}, Phases: map[plan.Phase]int{}}
	for i := range pods {
		if s, ok := statusOf(keys, &pods[i], now); ok {
			r.Pods = append(r.Pods, s)
			r.Phases[s.Phase]++
			r.ReservedMilliCPU += s.ReservedMilliCPU
			r.ReleasedMilliCPU += s.ReleasedMilliCPU
		}
	}
	return r
}

// statusOf is false for a pod that is not opted in, or at its end.
func statusOf(keys plan.Keys, pod *corev1.Pod, now time.Time) (podStatus, bool) {
	d := plan.Decide(plan.Input{Keys: keys, Pod: pod, Now: now})
	if d.Phase == "" {
		return podStatus{}, false
	}
	s := podStatus{Namespace: pod.Namespace, Name: pod.Name, Phase: d.Phase, Reason: d.Reason, ReservedMilliCPU: d.Reserved, ReleasedMilliCPU: d.Released}
	recorded := keys.StatusOf(pod)
	s.StartupSeconds = recorded.StartupSeconds
	if d.Reason == plan.AlreadyMarked {
		s.Reason = recorded.Reason
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == keys.Steady {
			s.Message = c.Message
		}
	}
	return s, true
}

func (r *statusReport) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tPOD\tPHASE\tREASON\tRESERVED\tRELEASED\tSTARTUP")
	for _, s := range r.Pods {
		fmt.Fprintln(w, s.row())
	}
	_ = w.Flush() // It fails when nobody reads any more.
	var phases []string
	for _, phase := range plan.Phases() {
		if n := r.Phases[phase]; n > 0 {
			phases = append(phases, fmt.Sprintf("%d %s", n, phase))
		}
	}
	if len(phases) > 0 {
		fmt.Fprintf(out, "\n%s. Reserved for startup: %s. Released: %s.\n", strings.Join(phases, ", "), r.ReservedMilliCPU, r.ReleasedMilliCPU)
	}
}

func (s podStatus) row() string {
	startup := "-"
	if s.StartupSeconds > 0 {
		startup = fmt.Sprintf("%.1fs", s.StartupSeconds)
	}
	return strings.Join([]string{s.Namespace, s.Name, string(s.Phase), string(s.Reason), s.ReservedMilliCPU.String(), s.ReleasedMilliCPU.String(), startup}, "\t")
}

// follow prints a line whenever a pod's phase or reason is another.
func follow(ctx context.Context, out io.Writer, client kubernetes.Interface, keys plan.Keys, namespace string, list *corev1.PodList) error {
	last := map[string]string{}
	for i := range list.Items {
		if s, ok := statusOf(keys, &list.Items[i], time.Now()); ok {
			last[s.Namespace+"/"+s.Name] = s.row()
		}
	}
	watcher, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("the watch has ended: %v", event.Object)
		}
		s, ok := statusOf(keys, pod, time.Now())
		name := pod.Namespace + "/" + pod.Name
		if row := s.row(); ok && last[name] != row {
			last[name] = row
			w := tabwriter.NewWriter(out, 16, 0, 2, ' ', 0)
			fmt.Fprintln(w, row)
			_ = w.Flush()
		}
	}
	return nil
}
