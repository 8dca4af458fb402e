package certs

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const serverName = "pod-resizer.pod-resizer.svc"

// newLeaf returns a serving pair as of now, of a CA of its own.
func newLeaf(t *testing.T, now time.Time) pair {
	t.Helper()
	ca, err := issueCA(now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := issueLeaf(ca, []string{serverName}, now)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// newFiles returns a Files for dir and what it logs.
func newFiles(dir string) (*Files, *bytes.Buffer) {
	var logs bytes.Buffer
	return NewFiles(dir, slog.New(slog.NewTextHandler(&logs, nil)), prometheus.NewRegistry()), &logs
}

// listen echoes over TLS with the certificate of files and returns the address.
func listen(t *testing.T, files *Files) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: files.GetCertificate})
	if err != nil {
		t.Fatal(err)
	}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		connections.Wait()
	})
	return listener.Addr().String()
}

// dial returns an open connection, whose certificate is for the caller to judge.
func dial(t *testing.T, address string) *tls.Conn {
	t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", address,
		&tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func serial(conn *tls.Conn) *big.Int { return conn.ConnectionState().PeerCertificates[0].SerialNumber }

func expectServed(t *testing.T, address string, want pair) {
	t.Helper()
	if got := serial(dial(t, address)); got.Cmp(want.cert.SerialNumber) != 0 {
		t.Errorf("served certificate %x, want %x", got, want.cert.SerialNumber)
	}
}

func write(t *testing.T, dir string, p pair) {
	t.Helper()
	if err := writePair(dir, p); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFilesServesANewPairToNewConnectionsWhileOldOnesGoOn(t *testing.T) {
	dir, before, after := t.TempDir(), newLeaf(t, time.Now()), newLeaf(t, time.Now())
	write(t, dir, before)
	files, _ := newFiles(dir)
	address := listen(t, files)

	open := dial(t, address)
	write(t, dir, after)
	expectServed(t, address, after)

	if serial(open).Cmp(before.cert.SerialNumber) != 0 {
		t.Error("the open connection was not made with the first pair")
	}
	if _, err := open.Write([]byte("still here")); err != nil {
		t.Fatal(err)
	}
	echo := make([]byte, len("still here"))
	if _, err := io.ReadFull(open, echo); err != nil || string(echo) != "still here" {
		t.Errorf("the open connection answered %q, %v", echo, err)
	}
	if got, want := testutil.ToFloat64(files.metrics.expiry), float64(after.cert.NotAfter.Unix()); got != want {
		t.Errorf("expiry metric is %v, want %v", got, want)
	}
}

func TestFilesKeepsTheLastGoodPair(t *testing.T) {
	other, expired := newLeaf(t, time.Now()), newLeaf(t, time.Now().Add(-2*leafLife))
	for name, damage := range map[string]func(t *testing.T, dir string){
		"while the key is not the certificate's": func(t *testing.T, dir string) { overwrite(t, dir, "tls.key", other.keyPEM) },
		"while the certificate is not the key's": func(t *testing.T, dir string) { overwrite(t, dir, "tls.crt", other.certPEM) },
		"while the certificate is half-written": func(t *testing.T, dir string) {
			overwrite(t, dir, "tls.crt", other.certPEM[:len(other.certPEM)/2])
		},
		"while the key is truncated": func(t *testing.T, dir string) { overwrite(t, dir, "tls.key", nil) },
		"while the certificate is gone": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "tls.crt")); err != nil {
				t.Fatal(err)
			}
		},
		"when an expired one is put there": func(t *testing.T, dir string) { write(t, dir, expired) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, good, repaired := t.TempDir(), newLeaf(t, time.Now()), newLeaf(t, time.Now())
			write(t, dir, good)
			files, logs := newFiles(dir)
			address := listen(t, files)
			expectServed(t, address, good)

			damage(t, dir)
			for range 3 {
				expectServed(t, address, good)
			}
			if err := files.Ready(); err != nil {
				t.Errorf("not ready although a good pair is served: %v", err)
			}
			if got := testutil.ToFloat64(files.metrics.faulty); got == 0 {
				t.Error("no failure counted")
			}
			if got := strings.Count(logs.String(), "certificate not loaded"); got != 1 {
				t.Errorf("logged %d times, want once:\n%s", got, logs)
			}

			write(t, dir, repaired)
			expectServed(t, address, repaired)
			if got := testutil.ToFloat64(files.metrics.succeeded); got != 2 {
				t.Errorf("%v successful loads counted, want 2", got)
			}
		})
	}
}

func TestFilesLogsAFailureThatComesBackAfterARepair(t *testing.T) {
	dir := t.TempDir()
	files, logs := newFiles(dir)
	for range 2 {
		write(t, dir, newLeaf(t, time.Now()))
		if err := files.Ready(); err != nil {
			t.Fatal(err)
		}
		overwrite(t, dir, "tls.key", nil)
		for range 2 {
			_ = files.Ready()
		}
	}
	if got := strings.Count(logs.String(), "certificate not loaded"); got != 2 {
		t.Errorf("logged %d times, want twice:\n%s", got, logs)
	}
}

func TestFilesFollowsTheSymlinkSwapOfAMountedSecret(t *testing.T) {
	// The kubelet's layout: tls.crt -> ..data/tls.crt, ..data -> ..<timestamp>, swapped by one rename.
	dir := t.TempDir()
	mount := func(generation string, p pair) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, generation), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, generation), p)
		if err := os.Symlink(generation, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	before, after := newLeaf(t, time.Now()), newLeaf(t, time.Now())
	mount("..1", before)
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	files, _ := newFiles(dir)
	address := listen(t, files)
	expectServed(t, address, before)

	mount("..2", after)
	if err := os.RemoveAll(filepath.Join(dir, "..1")); err != nil {
		t.Fatal(err)
	}
	expectServed(t, address, after)
	if got := testutil.ToFloat64(files.metrics.faulty); got != 0 {
		t.Errorf("%v failures counted, want none", got)
	}
}

func TestFilesReadySaysWhyThereIsNoCertificate(t *testing.T) {
	good, expired := newLeaf(t, time.Now()), newLeaf(t, time.Now().Add(-2*leafLife))
	for name, test := range map[string]struct {
		files    map[string][]byte
		want     string
		failures float64
	}{
		"nothing was written yet, which is no failure": {nil, "tls.crt: no such file", 0},
		"the key is missing":                           {map[string][]byte{"tls.crt": good.certPEM}, "tls.key: no such file", 0},
		"the files are garbage": {
			map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y")}, "failed to find any PEM data", 1,
		},
		"the certificate expired": {
			map[string][]byte{"tls.crt": expired.certPEM, "tls.key": expired.keyPEM}, "tls.crt expired at ", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range test.files {
				overwrite(t, dir, name, content)
			}
			files, _ := newFiles(dir)
			if err := files.Ready(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Ready: %v, want %q", err, test.want)
			}
			if got := testutil.ToFloat64(files.metrics.faulty); got != test.failures {
				t.Errorf("%v failures counted, want %v", got, test.failures)
			}
			if _, err := files.GetCertificate(nil); err == nil {
				t.Error("GetCertificate gave a certificate")
			}
		})
	}
}

func TestFilesReadyNoticesThatTheServedCertificateExpires(t *testing.T) {
	dir := t.TempDir()
	// It has one to two seconds to live, as certificates count whole seconds.
	write(t, dir, newLeaf(t, time.Now().Add(2*time.Second-leafLife)))
	files, _ := newFiles(dir)
	if err := files.Ready(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := files.Ready(); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("Ready: %v, want expired", err)
	}
}

func TestFilesHasItsMetricsFromTheStart(t *testing.T) {
	registry := prometheus.NewRegistry()
	NewFiles(t.TempDir(), slog.New(slog.DiscardHandler), registry)
	const want = `
# HELP pod_resizer_certificate_expiry_timestamp_seconds When the served certificate expires, in Unix seconds; 0 until one is loaded.
# TYPE pod_resizer_certificate_expiry_timestamp_seconds gauge
pod_resizer_certificate_expiry_timestamp_seconds 0
# HELP pod_resizer_certificate_reloads_total Attempts to load the serving certificate, the first load included. A bad pair is tried again at every handshake and probe, so failures keep rising while it is there.
# TYPE pod_resizer_certificate_reloads_total counter
pod_resizer_certificate_reloads_total{result="failure"} 0
pod_resizer_certificate_reloads_total{result="success"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestFilesGivesEveryHandshakeAPairThatMatchesWhileItIsReplaced(t *testing.T) {
	dir, last := t.TempDir(), newLeaf(t, time.Now())
	write(t, dir, last)
	files := NewFiles(dir, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := files.Ready(); err != nil { // from here on there is a last good pair
		t.Fatal(err)
	}
	address := listen(t, files)

	done := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				// A handshake proves that key and certificate match.
				conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
				if err != nil {
					t.Errorf("handshake: %v", err)
					return
				}
				_ = conn.Close()
			}
		})
	}
	for range 100 {
		last = newLeaf(t, time.Now())
		write(t, dir, last)
	}
	close(done)
	clients.Wait()
	expectServed(t, address, last)
}
