package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"
)

// Programs are all the programs that are to run beside the components. One that runs already and stands here unchanged
// goes on; those that do not stand here are ended.
type Programs []Component

type reply struct {
	Error string `json:"error,omitempty"`
}

// RunBeside asks the supervisor at the socket to run the programs and returns when they are started, and the others gone.
func RunBeside(ctx context.Context, socket string, programs Programs) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("asking the supervisor to run a program: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(programs); err != nil {
		return fmt.Errorf("asking the supervisor to run a program: %w", err)
	}
	var r reply
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		return fmt.Errorf("asking the supervisor to run a program: %w", errors.Join(ctx.Err(), err))
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return nil
}

// listen serves the socket, which is for the user's eyes only as the folder's other files are. One request at a time.
func (s *supervisor) listen() error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", s.spec.Socket)
	if err == nil {
		err = os.Chmod(s.spec.Socket, 0o600)
	}
	if err != nil {
		return fmt.Errorf("opening the supervisor's socket: %w (a socket's path must be short: choose another --dir)", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				s.fail(fmt.Errorf("accepting a request for a program: %w", err))
				return
			}
			s.answer(conn)
		}
	}()
	return nil
}

// requestTimeout bounds how long a caller that says nothing keeps the others waiting.
const requestTimeout = 2 * time.Second

// maxRequest is far above what a few programs take.
const maxRequest = 1 << 20

func (s *supervisor) answer(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(requestTimeout)) // cannot fail on a socket that has just been accepted
	var wanted Programs
	err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&wanted)
	_ = conn.SetDeadline(time.Time{}) // likewise; to end programs may take longer
	if err == nil {
		err = s.runBeside(wanted)
	}
	var r reply
	if err != nil {
		r.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(r) // a caller that has gone away wants no answer
}

func (s *supervisor) runBeside(wanted Programs) error {
	s.mu.Lock()
	children := slices.Collect(maps.Values(s.running))
	s.mu.Unlock()
	for _, c := range children {
		if !c.beside {
			continue
		}
		if i := slices.IndexFunc(wanted, func(w Component) bool { return same(w, c.Component) }); i >= 0 {
			wanted = slices.Delete(wanted, i, i+1)
			continue
		}
		s.end(c)
	}
	for _, w := range wanted {
		if err := s.startProcess(w, true); err != nil {
			return err
		}
	}
	return nil
}

func same(a, b Component) bool {
	return a.Name == b.Name && a.Path == b.Path && a.Log == b.Log && slices.Equal(a.Args, b.Args) && slices.Equal(a.Env, b.Env)
}
