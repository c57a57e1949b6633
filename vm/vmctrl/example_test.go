// SPDX-License-Identifier: Apache-2.0

package vmctrl_test

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/vmctrl"
)

// The controller joins a manager that already has other controllers; whoever reconciles the VMIs, this one's or
// KubeVirt's, need not be among them. Here changes of running VMs are applied at their next start only, unless the KubeVirt
// object says otherwise.
func Example() {
	start := func(ctx context.Context) error {
		scheme := runtime.NewScheme() // with the types of the other controllers
		if err := vmctrl.AddToScheme(scheme); err != nil {
			return err
		}
		mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Scheme: scheme})
		if err != nil {
			return err
		}
		r := &vmctrl.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("virtualmachine-controller"),
			Workers: 2 * vmctrl.DefaultWorkers, Config: vm.Config{Stage: true},
		}
		if err := r.SetupWithManager(ctx, mgr); err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
	_ = start
}
