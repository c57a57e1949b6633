// SPDX-License-Identifier: Apache-2.0

// Package refcluster is a rig with refdaemon on it: a control plane, nodes with a libvirt each and without a kubelet, and the daemons as
// processes of their own, which can be killed and started again, at a step of a migration if need be. [realcluster] has nodes with
// kubelets, and uses what of this package asks the API server alone, as the benchmarks do.
//
// [realcluster]: https://pkg.go.dev/github.com/virtloom/virtloom/internal/realcluster
package refcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

// buildGrace is how long an interrupted build may take to clean up.
const buildGrace = 10 * time.Second

// Cluster is a running rig with nodes; the daemons are started by
// StartController and StartAgent.
type Cluster struct {
	// Rig is the control plane.
	Rig *rig.Rig
	// Nodes are the nodes that run VMIs.
	Nodes []*rig.HypervisorNode
	// Client reads and writes as administrator, without a cache.
	Client client.WithWatch
	// Faults receives the steps of migrations.
	Faults *Faults

	binary string
	images string

	mu       sync.Mutex
	programs []*rig.Program
}

// nodes are the nodes of a cluster.
var nodes = []string{"node-a", "node-b"}

// Start builds refdaemon, as one that reports the steps of migrations, and starts control plane and nodes. If it fails, it stops
// everything that it started.
func Start(ctx context.Context) (_ *Cluster, err error) {
	bin, err := rig.BinDir()
	if err != nil {
		return nil, fmt.Errorf("refcluster: %w", err)
	}
	c := &Cluster{binary: filepath.Join(bin, "refdaemon-faultpoints"), images: filepath.Join(bin, "guest", "oci")}
	if err := c.build(ctx); err != nil {
		return nil, err
	}
	if c.Rig, err = rig.Start(ctx, rig.Options{}); err != nil {
		return nil, fmt.Errorf("refcluster: %w", err)
	}
	defer func() {
		if err != nil {
			if ctx.Err() == nil {
				c.Rig.Keep()
			}
			err = errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if c.Client, err = newClient(c.Rig); err != nil {
		return nil, err
	}
	for _, name := range nodes {
		n, err := c.Rig.AddHypervisorNode(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("refcluster: %w", err)
		}
		c.Nodes = append(c.Nodes, n)
	}
	c.Faults, err = newFaults(c.Rig.Dir())
	return c, err
}

// build builds the daemon as it is in this tree; the build cache makes that
// quick when nothing changed.
func (c *Cluster) build(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-tags", "libvirt_dlopen,faultpoints", "-o", c.binary, "github.com/virtloom/virtloom/refdaemon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	// Asked to stop, go ends what it started and removes its temporary files.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = buildGrace
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("refcluster: build refdaemon: %w\n%s", err, out)
	}
	return nil
}

func newClient(r *rig.Rig) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme), migrationsv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("refcluster: %w", err)
	}
	c, err := client.NewWithWatch(r.Config(rig.UserAdmin), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("refcluster: %w", err)
	}
	return c, nil
}

// StartController starts refdaemon controller, with further flags if there are any.
func (c *Cluster) StartController(flags ...string) (*rig.Program, error) {
	args := []string{"controller", "--kubeconfig", c.Rig.Kubeconfig(rig.UserController), "--leader-elect=false",
		"--launcher-image", "virtloom.test/launcher:1", "--trace-file", filepath.Join(c.Rig.Dir(), "controller.spans")}
	return c.watchOver(c.Rig.Run("refdaemon-controller", exec.Command(c.binary, append(args, flags...)...)))
}

// StartAgent starts refdaemon node on a node, with further flags if there are any.
// Like the controller it runs until it is stopped or the cluster is.
func (c *Cluster) StartAgent(n *rig.HypervisorNode, flags ...string) (*rig.Program, error) {
	proof, err := n.Credentials()
	if err != nil {
		return nil, fmt.Errorf("refcluster: %w", err)
	}
	args := []string{"node", "--kubeconfig", c.Rig.Kubeconfig(rig.NodeUser(n.Name())),
		"--node-name", n.Name(), "--address", n.Address(),
		"--migration-cert", proof.Cert, "--migration-key", proof.Key, "--migration-ca", proof.CA,
		"--images", c.images, "--insecure-shared-hypervisor", "--trace-file", filepath.Join(c.Rig.Dir(), n.Name()+".spans")}
	cmd := exec.Command(c.binary, append(args, flags...)...)
	cmd.Env = append(os.Environ(), faultVariable+"="+c.Faults.path())
	return c.watchOver(n.Run("refdaemon-"+n.Name(), cmd))
}

// watchOver records a daemon for Alive.
func (c *Cluster) watchOver(p *rig.Program, err error) (*rig.Program, error) {
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programs = append(c.programs, p)
	return p, nil
}

// Forget stops watching over a daemon, before a test ends it.
func (c *Cluster) Forget(p *rig.Program) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programs = slices.DeleteFunc(c.programs, func(have *rig.Program) bool { return have == p })
}

// Alive returns an error if a daemon that should be running has ended.
func (c *Cluster) Alive() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.programs {
		select {
		case <-p.Done():
			return p.Ended()
		default:
		}
	}
	return nil
}

// Node returns the node of that name, nil if there is none.
func (c *Cluster) Node(name string) *rig.HypervisorNode {
	for _, n := range c.Nodes {
		if n.Name() == name {
			return n
		}
	}
	return nil
}

// Stop ends everything.
func (c *Cluster) Stop(ctx context.Context) error {
	var errs []error
	if c.Faults != nil {
		errs = append(errs, c.Faults.Close())
	}
	for _, n := range c.Nodes {
		errs = append(errs, n.Stop(ctx))
	}
	return errors.Join(append(errs, c.Rig.Stop(ctx))...)
}
