// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"libvirt.org/go/libvirtxml"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/memory"
)

// A controller of one's own gets a request whenever a domain changes.
func ExampleSource() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hypervisor := memory.New("node-a")
	informer := &informer.Informer{Hypervisor: hypervisor}

	mgr, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err == nil {
		err = mgr.Add(manager.RunnableFunc(informer.Run))
	}
	if err == nil {
		err = ctrl.NewControllerManagedBy(mgr).Named("domains").WatchesRawSource(domainctrl.Source(informer)).
			Complete(reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
				if st, known := informer.Get(domain.Name(req.Namespace, req.Name)); known {
					fmt.Println(req, "is", st.Status)
					cancel()
				}
				return reconcile.Result{}, nil
			}))
	}
	if err == nil {
		err = hypervisor.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: "shop_web",
			Definition: &libvirtxml.Domain{Type: "qemu", Name: "shop_web", UUID: "5f0c6c9a-9d0d-4f5e-8f1e-000000000001"}})
	}
	if err == nil {
		err = mgr.Start(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	// Output: shop/web is Running
}
