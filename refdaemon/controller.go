// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vm/vmctrl"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// controller is what "refdaemon controller" runs.
type controller struct {
	process
	admission
	config *configfile.ControllerConfiguration
	source configfile.Source[*configfile.ControllerConfiguration]
	// reconciler is the migration controller, which others depend on; set by addMigration.
	reconciler *migrationctrl.Reconciler
	// vmis is the VMI controller; set by addVMI.
	vmis *vmictrl.Reconciler
	// machines is the controller of VirtualMachines; set by addVM, nil without one.
	machines *vmctrl.Reconciler
	// decisive holds the settings in force that the controllers decide by, by flag.
	decisive atomic.Pointer[map[string]string]
}

func newController() *cobra.Command {
	return asDaemon(&cobra.Command{
		Use: "controller", Short: "run the controllers of the cluster",
		Long: `Runs the controllers of the cluster: they create the VMIs of VirtualMachines and the Pods of VMIs, assign VMIs to nodes, and
admit migrations. Several replicas may run, one of which leads; another takes over when the
leader exits or loses its lease. SIGTERM ends it, and no write is left incomplete.`,
		Example: `  # In a Pod, with its service account:
  refdaemon controller --config examples/config/controller.yaml
  # From outside, alone, with four migrations into a node at a time:
  refdaemon controller --kubeconfig admin.conf --leader-elect=false --migrations-inbound-per-node 4
  # Metrics with authentication and authorization, probes for the kubelet:
  refdaemon controller --metrics-address :8443 --metrics-secure --health-address :8081`,
	}, configfile.KindController, configfile.NewController, runController)
}

// The election among replicas. Markers in this package are those of the controller alone.
//
// +kubebuilder:rbac:namespace=virtloom-system,groups=coordination.k8s.io,resources=leases,verbs=create
// +kubebuilder:rbac:namespace=virtloom-system,groups=coordination.k8s.io,resources=leases,resourceNames=virtloom-controller,verbs=get;update
// +kubebuilder:rbac:namespace=virtloom-system,groups="",resources=events,verbs=create;patch

func runController(ctx context.Context, config *configfile.ControllerConfiguration, source configfile.Source[*configfile.ControllerConfiguration]) error {
	o := &controller{
		process: newProcess("controller", &config.Daemon), config: config, source: source, admission: admission{webhooks: config.Webhooks},
	}
	o.decides(config)
	o.process.election, o.process.webhooks = &config.LeaderElection, o.server()
	o.process.cached = map[client.Object]cache.ByObject{
		&corev1.Pod{}:                {Transform: templatectrl.TrimPod},
		&v1.VirtualMachineInstance{}: {Transform: templatectrl.TrimVMI},
	}
	cacheRequests(o.process.cached)
	return o.run(ctx, o.add)
}

// add registers the controllers, one constructor after the other.
func (o *controller) add(ctx context.Context, mgr ctrl.Manager) error {
	for _, add := range []func(context.Context, ctrl.Manager) error{
		o.addVMI,
		o.addVM,
		o.addMigration,
		o.addEvacuation,
		o.addUpdate,
		o.addAdmission,
		o.addEvictions,
		o.addCertificates,
		o.addGuard,
		o.addConfiguration,
		o.addCacheState,
	} {
		if err := add(ctx, mgr); err != nil {
			return err
		}
	}
	return nil
}

func (o *controller) addConfiguration(_ context.Context, mgr ctrl.Manager) error {
	return follow(mgr, &configfile.Watcher[*configfile.ControllerConfiguration]{Source: o.source, Running: o.config, Apply: o.apply})
}

// addCacheState serves the controller's view of objects beside its metrics.
func (o *controller) addCacheState(_ context.Context, mgr ctrl.Manager) error {
	unseen := map[cachestate.Kind]func(types.NamespacedName) []expectations.Pending{
		cachestate.VMI: o.vmis.Pending, cachestate.Migration: o.reconciler.Pending,
	}
	if o.machines != nil {
		unseen[cachestate.Machine] = o.machines.Pending
	}
	return mgr.AddMetricsServerExtraHandler(cachestate.Path, &cachestate.Handler{
		Cache: mgr.GetCache(), Elected: mgr.Elected(), Clock: clock.RealClock{},
		Settings: func() map[string]string { return *o.decisive.Load() }, Pending: unseen,
	})
}

// apply applies the live fields of the configuration.
func (o *controller) apply(ctx context.Context, next *configfile.ControllerConfiguration) error {
	o.level.SetLevel(zapLevel(next.Log.Verbosity))
	if err := o.reconciler.Reconfigure(ctx, settings(&next.Migrations), queueOptions(&next.Migrations)); err != nil {
		return err
	}
	o.decides(next)
	return nil
}

// decides records the settings in force: live fields of config, all others as they were at the start.
func (o *controller) decides(config *configfile.ControllerConfiguration) {
	decisive := o.config.Decisive()
	for _, option := range config.Observed() {
		if option.Live {
			decisive[option.Flag] = option.Value.String()
		}
	}
	o.decisive.Store(&decisive)
}

// writes returns the metrics of a controller's own writes, served with all others.
func writes(controller string) (*expectationsctrl.Metrics, error) {
	m := expectationsctrl.NewMetrics(controller)
	return m, metrics.Registry.Register(m)
}

// newVMIs returns a configured VMI controller without clients.
func newVMIs(config *configfile.ControllerConfiguration) *vmictrl.Reconciler {
	return &vmictrl.Reconciler{
		LauncherImage: config.LauncherImage, SidecarShimImage: config.SidecarShimImage, SilentAfter: config.NodeSilentAfter.Duration,
		Config: vmi.Config{
			SyncLabels: config.AdditionalLauncherLabelsSync, SyncAnnotations: config.AdditionalLauncherAnnotationsSync,
		},
	}
}

func (o *controller) addVMI(ctx context.Context, mgr ctrl.Manager) error {
	own, err := writes("vmi")
	if err != nil {
		return err
	}
	guests := vmictrl.NewMetrics()
	if err := metrics.Registry.Register(guests); err != nil {
		return fmt.Errorf("register VMI metrics: %w", err)
	}
	r := newVMIs(o.config)
	r.Client, r.APIReader, r.Observer, r.Metrics = mgr.GetClient(), mgr.GetAPIReader(), own, guests
	r.Recorder = mgr.GetEventRecorder("virtualmachine-controller")
	if o.config.OutOfServiceTaint {
		r.Fencer = vmictrl.OutOfService{Reader: mgr.GetAPIReader()}
	}
	r.Beside = func() bool { return o.machines != nil && o.machines.Busy() }
	o.vmis = r
	return r.SetupWithManager(ctx, mgr)
}

// newMachines returns a configured controller of VirtualMachines without clients; nil if they are left to another one.
func newMachines(config *configfile.ControllerConfiguration) *vmctrl.Reconciler {
	if !config.VirtualMachines {
		return nil
	}
	return &vmctrl.Reconciler{}
}

// addVM adds the controller of VirtualMachines.
func (o *controller) addVM(ctx context.Context, mgr ctrl.Manager) error {
	r := newMachines(o.config)
	if r == nil {
		return nil
	}
	own, err := writes("vm")
	if err != nil {
		return err
	}
	r.Client, r.APIReader, r.Observer, r.Recorder = mgr.GetClient(), mgr.GetAPIReader(), own, mgr.GetEventRecorder("virtualmachine-controller")
	r.Beside = o.vmis.Busy
	o.machines = r
	return r.SetupWithManager(ctx, mgr)
}
