// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// The controller joins any manager whose scheme knows KubeVirt's types. Any stage
// of the Pod's template can be replaced.
func Example() {
	start := func(ctx context.Context, mgr ctrl.Manager) error {
		renderer := template.Default()
		r := &vmictrl.Reconciler{
			Client:        mgr.GetClient(),
			APIReader:     mgr.GetAPIReader(),
			LauncherImage: "quay.io/kubevirt/virt-launcher:v1.9.0",
			Renderer:      renderer,
			Recorder:      mgr.GetEventRecorder("virtualmachine-controller"),
			Config:        vmi.Config{AcceptWithin: 2 * time.Minute},
		}
		if err := r.SetupWithManager(ctx, mgr); err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
	_ = start
}
