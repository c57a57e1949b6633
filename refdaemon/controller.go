// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// defaultLauncherImage is that of the KubeVirt release whose API this is built with.
const defaultLauncherImage = "quay.io/kubevirt/virt-launcher:v1.9.0"

// controllerOptions are the flags of "refdaemon controller".
type controllerOptions struct {
	process
	admission
	migrations
	automatic
	launcherImage string
	silentAfter   time.Duration
	syncLabels    patterns
	syncNotes     patterns
}

// patterns is a flag with a list of keys.
type patterns []string

// String implements flag.Value.
func (p *patterns) String() string { return strings.Join(*p, ",") }

// Set implements flag.Value; given twice, the flag adds up.
func (p *patterns) Set(text string) error {
	*p = append(*p, strings.Split(text, ",")...)
	return nil
}

// The election among replicas. Markers in this package are those of the controller alone.
//
// +kubebuilder:rbac:namespace=virtloom-system,groups=coordination.k8s.io,resources=leases,verbs=create
// +kubebuilder:rbac:namespace=virtloom-system,groups=coordination.k8s.io,resources=leases,resourceNames=virtloom-controller,verbs=get;update
// +kubebuilder:rbac:namespace=virtloom-system,groups="",resources=events,verbs=create;patch

func runController(ctx context.Context, args []string, _ io.Writer) error {
	o := controllerOptions{process: process{name: "controller"}}
	fs := flag.NewFlagSet("refdaemon controller", flag.ContinueOnError)
	o.process.flags(fs)
	o.admission.flags(fs)
	o.migrations.flags(fs)
	o.automatic.flags(fs)
	o.validate, o.webhooks = o.check, o.server
	fs.StringVar(&o.launcherImage, "launcher-image", defaultLauncherImage, "`image` of the guests' Pods")
	fs.DurationVar(&o.silentAfter, "node-silent-after", vmi.DefaultSilentAfter, "`time` without a heartbeat after which the guests of a node count as lost")
	fs.Var(&o.syncLabels, "additional-launcher-labels-sync", "`keys` of labels, by commas, that a guest's Pod gets when the guest does; a key may end in *")
	fs.Var(&o.syncNotes, "additional-launcher-annotations-sync", "the same `keys` of annotations")
	fs.BoolVar(&o.leader, "leader-elect", true, "let one of several replicas act at a time")
	fs.StringVar(&o.leaderNS, "leader-elect-namespace", "", "`namespace` of the lease; empty is the Pod's own")
	return o.run(ctx, fs, args, o.add)
}

// check tells which flags are wrong.
func (o *controllerOptions) check() error {
	if o.silentAfter < 0 {
		return fmt.Errorf("--node-silent-after %s is in the past", o.silentAfter)
	}
	return errors.Join(o.migrations.check(), o.admission.check())
}

// add registers the controllers, one constructor after the other.
func (o *controllerOptions) add(ctx context.Context, mgr ctrl.Manager) error {
	for _, add := range []func(context.Context, ctrl.Manager) error{
		o.addVMI,
		o.addMigration,
		o.addEvacuation,
		o.addUpdate,
		o.addAdmission,
		o.addEvictions,
	} {
		if err := add(ctx, mgr); err != nil {
			return err
		}
	}
	return nil
}

// writes returns the metrics of a controller's own writes, served with all others.
func writes(controller string) (*expectationsctrl.Metrics, error) {
	m := expectationsctrl.NewMetrics(controller)
	return m, metrics.Registry.Register(m)
}

func (o *controllerOptions) addVMI(ctx context.Context, mgr ctrl.Manager) error {
	own, err := writes("vmi")
	if err != nil {
		return err
	}
	guests := vmictrl.NewMetrics()
	if err := metrics.Registry.Register(guests); err != nil {
		return fmt.Errorf("register the metrics of guests: %w", err)
	}
	r := &vmictrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		LauncherImage: o.launcherImage, SilentAfter: o.silentAfter, Observer: own, Metrics: guests,
		Recorder: mgr.GetEventRecorder("virtualmachine-controller"),
		Config:   vmi.Config{SyncLabels: o.syncLabels, SyncAnnotations: o.syncNotes},
	}
	return r.SetupWithManager(ctx, mgr)
}
