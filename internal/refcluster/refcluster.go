// SPDX-License-Identifier: Apache-2.0

// Package refcluster is a rig with refdaemon on it: a control plane, nodes with
// a libvirt each, and the daemons as processes of their own, which can be
// killed and started again. The demo, the end-to-end tests and the benchmarks
// use it.
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

// Options configure a cluster.
type Options struct {
	// Nodes is the number of nodes with a hypervisor; they are called node-a,
	// node-b and so on.
	Nodes int
	// Rig is passed to rig.Start.
	Rig rig.Options
	// Built is true if bin/refdaemon is up to date; otherwise Start builds it.
	Built bool
	// Launchers runs each VMI in a Pod with a libvirt of its own, served by refdaemon launcher,
	// instead of the node's libvirt.
	Launchers bool
	// Faultpoints builds a daemon that reports the steps of migrations to Cluster.Faults.
	Faultpoints bool
	// ControllerArgs are further arguments for refdaemon controller.
	ControllerArgs []string
}

// Cluster is a running rig with nodes; the daemons are started by
// StartController and StartAgent.
type Cluster struct {
	// Rig is the control plane.
	Rig *rig.Rig
	// Nodes are the nodes that run VMIs.
	Nodes []*rig.HypervisorNode
	// Client reads and writes as administrator, without a cache.
	Client client.WithWatch
	// Faults receives the steps of migrations; nil without Options.Faultpoints.
	Faults *Faults

	binary  string
	tags    string // of the build
	images  string
	args    []string
	kubelet *kubelet // nil without Options.Launchers

	mu       sync.Mutex
	programs []*rig.Program
}

// Start builds refdaemon, if required, and starts control plane and nodes. If it fails, it stops
// everything that it started.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	bin, err := rig.BinDir()
	if err != nil {
		return nil, fmt.Errorf("refcluster: %w", err)
	}
	c := &Cluster{binary: filepath.Join(bin, "refdaemon"), images: filepath.Join(bin, "guest", "oci"), args: o.ControllerArgs, tags: "libvirt_dlopen"}
	if o.Faultpoints {
		c.binary, c.tags = c.binary+"-faultpoints", c.tags+",faultpoints"
	}
	if !o.Built {
		if err := c.build(ctx); err != nil {
			return nil, err
		}
	}
	if c.Rig, err = rig.Start(ctx, o.Rig); err != nil {
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
	if err := c.addNodes(ctx, o.Nodes); err != nil {
		return nil, err
	}
	if o.Launchers {
		err = c.startKubelet(ctx)
	}
	if o.Faultpoints {
		err = errors.Join(err, c.startFaults())
	}
	return c, err
}

func (c *Cluster) addNodes(ctx context.Context, count int) error {
	for i := range count {
		n, err := c.Rig.AddHypervisorNode(ctx, nodeName(i))
		if err != nil {
			return fmt.Errorf("refcluster: %w", err)
		}
		c.Nodes = append(c.Nodes, n)
	}
	return nil
}

func nodeName(i int) string { return "node-" + string(rune('a'+i)) }

// build builds the daemon as it is in this tree; the build cache makes that
// quick when nothing changed.
func (c *Cluster) build(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", c.tags, "-o", c.binary, "github.com/virtloom/virtloom/refdaemon")
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
	args := append([]string{"controller", "--kubeconfig", c.Rig.Kubeconfig(rig.UserController), "--leader-elect=false",
		"--launcher-image", "virtloom.test/launcher:1", "--trace-file", filepath.Join(c.Rig.Dir(), "controller.spans")}, c.args...)
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
		"--images", c.images, "--trace-file", filepath.Join(c.Rig.Dir(), n.Name()+".spans")}
	if c.kubelet != nil {
		// Its Pods share the network of their node.
		args = append(args, "--launchers", podsDir(n), "--bridge", "br0")
	} else {
		args = append(args, "--insecure-shared-hypervisor")
	}
	cmd := exec.Command(c.binary, append(args, flags...)...)
	cmd.Env = c.environment()
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
	return c.kubelet.alive()
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
	if c.kubelet != nil {
		c.kubelet.close()
	}
	if c.Faults != nil {
		errs = append(errs, c.Faults.Close())
	}
	for _, n := range c.Nodes {
		errs = append(errs, n.Stop(ctx))
	}
	return errors.Join(append(errs, c.Rig.Stop(ctx))...)
}
