// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/vm"
)

// newMachine is a VirtualMachine with the guest of newGuest, as the webhooks leave it: neither controller has to add anything to it
// before it starts it.
func newMachine(i int) client.Object {
	guest := newGuest(i)
	guest.Spec.Architecture = "amd64"
	guest.Spec.Domain.Firmware = &v1.Firmware{UUID: uuid.NewUUID()}
	m := &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: guest.Name},
		Spec: v1.VirtualMachineSpec{RunStrategy: new(v1.RunStrategyAlways), Template: &v1.VirtualMachineInstanceTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: guest.Labels, Annotations: guest.Annotations, Finalizers: guest.Finalizers}, Spec: guest.Spec,
		}},
	}
	vm.Register(m)
	return m
}

// measureMachines starts n guests, then as many VirtualMachines, and, if there is one, lets KubeVirt's virt-controller start
// these, each on a control plane of its own.
func measureMachines(ctx context.Context, o options, out io.Writer, r *Report) error {
	parts := []func(context.Context, *bench) (Phase, error){
		func(ctx context.Context, b *bench) (Phase, error) {
			return b.machines(ctx, phaseGuests, func(i int) client.Object { return newGuest(i) })
		},
		func(ctx context.Context, b *bench) (Phase, error) { return b.machines(ctx, phaseMachines, newMachine) },
	}
	if o.stock != "" {
		parts = slices.Insert(parts, 1, func(ctx context.Context, b *bench) (Phase, error) { return b.machines(ctx, phaseStock, newMachine) })
	}
	for _, measure := range parts {
		err := on(ctx, o, out, func(ctx context.Context, b *bench) error {
			p, err := measure(ctx, b)
			return b.report(r, p, err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// machines measures how one controller starts what is created.
func (b *bench) machines(ctx context.Context, phase string, create func(int) client.Object) (p Phase, err error) {
	if phase == phaseStock {
		b.daemon, err = b.startStock(ctx)
		b.user = userStock
	} else {
		b.daemon, err = b.startDaemon(ctx)
		b.user = rig.UserController
	}
	if err != nil {
		return Phase{Name: phase}, err
	}
	if p, err = b.start(ctx, phase, b.options.guests, create); err != nil {
		return p, err
	}
	return p, b.daemon.stop()
}
