package cluster

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// heartbeat is how often a long step says, where there is no terminal to draw on, that it is still at work.
const heartbeat = 20 * time.Second

// Progress tells a person what is being done and how long it will take: on a terminal in one line that changes, else in
// lines of their own.
type Progress struct {
	out  io.Writer
	live bool

	mu   sync.Mutex
	last string // the live line, to be drawn again below a note
}

// NewProgress writes to out; nil is nowhere.
func NewProgress(out io.Writer) *Progress {
	if out == nil {
		out = io.Discard
	}
	f, ok := out.(*os.File)
	return &Progress{out: out, live: ok && term.IsTerminal(int(f.Fd()))}
}

// Step announces one step. The caller calls done when it has ended; estimate 0 means that none is known.
func (p *Progress) Step(text string, estimate time.Duration) (done func(error)) {
	began := time.Now()
	every := heartbeat
	if p.live {
		every = time.Second
	}
	p.show(running(text, 0, estimate))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticks.C:
				p.show(running(text, time.Since(began), estimate))
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-stopped
		p.mu.Lock()
		p.last = ""
		p.mu.Unlock()
		p.Note(ended(text, time.Since(began), err))
	}
}

// Note prints a line that stays.
func (p *Progress) Note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live {
		fmt.Fprintf(p.out, "\r\x1b[K%s\n%s", line, p.last)
		return
	}
	fmt.Fprintln(p.out, line)
}

func (p *Progress) show(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
		p.last = line
		return
	}
	fmt.Fprintln(p.out, line)
}

func running(text string, elapsed, estimate time.Duration) string {
	switch {
	case estimate == 0 && elapsed < time.Second:
		return text
	case estimate == 0:
		return fmt.Sprintf("%s, %s", text, short(elapsed))
	case elapsed < time.Second:
		return fmt.Sprintf("%s, about %s", text, short(estimate))
	}
	return fmt.Sprintf("%s, %s of about %s", text, short(elapsed), short(estimate))
}

func ended(text string, elapsed time.Duration, err error) string {
	if err != nil {
		return fmt.Sprintf("%s: stopped after %s", text, short(elapsed))
	}
	return fmt.Sprintf("%s: done in %s", text, short(elapsed))
}

// short is a duration as a person says it: 6m30s, 45s, 0.6s.
func short(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}
