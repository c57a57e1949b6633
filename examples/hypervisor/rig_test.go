// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/examples/hypervisor/mapdriver"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

const (
	patience = 2 * time.Minute // bounds waiting for what must happen
	nodeName = "example"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until reads the guest until it is as it should be.
func until(t *testing.T, c client.Client, vmi *v1.VirtualMachineInstance, what string, is func() bool) {
	t.Helper()
	err := rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)
		return err == nil && is(), err
	})
	if err != nil {
		t.Fatalf("wait until the guest %s: %v; it is %+v", what, err, vmi.Status)
	}
}

// The agent as it is run, at a real API server: a guest that is offered to its node runs in the map, and ends there.
func TestHypervisor_RunsGuest(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	r := rigtest.New(t)
	a := agent{node: nodeName, stateDir: t.TempDir(), hypervisor: mapdriver.NewHypervisor(nodeName)}
	mgr, err := a.manager(r.Config(rig.UserAdmin))
	must(t, err)
	c, err := client.New(r.Config(rig.UserAdmin), client.Options{Scheme: mgr.GetScheme()})
	must(t, err)
	must(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() { stop(); must(t, <-ended) })

	memory, grace := resource.MustParse("64Mi"), int64(1)
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "guest", Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
	}}
	vmi.Spec.Domain.Memory, vmi.Spec.TerminationGracePeriodSeconds = &v1.Memory{Guest: &memory}, &grace
	must(t, c.Create(t.Context(), vmi))

	// What a controller would do: make a Pod, and hand the guest to the node of it.
	must(t, c.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: "virt-launcher-" + vmi.Name,
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "compute", Image: "none"}}},
	}))
	lease, _, err := handoff.Step(handoff.Lease{}, handoff.Event{Kind: handoff.Offer, Node: nodeName}, time.Now())
	must(t, err)
	vmi.Status.Phase, vmi.Status.NodeName = v1.Scheduled, nodeName
	must(t, handoff.Put(vmi, lease))
	must(t, c.Update(t.Context(), vmi))
	until(t, c, vmi, "runs", func() bool { return vmi.Status.Phase == v1.Running })
	name := domain.Name(vmi.Namespace, vmi.Name)
	if st, err := a.hypervisor.Get(t.Context(), name); err != nil || st.Status != domain.StatusRunning || st.Metadata.UID != vmi.UID {
		t.Errorf("in the map is %+v, %v", st, err)
	}
	node := &corev1.Node{}
	must(t, c.Get(t.Context(), client.ObjectKey{Name: nodeName}, node))
	if node.Labels[v1.NodeSchedulable] != "true" {
		t.Errorf("the node is labelled %v; want it to take guests", node.Labels)
	}

	must(t, c.Delete(t.Context(), vmi))
	until(t, c, vmi, "has ended", vmi.IsFinal)
	// That it has ended is stored before it is forgotten.
	err = rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		_, err := a.hypervisor.Get(ctx, name)
		return errors.Is(err, domain.ErrNotFound), nil
	})
	if err != nil {
		t.Errorf("the guest has ended, and is in the map still: %v", err)
	}
}
