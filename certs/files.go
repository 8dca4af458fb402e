// Package certs is the serving certificate: read from files and reloaded without a dropped connection, and, where
// there is no cert-manager, a self-managed CA that puts it there.
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// Files serves the pair tls.crt and tls.key of a directory, such as a mounted Secret of type kubernetes.io/tls.
// It looks at the files at every handshake (two stats, microseconds, and handshakes are rare as the API server keeps
// its connections), so a new pair is served from the next connection on and connections that are open go on. A pair
// that cannot be used (half-written, mismatching, expired) leaves the last good one in service.
// Its methods may be called concurrently.
type Files struct {
	certPath, keyPath string
	logger            *slog.Logger
	metrics           *metrics

	mu                sync.Mutex
	cert              *tls.Certificate // the last good pair, nil until there was one
	certInfo, keyInfo fs.FileInfo      // the files that cert was read from
	logged            string           // the failure logged last
}

// NewFiles returns a Files for the pair in dir, which need not be there yet. It panics if the registry already holds
// the metrics of another Files.
func NewFiles(dir string, logger *slog.Logger, registry prometheus.Registerer) *Files {
	return &Files{
		certPath: filepath.Join(dir, corev1.TLSCertKey),
		keyPath:  filepath.Join(dir, corev1.TLSPrivateKeyKey),
		logger:   logger,
		metrics:  newMetrics(registry),
	}
}

// GetCertificate is for [tls.Config]. It returns an error only as long as there was never a good pair.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.current()
}

// Ready says why no valid certificate can be served; nil means that one is. It also looks at the files, so that a
// probe notices a new or a bad pair (and the metrics show it) where no connection is made.
func (f *Files) Ready() error {
	cert, err := f.current()
	if err != nil {
		return err
	}
	return checkExpiry(cert, f.certPath)
}

func (f *Files) current() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.reload()
	if err == nil {
		f.logged = ""
		return f.cert, nil
	}
	f.report(err)
	if f.cert != nil {
		return f.cert, nil
	}
	return nil, err
}

// reload loads the pair unless it is the one in service. A failure is not remembered: the next call tries again, so
// neither a transient read error nor a pair caught between two writes can stick.
func (f *Files) reload() error {
	// Stat comes before read: a file replaced in between is then loaded once more, never missed.
	certInfo, err := os.Stat(f.certPath)
	if err != nil {
		return fmt.Errorf("reading the certificate: %w", err)
	}
	keyInfo, err := os.Stat(f.keyPath)
	if err != nil {
		return fmt.Errorf("reading the key: %w", err)
	}
	if f.cert != nil && unchanged(f.certInfo, certInfo) && unchanged(f.keyInfo, keyInfo) {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(f.certPath, f.keyPath)
	if err != nil {
		return fmt.Errorf("loading %s and %s: %w", f.certPath, f.keyPath, err)
	}
	if err := checkExpiry(&cert, f.certPath); err != nil {
		return err
	}
	f.cert, f.certInfo, f.keyInfo = &cert, certInfo, keyInfo
	f.metrics.succeeded.Inc()
	f.metrics.expiry.Set(float64(cert.Leaf.NotAfter.Unix()))
	f.logger.Info("certificate loaded", "path", f.certPath, "not_after", cert.Leaf.NotAfter,
		"serial", cert.Leaf.SerialNumber.Text(16))
	return nil
}

// report counts the failure, and logs it unless the previous one was the same. Files that are not there at the start
// are merely awaited: whoever writes them (the kubelet, SelfManaged) comes up at the same time.
func (f *Files) report(err error) {
	level := slog.LevelError
	if f.cert == nil && errors.Is(err, fs.ErrNotExist) {
		level = slog.LevelInfo
	} else {
		f.metrics.faulty.Inc()
	}
	if err.Error() == f.logged {
		return
	}
	f.logged = err.Error()
	f.logger.Log(context.Background(), level, "certificate not loaded", "error", err, "serving_previous", f.cert != nil)
}

func checkExpiry(cert *tls.Certificate, path string) error {
	if notAfter := cert.Leaf.NotAfter; time.Now().After(notAfter) {
		return fmt.Errorf("certificate %s expired at %s", path, notAfter.Format(time.RFC3339))
	}
	return nil
}

// unchanged compares what stat says of a path (symlinks followed) at two times. SameFile sees a rename or the swapped
// symlink of a mounted Secret, size and time see a write in place.
func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
