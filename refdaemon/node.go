// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/refdaemon/ocilayout"
)

// memoryScheme names the in-memory hypervisor, which runs no real guests.
const memoryScheme = "memory:"

// nodeOptions are the flags of "refdaemon node".
type nodeOptions struct {
	process
	node       string
	hypervisor string
	address    string
	migration  migrationOptions
	stateDir   string
	images     string
	bridge     string
	launchers  string
	cgroups    string
	plugins    string
	heartbeat  time.Duration
	drain      time.Duration
	progress   time.Duration
}

// endGrace is what the agent's parts may take to end beside its migrations: one call to the
// hypervisor and the write that tells of its result.
const endGrace = time.Minute

func runNode(ctx context.Context, args []string, _ io.Writer) error {
	o := nodeOptions{process: process{name: "node"}}
	fs := flag.NewFlagSet("refdaemon node", flag.ContinueOnError)
	o.flags(fs)
	o.migration.flags(fs)
	o.validate = o.check
	o.grace = func() time.Duration { return o.drain + endGrace }
	fs.StringVar(&o.node, "node-name", "", "`name` of the Kubernetes node this agent serves (required)")
	fs.StringVar(&o.hypervisor, "hypervisor", "qemu:///system", "libvirt connection `URI`, or "+memoryScheme+" for one that runs no real guests")
	fs.StringVar(&o.address, "address", "", "IP `address` at which other nodes' agents reach this one (required)")
	fs.StringVar(&o.stateDir, "state-dir", "/var/lib/virtloom", "`directory` for guests' files, the same on every node and private to each")
	fs.StringVar(&o.images, "images", "", "OCI image layout `directory` with the images of containerDisk and kernelBoot volumes")
	fs.DurationVar(&o.heartbeat, "heartbeat", nodectrl.DefaultHeartbeat, "shortest `time` between two signs of life of this node")
	fs.DurationVar(&o.progress, "progress-every", domainctrl.DefaultProgressEvery, "least `time` between two reports on how far a live migration has come")
	fs.StringVar(&o.bridge, "bridge", "br0", "host `bridge` that guests' interfaces are plugged into; a guest waits until it is there and up, where this agent and libvirt see the same network")
	o.launcherFlags(fs)
	o.pluginFlag(fs)
	fs.DurationVar(&o.drain, "drain", domainctrl.DefaultDrainWithin, "`time` for which an agent that is told to end carries on with migrations under way, before it aborts them; give the Pod a minute more")
	return o.run(ctx, fs, args, o.add)
}

// check tells which flags are missing or wrong.
func (o *nodeOptions) check() error {
	var errs []error
	if o.node == "" {
		errs = append(errs, errors.New("--node-name is required: the name of the Kubernetes node this agent serves"))
	}
	switch _, err := netip.ParseAddr(o.address); {
	case o.address == "":
		errs = append(errs, errors.New("--address is required: the IP address at which other nodes' agents reach this one"))
	case err != nil:
		errs = append(errs, fmt.Errorf("--address %q is not an IP address; ports are chosen by the agents", o.address))
	}
	errs = append(errs, o.migration.check(), o.checkPlugins(), o.checkLaunchers())
	if o.heartbeat < 0 {
		errs = append(errs, fmt.Errorf("--heartbeat %s is not a time between two signs of life", o.heartbeat))
	}
	if o.drain < 0 {
		errs = append(errs, fmt.Errorf("--drain %s is not a time to wait for migrations", o.drain))
	}
	if o.progress < 0 {
		errs = append(errs, fmt.Errorf("--progress-every %s is not a time between two reports", o.progress))
	}
	return errors.Join(errs...)
}

// add registers the agent.
func (o *nodeOptions) add(ctx context.Context, mgr manager.Manager) error {
	node, err := o.open(ctx)
	if err != nil {
		return err
	}
	hv, launchers, err := o.guests(ctx, mgr, node)
	if err != nil {
		return err
	}
	caches, err := domainctrl.NewCaches(mgr.GetConfig(), mgr.GetScheme(), o.node)
	if err != nil {
		return err
	}
	transport, err := o.transport(mgr, hv)
	if err != nil {
		return err
	}
	r := &domainctrl.Reconciler{
		NodeName: o.node, Transport: transport, Hypervisor: hv, Workspace: o.workspace(mgr),
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Caches: caches,
		Recorder: mgr.GetEventRecorder("virtloom-node"), OnStep: onStep(o.node), DrainWithin: o.drain, ProgressEvery: o.progress,
	}
	if launchers != nil {
		r.Connector = launchers
		o.inPods(r.Workspace, launchers, domainctrl.VolumeClaims{Reader: mgr.GetAPIReader()})
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return err
	}
	if err := metrics.Registry.Register(r.Metrics()); err != nil {
		return fmt.Errorf("register the metrics of migrations: %w", err)
	}
	return o.addServices(mgr, node, r.Drained())
}

// addServices registers what tells the cluster about the node, until the agent has drained. It is the
// node's own hypervisor that tells what it can do, and whether it takes guests: launchers come and go.
func (o *nodeOptions) addServices(mgr manager.Manager, hv domain.Hypervisor, drained <-chan struct{}) error {
	if c, able := hv.(domain.CapabilitiesReader); able {
		l := &nodectrl.Labeller{
			NodeName: o.node, Client: mgr.GetClient(), Node: mgr.GetAPIReader(), Capabilities: c, Recorder: mgr.GetEventRecorder("virtloom-node"),
		}
		if err := l.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	devices, err := o.devices(mgr)
	if err != nil {
		return err
	}
	return mgr.Add(&nodectrl.Heartbeat{
		NodeName: o.node, Client: mgr.GetClient(), Hypervisor: hv, Devices: devices, Every: o.heartbeat, Drained: drained,
	})
}

func (o *nodeOptions) open(ctx context.Context) (domain.Hypervisor, error) {
	if strings.HasPrefix(o.hypervisor, memoryScheme) {
		return domaintest.New(o.node), nil
	}
	hv, err := libvirt.Open(ctx, o.hypervisor, libvirt.Options{MigrationDir: o.migration.dir})
	if err != nil {
		return nil, fmt.Errorf("open hypervisor %q: %w", o.hypervisor, err)
	}
	return hv, nil
}

func (o *nodeOptions) workspace(mgr manager.Manager) *domainctrl.Workspace {
	settings := &domainctrl.ClusterSettings{Reader: mgr.GetAPIReader()}
	w := &domainctrl.Workspace{
		Root: o.stateDir, Bridge: o.bridge,
		Claims:         domainctrl.VolumeClaims{Reader: mgr.GetAPIReader()},
		Objects:        domainctrl.ClusterObjects{Reader: mgr.GetAPIReader()},
		AllowEmulation: settings.AllowEmulation, Settings: settings.KubeVirt,
	}
	if o.seesBridges() {
		w.Networks = o.networks()
	}
	if o.images != "" {
		w.Images = ocilayout.Store{Dir: o.images}
	}
	return w
}
