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

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/refdaemon/ocilayout"
)

// maxPort is the highest TCP port.
const maxPort = 1<<16 - 1

// memoryScheme names the in-memory hypervisor, which runs no real guests.
const memoryScheme = "memory:"

// nodeOptions are the flags of "refdaemon node".
type nodeOptions struct {
	process
	node       string
	hypervisor string
	address    string
	port       int
	stateDir   string
	images     string
	bridge     string
	heartbeat  time.Duration
}

func runNode(ctx context.Context, args []string, _ io.Writer) error {
	o := nodeOptions{process: process{name: "node"}}
	fs := flag.NewFlagSet("refdaemon node", flag.ContinueOnError)
	o.flags(fs)
	o.validate = o.check
	fs.StringVar(&o.node, "node-name", "", "`name` of the Kubernetes node this agent serves (required)")
	fs.StringVar(&o.hypervisor, "hypervisor", "qemu:///system", "libvirt connection `URI`, or "+memoryScheme+" for one that runs no real guests")
	fs.StringVar(&o.address, "address", "", "IP `address` at which other nodes' libvirt reaches this node's (required)")
	fs.IntVar(&o.port, "port", 16509, "`port` of libvirt at that address")
	fs.StringVar(&o.stateDir, "state-dir", "/var/lib/virtloom", "`directory` for guests' files, the same on every node and private to each")
	fs.StringVar(&o.images, "images", "", "OCI image layout `directory` with the images of containerDisk and kernelBoot volumes")
	fs.DurationVar(&o.heartbeat, "heartbeat", domainctrl.DefaultHeartbeat, "`time` between two signs of life of this node")
	fs.StringVar(&o.bridge, "bridge", "br0", "host `bridge` that guests' interfaces are plugged into")
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
		errs = append(errs, errors.New("--address is required: the IP address at which other nodes reach this node's libvirt"))
	case err != nil:
		errs = append(errs, fmt.Errorf("--address %q is not an IP address; a port belongs into --port", o.address))
	}
	if o.port < 1 || o.port > maxPort {
		errs = append(errs, fmt.Errorf("--port %d is not between 1 and %d", o.port, maxPort))
	}
	if o.heartbeat < 0 {
		errs = append(errs, fmt.Errorf("--heartbeat %s is not a time between two signs of life", o.heartbeat))
	}
	return errors.Join(errs...)
}

// add registers the agent.
func (o *nodeOptions) add(ctx context.Context, mgr manager.Manager) error {
	hv, err := o.open(ctx)
	if err != nil {
		return err
	}
	caches, err := domainctrl.NewCaches(mgr.GetConfig(), mgr.GetScheme(), o.node)
	if err != nil {
		return err
	}
	r := &domainctrl.Reconciler{
		NodeName: o.node, Address: o.address, Port: o.port, Hypervisor: hv,
		Workspace: o.workspace(mgr),
		Client:    mgr.GetClient(), APIReader: mgr.GetAPIReader(), Caches: caches,
		Recorder: mgr.GetEventRecorder("virtloom-node"),
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return err
	}
	return mgr.Add(&domainctrl.Heartbeat{NodeName: o.node, Client: mgr.GetClient(), Hypervisor: hv, Every: o.heartbeat})
}

func (o *nodeOptions) open(ctx context.Context) (domain.Hypervisor, error) {
	if strings.HasPrefix(o.hypervisor, memoryScheme) {
		return domaintest.New(o.node), nil
	}
	hv, err := libvirt.Open(ctx, o.hypervisor, libvirt.Options{})
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
	if o.images != "" {
		w.Images = ocilayout.Store{Dir: o.images}
	}
	return w
}
