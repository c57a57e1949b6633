// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/refdaemon/health"
	"github.com/virtloom/virtloom/refdaemon/ocilayout"
)

// endGrace is the grace period of the agent's runnables, migrations not included: one call to the
// hypervisor and the write of its result, or of that of an aborted migration.
const endGrace = 2 * domainctrl.DefaultCallTimeout

// hypervisorWithin bounds the wait for the node's hypervisor to begin, tried every hypervisorEvery.
const (
	hypervisorWithin = 45 * time.Second
	hypervisorEvery  = 500 * time.Millisecond
)

// node is what "refdaemon node" runs.
type node struct {
	process
	config *configfile.NodeConfiguration
	source configfile.Source[*configfile.NodeConfiguration]
}

func newNode() *cobra.Command {
	return asDaemon(&cobra.Command{
		Use: "node", Short: "run the agent of one node",
		Long: `Runs the agent of one node: it runs the VMIs that are assigned to the node in the node's
libvirt, or in their launcher Pods, reports their status, and migrates them to other nodes.
Upon SIGTERM it takes no more VMIs, continues migrations under way for the time of --drain,
and exits; guests keep running, and the next agent finds them.`,
		Example: `  # In a Pod, with the common settings of all nodes in a file:
  refdaemon node --config examples/config/node.yaml --node-name node-a --address 192.0.2.11
  # VMIs in the node's own libvirt, migrated between nodes that trust each other with everything:
  refdaemon node --insecure-shared-hypervisor --kubeconfig node-a.conf --node-name node-a --address 192.0.2.11 \
    --migration-cert /certs/tls.crt --migration-key /certs/tls.key --migration-ca /certs/ca.crt
  # Without libvirt, with the in-memory hypervisor:
  refdaemon node --kubeconfig node-a.conf --node-name node-a --address 192.0.2.11 --hypervisor memory: --insecure-migration`,
	}, configfile.KindNode, configfile.NewNode, runNode)
}

func runNode(ctx context.Context, config *configfile.NodeConfiguration, source configfile.Source[*configfile.NodeConfiguration]) error {
	o := &node{process: newProcess("node", &config.Daemon), config: config, source: source}
	o.grace = ptr.To(config.Drain.Duration + endGrace)
	return o.run(ctx, o.add)
}

// add registers the agent.
func (o *node) add(ctx context.Context, mgr manager.Manager) error {
	host, err := o.open(ctx)
	if err != nil {
		return err
	}
	caches, err := domainctrl.NewCaches(mgr.GetConfig(), mgr.GetScheme(), o.config.NodeName)
	if err != nil {
		return err
	}
	hv, launchers, err := o.vmis(ctx, mgr, host, caches)
	if err != nil {
		return err
	}
	transport, err := o.transport(mgr, hv)
	if err != nil {
		return err
	}
	r := &domainctrl.Reconciler{
		NodeName: o.config.NodeName, Transport: transport, Hypervisor: hv, Workspace: o.workspace(mgr),
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Caches: caches,
		Recorder: mgr.GetEventRecorder("virtloom-node"), OnStep: onStep(o.config.NodeName), DrainWithin: o.config.Drain.Duration, ProgressEvery: o.config.ProgressEvery.Duration,
	}
	if launchers != nil {
		r.Connector = launchers
		if err := o.inPods(r.Workspace, launchers, domainctrl.VolumeClaims{Reader: mgr.GetAPIReader()}); err != nil {
			return err
		}
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return err
	}
	if err := metrics.Registry.Register(r.Metrics()); err != nil {
		return fmt.Errorf("register migration metrics: %w", err)
	}
	return errors.Join(o.addServices(mgr, host, r.Drained()), o.addHealth(mgr, host, caches), follow(mgr, &configfile.Watcher[*configfile.NodeConfiguration]{
		Source: o.source, Running: o.config, Apply: o.apply,
	}))
}

// apply applies the live fields of the configuration.
func (o *node) apply(_ context.Context, next *configfile.NodeConfiguration) error {
	o.level.SetLevel(zapLevel(next.Log.Verbosity))
	return nil
}

// addHealth adds probes: that the node's hypervisor answers a list, as the heartbeat asks it, and that the caches of owned and
// incoming VMIs are synced.
func (*node) addHealth(mgr manager.Manager, hv domain.Hypervisor, guests *domainctrl.Caches) error {
	pulse := &health.Pulse{Ask: func(ctx context.Context) error {
		_, err := hv.List(ctx)
		return err
	}}
	return errors.Join(mgr.Add(pulse), metrics.Registry.Register(pulse.Metrics()),
		mgr.AddReadyzCheck("owned", health.Caches(guests.Owned)), mgr.AddReadyzCheck("incoming", health.Caches(guests.Incoming)),
		mgr.AddReadyzCheck("pods", health.Caches(guests.Pods)),
		mgr.AddReadyzCheck("hypervisor", pulse.Ready), mgr.AddHealthzCheck("hypervisor", pulse.Alive))
}

// addServices registers the reporters of the node, which run until the agent has drained. They ask the
// node's own hypervisor for capabilities and availability: launchers come and go.
func (o *node) addServices(mgr manager.Manager, hv domain.Hypervisor, drained <-chan struct{}) error {
	if c, able := hv.(domain.CapabilitiesReader); able {
		l := &nodectrl.Labeller{
			NodeName: o.config.NodeName, Client: mgr.GetClient(), Node: mgr.GetAPIReader(), Capabilities: c, Recorder: mgr.GetEventRecorder("virtloom-node"),
		}
		if err := l.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	devices, err := o.devices(mgr)
	if err != nil {
		return err
	}
	h := &nodectrl.Heartbeat{
		NodeName: o.config.NodeName, Client: mgr.GetClient(), Hypervisor: hv, Devices: devices, Every: o.config.Heartbeat.Duration, Drained: drained,
	}
	// With a store of images there is no kubelet, whose mounts and devices are checked.
	if o.config.Launchers != "" && o.config.Images == "" {
		h.Check, h.Recorder = o.check(mgr), mgr.GetEventRecorder("virtloom-node")
	}
	return mgr.Add(h)
}

func (o *node) open(ctx context.Context) (domain.Hypervisor, error) {
	if strings.HasPrefix(o.config.Hypervisor, configfile.MemoryScheme) {
		return memory.New(o.config.NodeName), nil
	}
	var (
		hv   *libvirt.Driver
		last error
	)
	// The daemon may begin together with this agent, in the container beside it.
	err := wait.PollUntilContextTimeout(ctx, hypervisorEvery, hypervisorWithin, true, func(ctx context.Context) (bool, error) {
		hv, last = libvirt.Open(ctx, o.config.Hypervisor, libvirt.Options{MigrationDir: o.config.Migration.Dir})
		if errors.Is(last, domain.ErrUnsupported) || errors.Is(last, domain.ErrInvalid) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("open hypervisor %q: %w", o.config.Hypervisor, cmp.Or(last, err))
	}
	return hv, nil
}

func (o *node) workspace(mgr manager.Manager) *workspace.Workspace {
	settings := &domainctrl.ClusterSettings{Reader: mgr.GetAPIReader()}
	w := &workspace.Workspace{
		Root: o.config.StateDir, Bridge: o.config.HostBridge(),
		Claims:         domainctrl.VolumeClaims{Reader: mgr.GetAPIReader()},
		Objects:        domainctrl.ClusterObjects{Reader: mgr.GetAPIReader()},
		AllowEmulation: settings.AllowEmulation, Settings: settings.KubeVirt,
	}
	if o.seesBridges() {
		w.Networks = o.networks()
	}
	if o.config.Images != "" {
		w.Images = ocilayout.Store{Dir: o.config.Images}
	}
	return w
}
