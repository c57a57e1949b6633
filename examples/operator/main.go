// SPDX-License-Identifier: Apache-2.0

// Command operator is an operator with a kind of its own, Desktop, that has no
// KubeVirt controller beside it: it embeds the one of virtloom.
//
// Two controllers run in one manager. The operator's own makes a
// VirtualMachineInstance of each Desktop and reports its status back. That of package
// vmi/vmictrl, limited to the operator's guests by a label, brings those to nodes. Their
// Pods are rendered by the stock stages of package template and one more, which adds a
// container that brings the devices of the person's seat.
//
//	kubectl apply --server-side -f refdaemon/config/crd -f examples/operator/crd.yaml
//	go run ./examples/operator --kubeconfig ~/.kube/config
//	kubectl apply -f examples/operator/desktop.yaml
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

const (
	operatorLabel = "example.com/operator"
	seatLabel     = "example.com/seat"
	seatImage     = "registry.example.com/seat:1"
)

// desktops makes guests of Desktops.
type desktops struct{ client.Client }

// Reconcile creates the VMI of a Desktop, and updates the Desktop's status. VMIs are deleted with their Desktops, by
// garbage collection.
func (r *desktops) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	desktop := &Desktop{}
	if err := r.Get(ctx, req.NamespacedName, desktop); err != nil || !desktop.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	guest := &v1.VirtualMachineInstance{}
	err := r.Get(ctx, req.NamespacedName, guest)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if err != nil { // a cache that lags makes no second one: the name is taken
		guest = guestOf(desktop)
		if err := ctrl.SetControllerReference(desktop, guest, r.Scheme()); err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, client.IgnoreAlreadyExists(r.Create(ctx, guest))
	}
	status := DesktopStatus{Phase: guest.Status.Phase, Node: guest.Status.NodeName}
	if !metav1.IsControlledBy(guest, desktop) || desktop.Status == status {
		return ctrl.Result{}, nil
	}
	desktop.Status = status
	return ctrl.Result{}, r.Status().Update(ctx, desktop)
}

// guestOf is the guest that a Desktop asks for.
func guestOf(d *Desktop) *v1.VirtualMachineInstance {
	memory := d.Spec.Memory.DeepCopy()
	guest := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.Namespace, Name: d.Name, Labels: map[string]string{operatorLabel: "desktops", seatLabel: d.Spec.Seat},
	}}
	guest.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	guest.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}}
	guest.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: d.Spec.Image}}}}
	return guest
}

// renderer is the stock one with a stage more. A stage that set what another one has set would be refused.
func renderer() (*template.Renderer, error) {
	return template.Default().After(template.StageCompute, render.Stage{Name: "seat", Apply: func(d *render.Draft) error {
		if seat := d.VMI().Labels[seatLabel]; seat != "" {
			d.From("metadata.labels[" + seatLabel + "]").AddContainer(corev1.Container{Name: "seat", Image: seatImage, Args: []string{seat}})
		}
		return nil
	}})
}

// newManager returns a manager in which both controllers run.
func newManager(ctx context.Context, config *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), vmictrl.AddToScheme(scheme), addToScheme(scheme)); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}
	pods, err := renderer()
	if err != nil {
		return nil, err
	}
	guests := &vmictrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		LauncherImage: "quay.io/kubevirt/virt-launcher:v1.9.0",
		Renderer:      pods,
		Scope:         vmictrl.Scope{Selector: labels.SelectorFromSet(labels.Set{operatorLabel: "desktops"})},
	}
	if err := guests.SetupWithManager(ctx, mgr); err != nil {
		return nil, err
	}
	return mgr, ctrl.NewControllerManagedBy(mgr).For(&Desktop{}).Owns(&v1.VirtualMachineInstance{}).Complete(&desktops{mgr.GetClient()})
}

func run(ctx context.Context) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := newManager(ctx, config)
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
