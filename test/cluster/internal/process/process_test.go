package process

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestAReusedPidIsNotAlive(t *testing.T) {
	me, err := Identify(os.Getpid())
	if err != nil || !me.Alive() {
		t.Fatalf("this process: %+v, %v", me, err)
	}
	for _, other := range []Process{{PID: me.PID, Start: me.Start + 1, Boot: me.Boot}, {PID: me.PID, Start: me.Start, Boot: "x"}, {}} {
		if other.Alive() {
			t.Errorf("%+v counts as alive", other)
		}
	}
}

func TestKillEndsTheProcessAndNoOther(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	other := p
	other.Start++
	if err := other.Kill(context.Background()); err != nil || !p.Alive() {
		t.Fatalf("a process of the same pid was killed: %v", err)
	}
	// Nobody has reaped it when Kill returns: a zombie is dead.
	if err := p.Kill(context.Background()); err != nil || p.Alive() {
		t.Errorf("still alive: %v", err)
	}
	_ = cmd.Wait() // reports the signal
	if err := p.Kill(context.Background()); err != nil {
		t.Errorf("killing what is gone: %v", err)
	}
}

func TestTerminateKillsWhatDoesNotObey(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 1)) // The trap is set.
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(context.Background(), 200*time.Millisecond); err != nil || p.Alive() {
		t.Errorf("still alive: %v", err)
	}
	_ = cmd.Wait() // reports the signal
}
