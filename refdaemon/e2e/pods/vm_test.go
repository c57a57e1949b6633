// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// TestVM_LifeCycle: a VirtualMachine with an instance type boots, moves live, is restarted, stopped and deleted, in a
// namespace of Pod Security level restricted.
func TestVM_LifeCycle(t *testing.T) {
	c := cluster(t)
	small := &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "small", Namespace: namespace}}
	small.Spec.CPU.Guest, small.Spec.Memory.Guest = 1, resource.MustParse("128Mi")
	small.Spec.CPU.Model = new("Nehalem")
	must(t, c.Client.Create(t.Context(), small))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), small)) })

	guest := newGuest("machine")
	guest.Spec.Domain.CPU, guest.Spec.Domain.Memory = nil, nil
	guest.Spec.Domain.Resources.Requests = nil // the instance type says what it has
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "machine", Namespace: namespace}, Spec: v1.VirtualMachineSpec{
		RunStrategy:  new(v1.RunStrategyAlways),
		Instancetype: &v1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineInstancetype"},
		Template:     &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: guest.Labels}, Spec: guest.Spec},
	}}
	must(t, c.Client.Create(t.Context(), vm))
	t.Cleanup(func() { must(t, client.IgnoreNotFound(c.Client.Delete(context.Background(), vm))) })

	m := machine{T: t, vm: vm}
	first := follow(t, m.awaitVMI(""))
	first.awaitRunning("")
	m.awaitStatus(v1.VirtualMachineStatusRunning)
	first.beats("", 1)
	first.migrate()
	first.unbroken()
	m.awaitStatus(v1.VirtualMachineStatusRunning)

	m.change(true, func() {
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest, UID: &first.vmi.UID}, {Action: v1.StartRequest}}
	})
	second := follow(t, m.awaitVMI(first.vmi.UID))
	second.awaitRunning("")
	m.awaitStatus(v1.VirtualMachineStatusRunning)
	second.beats("", 1)

	m.change(false, func() { vm.Spec.RunStrategy = new(v1.RunStrategyHalted) })
	m.awaitStatus(v1.VirtualMachineStatusStopped)
	m.gone(second.vmi)
	must(t, c.Client.Delete(t.Context(), vm))
	m.gone(vm)
}

// machine is a VirtualMachine of a test; seen are its VMIs, if they are followed.
type machine struct {
	*testing.T
	vm   *v1.VirtualMachine
	seen *incarnations
}

func (m machine) await(what string, is func(ctx context.Context) error) {
	m.Helper()
	must(m.T, refcluster.Await(m.Context(), patience, what, is))
}

// awaitVMI waits for a VMI of the VM with another UID.
func (m machine) awaitVMI(but any) *v1.VirtualMachineInstance {
	m.Helper()
	vmi := &v1.VirtualMachineInstance{}
	m.await("a VMI of the VM", func(ctx context.Context) error {
		err := shared.cluster.Client.Get(ctx, client.ObjectKeyFromObject(m.vm), vmi)
		if err == nil && fmt.Sprint(vmi.UID) == fmt.Sprint(but) {
			err = fmt.Errorf("it is in phase %s, deleted at %v", vmi.Status.Phase, vmi.DeletionTimestamp)
		}
		return err
	})
	return vmi
}

func (m machine) awaitStatus(want v1.VirtualMachinePrintableStatus) {
	m.Helper()
	m.await("printableStatus "+string(want), func(ctx context.Context) error {
		if err := shared.cluster.Client.Get(ctx, client.ObjectKeyFromObject(m.vm), m.vm); err != nil {
			return err
		}
		if got := m.vm.Status.PrintableStatus; got != want {
			return fmt.Errorf("it is %s, conditions %+v", got, m.vm.Status.Conditions)
		}
		return nil
	})
}

// change updates the VM, or its status, until that is accepted.
func (m machine) change(status bool, edit func()) {
	m.Helper()
	m.await("the update of the VM", func(ctx context.Context) error {
		if err := shared.cluster.Client.Get(ctx, client.ObjectKeyFromObject(m.vm), m.vm); err != nil {
			return err
		}
		edit()
		if status {
			return shared.cluster.Client.Status().Update(ctx, m.vm)
		}
		return shared.cluster.Client.Update(ctx, m.vm)
	})
}

// gone waits until the object does not exist.
func (m machine) gone(o client.Object) {
	m.Helper()
	m.await("the end of "+o.GetName(), func(ctx context.Context) error {
		err := shared.cluster.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}
