package main

import (
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"pod-resizer/certs"
	"pod-resizer/resizer"
	"pod-resizer/resizer/plan"
	"pod-resizer/webhook"
)

// The README's tables say what the code says: every annotation, every reason, every metric, and no other.

func TestREADMEListsEveryAnnotation(t *testing.T) {
	keys := mustKeys(t)
	var want []string
	fields := reflect.ValueOf(keys)
	for i := range fields.NumField() {
		name := fields.Field(i).String()
		if name != keys.Managed && name != string(keys.Steady) { // A label and a condition.
			want = append(want, name)
		}
	}
	compare(t, firstCells(t, "| annotation |"), want)
}

func TestREADMEListsEveryTrigger(t *testing.T) {
	for _, trigger := range plan.Triggers() {
		if !strings.Contains(readme(t), fmt.Sprintf("- `%s`: ", trigger)) {
			t.Errorf("the README does not explain the trigger %s", trigger)
		}
	}
}

func TestREADMEListsEveryReason(t *testing.T) {
	var got []string
	for _, row := range rows(t, "| condition |") {
		got = append(got, strings.Trim(row[1], "`"))
	}
	var want []string
	for _, reason := range plan.RecordedReasons() {
		want = append(want, string(reason))
	}
	compare(t, got, want)
}

// TestREADMEListsEveryMetric also shows that each metric is there, with all its label values, before anything has happened:
// a vector without children would not be gathered.
func TestREADMEListsEveryMetric(t *testing.T) {
	registry, log := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	certs.NewFiles(t.TempDir(), log, registry)
	if _, err := resizer.New(resizer.Options{Config: &rest.Config{}, Keys: mustKeys(t), Registerer: registry, Log: log}); err != nil {
		t.Fatal(err)
	}
	webhook.NewServer(webhook.Options{Registry: registry, Logger: log})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range families {
		var labels []string
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
		}
		row := fmt.Sprintf("| `%s` | %s | %s", f.GetName(), strings.ToLower(f.GetType().String()), f.GetHelp())
		if len(labels) > 0 {
			slices.Sort(labels)
			labels = slices.Compact(labels) // Where there are several labels, the values of each.
			row += " Labels: `" + strings.Join(labels, "`, `") + "`"
		}
		want = append(want, row+" |")
	}
	var got []string
	for _, row := range rows(t, "| metric |") {
		got = append(got, "| "+strings.Join(row, " | ")+" |")
	}
	compare(t, got, want)
}

func mustKeys(t *testing.T) plan.Keys {
	t.Helper()
	keys, err := plan.KeysFor(plan.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rows are the cells of the table that begins with a header.
func rows(t *testing.T, header string) [][]string {
	t.Helper()
	_, table, found := strings.Cut(readme(t), "\n"+header)
	if !found {
		t.Fatalf("the README has no table that begins with %q", header)
	}
	var all [][]string
	for i, line := range strings.Split(table, "\n") {
		if i < 2 { // What is left of the header, and the line below it.
			continue
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		all = append(all, row)
	}
	return all
}

func firstCells(t *testing.T, header string) []string {
	t.Helper()
	var all []string
	for _, row := range rows(t, header) {
		all = append(all, strings.Trim(row[0], "`"))
	}
	return all
}

func compare(t *testing.T, got, want []string) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the README has\n%s\n\nthe code\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
