package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"pod-resizer/resizer/plan"
	"pod-resizer/webhook"
	"pod-resizer/webhook/preview"
)

type previewOptions struct {
	files            []string
	recursive        bool
	output           string
	domain           string
	warningsAsErrors bool
}

// previewOutputs are the values of --output, the default first.
func previewOutputs() []string { return []string{"table", "json", "yaml", "diff"} }

func previewCommand() *cobra.Command {
	var o previewOptions
	cmd := &cobra.Command{
		Use:   "preview -f FILE",
		Short: "Show what becomes of the pods in manifests, without a cluster",
		Long: `preview reads manifests and shows what admission would do with their pods: the CPU of every container as written,
while starting and afterwards, what ends the start, the QoS class, warnings, and with --output diff the change. It takes
pods and whatever has a pod template (Deployment, StatefulSet, DaemonSet, Job, CronJob, Argo Rollout, ...), in YAML with
any number of documents, in JSON, and in lists. Other objects are passed over.

It runs the webhook's own code, and asks no cluster. So it does not see what a cluster adds before that code runs: the
defaults of a LimitRange, and what other webhooks do. Nor does it see the environment of an image, or the nodes.

The exit code is 0 if all is well, warnings included, and 1 if something cannot be read or an opted-in pod's annotations
cannot be followed.`,
		Example: `  # A file, a folder, several of them.
  pod-resizer preview -f deployment.yaml -f manifests/

  # What Helm or Kustomize make.
  helm template my-release ./chart | pod-resizer preview -f -
  kubectl kustomize ./overlay | pod-resizer preview -f - --output diff

  # In CI: fail on warnings, too.
  pod-resizer preview -f manifests/ --warnings-as-errors

  # What runs now.
  kubectl get deployments,statefulsets -o yaml | pod-resizer preview -f -

  # The workloads that will not be Guaranteed.
  pod-resizer preview -f manifests/ -o json | jq -r '.workloads[] | select(.optedIn and .qosClassAfter != "Guaranteed") | .name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.files, "filename", "f", nil, "file or folder (its *.yaml, *.yml and *.json) to read; - is standard input; may be repeated")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "read the folders in a folder, too")
	f.StringVarP(&o.output, "output", "o", previewOutputs()[0], strings.Join(previewOutputs(), ", "))
	f.StringVar(&o.domain, "domain", plan.DefaultDomain, "domain of all annotations; as in the cluster")
	f.BoolVar(&o.warningsAsErrors, "warnings-as-errors", false, "exit with 1 on warnings, too")
	return cmd
}

func (o *previewOptions) run(stdin io.Reader, stdout, stderr io.Writer) error {
	if len(o.files) == 0 {
		return errors.New("--filename (-f) is missing: name a file or a folder, or - for standard input")
	}
	if !slices.Contains(previewOutputs(), o.output) {
		return fmt.Errorf("--output %q: write one of %s", o.output, strings.Join(previewOutputs(), ", "))
	}
	keys, err := plan.KeysFor(o.domain)
	if err != nil {
		return fmt.Errorf("--domain: %w", err)
	}
	report := preview.Report{Workloads: []preview.Workload{}}
	for _, name := range o.files {
		if err := o.read(name, stdin, &report, webhook.Mutator{Keys: keys}); err != nil {
			return err
		}
	}
	if err := o.print(stdout, stderr, &report); err != nil {
		return err
	}
	return o.verdict(stderr, &report, keys)
}

// read adds a file, the files of a folder, or standard input.
func (o *previewOptions) read(name string, stdin io.Reader, report *preview.Report, mutator webhook.Mutator) error {
	if name == "-" {
		data, err := io.ReadAll(stdin)
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
		report.Read(mutator, "standard input", data)
		return nil
	}
	found := false
	err := filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != name && !o.recursive:
			return fs.SkipDir
		case entry.IsDir(), path != name && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			return nil
		}
		found = true
		data, err := os.ReadFile(path) //nolint:gosec // Whoever runs the command names its files.
		if err == nil {
			report.Read(mutator, path, data)
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("reading manifests: %w", err)
	case !found:
		return fmt.Errorf("--filename %q: has no *.yaml, *.yml or *.json; name another folder, or add --recursive", name)
	}
	return nil
}

func (o *previewOptions) print(stdout, stderr io.Writer, report *preview.Report) error {
	switch o.output {
	case "json":
		encoder := json.NewEncoder(stdout)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	case "yaml":
		data, err := yaml.Marshal(report)
		if err != nil {
			return fmt.Errorf("writing YAML: %w", err)
		}
		_, err = stdout.Write(data)
		return err
	case "diff":
		return printDiff(stdout, stderr, report)
	default:
		return printTable(stdout, report)
	}
}

// printDiff leaves everything but the diff to stderr, so that a program may read it.
func printDiff(stdout, stderr io.Writer, report *preview.Report) error {
	for _, e := range report.Errors {
		fmt.Fprintf(stderr, "error: %v\n", e)
	}
	for i := range report.Workloads {
		w := &report.Workloads[i]
		for _, text := range notes(w) {
			level, text, _ := strings.Cut(text, " ")
			fmt.Fprintf(stderr, "%s %s: %s: %s\n", level, w.Place, w.Object(), text)
		}
		diff, err := w.Diff()
		if err != nil {
			return err
		}
		if _, err := io.WriteString(stdout, diff); err != nil {
			return err
		}
	}
	return nil
}

// notes are a workload's errors and warnings, a line each.
func notes(w *preview.Workload) []string {
	var all []string
	for _, text := range w.Errors {
		all = append(all, "error: "+text)
	}
	for _, text := range w.Warnings {
		all = append(all, "warning: "+text)
	}
	return all
}

func printTable(stdout io.Writer, report *preview.Report) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for i := range report.Workloads {
		w := &report.Workloads[i]
		title := w.Object()
		if w.Namespace != "" {
			title += " in " + w.Namespace
		}
		fmt.Fprintf(table, "%s (%s line %d): %s\n", title, w.File, w.Line, outcome(w))
		if w.OptedIn && len(w.Containers) > 0 {
			printPod(table, w)
		}
		for _, note := range notes(w) {
			fmt.Fprintf(table, "  %s\n", note)
		}
		if w.OptedIn {
			fmt.Fprintln(table)
		}
	}
	for _, e := range report.Errors {
		fmt.Fprintf(table, "error: %v\n", e)
	}
	return table.Flush()
}

// outcome is admission's in words.
func outcome(w *preview.Workload) string {
	switch {
	case w.Outcome == webhook.Ignored:
		return "not opted in"
	case w.Outcome == webhook.Unchanged:
		return "opted in, has all it needs"
	case w.Outcome == webhook.Mutated:
		return "opted in"
	case len(w.Containers) == 0:
		return "invalid" // It will not even be created.
	default:
		return "invalid, so its pods are created as written"
	}
}

func printPod(w io.Writer, pod *preview.Workload) {
	fmt.Fprintf(w, "  QoS class\t%s -> %s\n", pod.QOSClassBefore, pod.QOSClassAfter)
	if pod.Trigger != "" {
		delay := ""
		if pod.DelaySeconds > 0 {
			delay = fmt.Sprintf(" + %ds", pod.DelaySeconds)
		}
		fmt.Fprintf(w, "  trigger\t%s%s\n", pod.Trigger, delay)
	}
	if pod.Boost == plan.Opportunistic {
		fmt.Fprintf(w, "  boost\t%s: created with its steady CPU, raised if the node has room\n", pod.Boost)
	}
	fmt.Fprint(w, "  CONTAINER\tCPU AS WRITTEN\tSTARTUP\tSTEADY\n")
	for _, c := range pod.Containers {
		name := c.Name
		if c.Type != preview.App {
			name += " (" + string(c.Type) + ")"
		}
		startup, steady := c.Before, c.Before
		if c.Startup != nil {
			startup, steady = *c.Startup, *c.Steady
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, c.Before, startup, steady)
	}
}

// verdict is the error for the exit code, or says that there was nothing to see.
func (o *previewOptions) verdict(stderr io.Writer, report *preview.Report, keys plan.Keys) error {
	wrong, warnings, optedIn := report.Count()
	switch {
	case wrong > 0:
		return fmt.Errorf("the input is invalid: %s", count(wrong, "error"))
	case warnings > 0 && o.warningsAsErrors:
		return fmt.Errorf("--warnings-as-errors: %s", count(warnings, "warning"))
	case len(report.Workloads)+report.Others == 0:
		return errors.New("the input is empty: what was to write it may have failed")
	case optedIn == 0:
		fmt.Fprintf(stderr, "None of %s opts in: annotate the pod template with %s: \"true\".\n",
			count(len(report.Workloads), "workload"), keys.Enabled)
	}
	return nil
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
