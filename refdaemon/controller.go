// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// controllerOptions are the flags of "refdaemon controller".
type controllerOptions struct {
	process
	launcherImage string
}

func runController(ctx context.Context, args []string) error {
	o := controllerOptions{process: process{name: "controller"}}
	fs := flag.NewFlagSet("refdaemon controller", flag.ContinueOnError)
	o.flags(fs)
	fs.StringVar(&o.launcherImage, "launcher-image", "quay.io/kubevirt/virt-launcher:v1.9.0", "`image` of the guests' Pods")
	fs.BoolVar(&o.leader, "leader-elect", true, "let one of several replicas act at a time")
	fs.StringVar(&o.leaderNS, "leader-elect-namespace", "", "`namespace` of the lease; empty is the Pod's own")
	if err := o.parse(fs, args); err != nil {
		return err
	}
	ctrl.SetLogger(o.logger())
	flush, err := o.tracing(ctx)
	if err != nil {
		return err
	}
	defer flush()
	return o.start(ctx)
}

// start wires the controllers, one constructor after the other, and runs them.
func (o *controllerOptions) start(ctx context.Context) error {
	config, err := o.config()
	if err != nil {
		return err
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	mgr, err := o.manager(config, scheme)
	if err != nil {
		return err
	}
	for _, add := range []func(context.Context, ctrl.Manager) error{
		o.addVMI,
		o.addMigration,
	} {
		if err := add(ctx, mgr); err != nil {
			return fmt.Errorf("controller: %w", err)
		}
	}
	return mgr.Start(ctx)
}

func (o *controllerOptions) addVMI(ctx context.Context, mgr ctrl.Manager) error {
	r := &vmictrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		LauncherImage: o.launcherImage,
		Recorder:      mgr.GetEventRecorder("virtualmachine-controller"),
	}
	return r.SetupWithManager(ctx, mgr)
}

func (o *controllerOptions) addMigration(ctx context.Context, mgr ctrl.Manager) error {
	r := &migrationctrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		LauncherImage: o.launcherImage,
		Recorder:      mgr.GetEventRecorder("virtualmachine-migration-controller"),
	}
	return r.SetupWithManager(ctx, mgr)
}
