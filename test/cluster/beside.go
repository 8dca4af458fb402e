package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"pod-resizer/test/cluster/internal/supervise"
)

// Program is a program of this machine that runs beside a cluster of simulated nodes, which run nothing, as long as the
// cluster does. Its output goes to Logs, NAME.log.
type Program struct {
	Name string
	Path string
	Args []string
	Env  []string
}

// RunBeside starts the programs and ends those that ran before and are not named again, unchanged.
func (c *Cluster) RunBeside(ctx context.Context, programs ...Program) error {
	if c.state.Node != Simulated {
		return fmt.Errorf("running programs beside the cluster: its node is %s, and runs them in pods", c.state.Node)
	}
	var all supervise.Programs
	for _, p := range programs {
		all = append(all, supervise.Component{
			Name: p.Name, Path: p.Path, Args: p.Args, Env: p.Env, Log: filepath.Join(c.Logs(), p.Name+".log"),
		})
	}
	return supervise.RunBeside(ctx, filepath.Join(c.dir, socketFile), all)
}

// BesideCertificates is a folder with tls.crt and tls.key, with which a program beside the cluster may serve 127.0.0.1.
func (c *Cluster) BesideCertificates() string { return filepath.Join(c.dir, pkiDir, besideDir) }

// CA is the file of the CA that has signed all of the cluster's certificates.
func (c *Cluster) CA() string { return filepath.Join(c.dir, pkiDir, "ca.crt") }

// Temp is a folder for files that are to go with the cluster.
func (c *Cluster) Temp() string { return filepath.Join(c.dir, tmpDir) }
