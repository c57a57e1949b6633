// SPDX-License-Identifier: Apache-2.0

// Command hypervisor is a node agent for a hypervisor of its own: the map
// of package mapdriver beside it, which runs no real guests.
//
// It is what refdaemon node is without libvirt: the controller of package domainctrl
// reconciles the VMIs of one node, and nodectrl reports to the cluster that the node
// lives. Guests are handed over by a controller, such as that of examples/operator or
// "refdaemon controller". Live migration needs a hypervisor that is a
// domain.Migrator as well, and then a transport that others can reach.
//
//	go run ./examples/hypervisor --kubeconfig ~/.kube/config --node-name node-1 --state-dir /tmp/node-1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/examples/hypervisor/mapdriver"
)

// agent serves one node.
type agent struct {
	node, stateDir string
	hypervisor     domain.Hypervisor
}

// manager returns a manager in which all parts of the agent run.
func (a agent) manager(config *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}
	caches, err := domainctrl.NewCaches(config, scheme, a.node)
	if err != nil {
		return nil, err
	}
	r := &domainctrl.Reconciler{
		NodeName:   a.node,
		Hypervisor: a.hypervisor,
		Transport:  transport.Direct{Address: "127.0.0.1"},
		Workspace: &workspace.Workspace{
			Root:           a.stateDir,
			Claims:         domainctrl.VolumeClaims{Reader: mgr.GetAPIReader()},
			Objects:        domainctrl.ClusterObjects{Reader: mgr.GetAPIReader()},
			AllowEmulation: func(context.Context) (bool, error) { return true, nil },
		},
		Client:    mgr.GetClient(),
		APIReader: mgr.GetAPIReader(),
		Caches:    caches,
		Recorder:  mgr.GetEventRecorder("example-hypervisor"),
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return nil, err
	}
	return mgr, mgr.Add(&nodectrl.Heartbeat{
		NodeName: a.node, Client: mgr.GetClient(), Hypervisor: a.hypervisor, Drained: r.Drained(),
	})
}

func run(ctx context.Context) error {
	var a agent
	flag.StringVar(&a.node, "node-name", "", "`name` of the Node that is served")
	flag.StringVar(&a.stateDir, "state-dir", "/var/lib/virtloom", "`directory` for the files of guests")
	flag.Parse() // controller-runtime has added --kubeconfig
	if a.node == "" {
		return errors.New("--node-name is required")
	}
	a.hypervisor = mapdriver.NewHypervisor(a.node)
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := a.manager(config)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func main() {
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
