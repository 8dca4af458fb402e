package main

import (
	"strings"
	"testing"
)

func TestServeNamesWrongFlags(t *testing.T) {
	for _, tc := range []struct{ flags, says string }{
		{"--on-invalid=refuse", `--on-invalid "refuse": write warn or deny`},
		{"--certificate=none", `--certificate "none": write self-managed or files`},
		{"--namespace=", "--namespace is empty"},
		{"--workers=0", "--workers 0: write 1 or more"},
	} {
		cmd := serveCommand()
		cmd.SetArgs(append([]string{"--namespace=x", "--identity=x"}, tc.flags))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v; want %q", tc.flags, err, tc.says)
		}
	}
}
