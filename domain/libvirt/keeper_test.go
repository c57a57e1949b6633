// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
)

// keeper is a node agent without a cluster: it keeps one VMI, with passes like the controller's,
// and exposes its status.
type keeper struct {
	t  *testing.T
	ns *nodes
	n  *rig.HypervisorNode
	h  *libvirt.Driver
	// vmi is the stored object.
	vmi   *v1.VirtualMachineInstance
	facts convert.Facts
	// agent reports that the guest has an agent, which is queried before each pass.
	agent bool
	// ahead is the clock's offset.
	ahead    time.Duration
	troubles []action.Failure
	// differences are those of the last pass.
	differences []diff.Difference
}

// keep offers a VMI to the first node, with the initrd of the agent.
func keep(t *testing.T, ns *nodes, name string, change func(*v1.VirtualMachineInstance)) *keeper {
	t.Helper()
	k := &keeper{t: t, ns: ns, n: ns.n[0], h: open(t, ns.n[0].URI(), libvirt.Options{}), vmi: guest(name), facts: ns.facts(t, name)}
	k.facts.Initrd = ns.image.AgentInitrd
	memory := resource.MustParse("128Mi")
	k.vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	k.vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs = "console=ttyS0 quiet"
	k.vmi.Labels = map[string]string{v1.NodeNameLabel: k.n.Name()}
	k.vmi.Status.Phase, k.vmi.Status.NodeName = v1.Scheduled, k.n.Name()
	change(k.vmi)
	lease, _, err := handoff.Step(handoff.Lease{}, handoff.Event{Kind: handoff.Offer, Node: k.n.Name()}, k.now())
	if err == nil {
		err = handoff.Put(k.vmi, lease)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroy(t, k.name(), k.h) })
	return k
}

func (k *keeper) name() string   { return domain.Name(k.vmi.Namespace, k.vmi.Name) }
func (k *keeper) now() time.Time { return time.Now().Add(k.ahead) }

// pod is the launcher Pod.
func (k *keeper) pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.vmi.Namespace, Name: "virt-launcher-" + k.vmi.Name,
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(k.vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(k.vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec: corev1.PodSpec{NodeName: k.n.Name()},
	}
}

// look is the node's snapshot of the VMI.
func (k *keeper) look() plan.Snapshot {
	k.t.Helper()
	s := plan.Snapshot{Node: k.n.Name(), VMI: k.vmi.DeepCopy(), Pods: []*corev1.Pod{k.pod()}, Facts: k.facts, Failures: k.troubles}
	st, err := k.h.Get(k.t.Context(), k.name())
	switch {
	case errors.Is(err, domain.ErrNotFound):
	case err != nil:
		k.t.Fatal(err)
	default:
		s.State = &st
		if st.Alive() {
			s.Facts.Layout = convert.LayoutOf(st.Domain)
		}
	}
	if k.agent && s.State != nil && status.AgentConnected(s.State.Domain) && s.State.Status == domain.StatusRunning {
		if info, err := k.h.GuestInfo(k.t.Context(), k.name()); err == nil {
			s.Guest = &info
		}
	}
	s.Desired, s.PrepareError = convert.Convert(k.vmi, s.Facts)
	return s
}

// pass gathers, decides, stores and acts, and reports whether there was anything to do.
func (k *keeper) pass() bool {
	k.t.Helper()
	plan, err := plan.Decide(k.look(), k.now())
	if err != nil {
		k.t.Fatal(err)
	}
	changed := !equality.Semantic.DeepEqual(k.vmi, plan.VMI)
	k.vmi = plan.VMI
	k.differences = plan.Differences
	k.troubles = k.act(plan)
	// Files are to be removed for as long as the object exists.
	return changed || slices.ContainsFunc(plan.Actions, func(t action.Action) bool { return t.Verb != action.Cleanup })
}

func (k *keeper) act(plan plan.Plan) (failed []action.Failure) {
	for _, task := range plan.Actions {
		if err := k.task(task); err != nil && !task.Optional() {
			failed = append(failed, action.Failure{Action: task, Err: err})
			if !task.Independent() {
				break
			}
		}
	}
	return failed
}

func (k *keeper) task(task action.Action) error {
	ctx := k.t.Context()
	switch task.Verb {
	case action.Apply:
		return k.h.Apply(ctx, task.Operation)
	case action.Freeze:
		return k.h.Freeze(ctx, k.name())
	case action.Thaw:
		return k.h.Thaw(ctx, k.name())
	case action.SyncTime:
		return k.h.SetTime(ctx, k.name(), k.now())
	case action.Cleanup:
		return nil // the rig's files go with the rig
	}
	k.t.Errorf("unexpected task %s", task)
	return nil
}

// until makes passes until the object meets a condition.
func (k *keeper) until(what string, ok func(*v1.VirtualMachineInstance) bool) {
	k.t.Helper()
	defer func() {
		if k.t.Failed() {
			k.t.Logf("%s: troubles %v, differences %v, volumes %+v, memory %+v", what, k.troubles, k.differences, k.vmi.Status.VolumeStatus, k.vmi.Status.Memory)
		}
	}()
	await(k.t, what, func() bool {
		k.pass()
		return ok(k.vmi)
	})
}

// settled makes passes until there is nothing left to do, and fails if a task has failed.
func (k *keeper) settled() {
	k.t.Helper()
	await(k.t, "nothing is left to do", func() bool { return !k.pass() })
	for _, trouble := range k.troubles {
		k.t.Errorf("trouble: %s", trouble)
	}
}

// request carries out a user's request.
func (k *keeper) request(verb plan.RequestVerb) {
	k.t.Helper()
	plan, err := plan.DecideRequest(k.look(), plan.Request{Verb: verb}, k.now())
	if err != nil {
		k.t.Fatal(err)
	}
	for _, trouble := range k.act(plan) {
		k.t.Errorf("%s: %s", verb, trouble)
	}
}

// booted starts the guest and waits until it is up.
func (k *keeper) booted() {
	k.t.Helper()
	k.until("phase Running", inPhase(v1.Running))
	k.up(1)
	k.settled()
}

// up waits until the guest has reported that many boots.
func (k *keeper) up(times int) {
	k.t.Helper()
	defer func() {
		if k.t.Failed() {
			k.t.Logf("its console says: %s", serial(k.t, k.n, k.facts))
		}
	}()
	await(k.t, "the message that the guest is up", func() bool {
		return strings.Count(serial(k.t, k.n, k.facts), "virtloom-guest-up ") >= times
	})
}

// delete marks the object as being deleted.
func (k *keeper) delete() {
	at := metav1.NewTime(k.now())
	k.vmi.DeletionTimestamp = &at
}

// volume adds a disk to the object and its file to the facts, as a controller does that hotplugs a
// volume.
func (k *keeper) volume(disk v1.Disk, size int64) {
	k.vmi.Spec.Domain.Devices.Disks = append(k.vmi.Spec.Domain.Devices.Disks, disk)
	k.vmi.Spec.Volumes = append(k.vmi.Spec.Volumes, claimVolume(disk.Name))
	k.vmi.Status.VolumeStatus = append(k.vmi.Status.VolumeStatus, v1.VolumeStatus{
		Name: disk.Name, HotplugVolume: &v1.HotplugVolumeStatus{}, Phase: v1.HotplugVolumeMounted,
	})
	k.facts.Disks[disk.Name] = convert.DiskSource{
		Path: k.ns.file(k.t, filepath.Join(k.facts.Dir, disk.Name+".img"), size), Bytes: size, Shared: true,
	}
}

func claimVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}, Hotpluggable: true,
	}}}
}

// Conditions on the object for until.

func inPhase(want v1.VirtualMachineInstancePhase) func(*v1.VirtualMachineInstance) bool {
	return func(vmi *v1.VirtualMachineInstance) bool { return vmi.Status.Phase == want }
}

// hasCondition waits for a condition that is true; an empty reason is any.
func hasCondition(kind v1.VirtualMachineInstanceConditionType, reason string) func(*v1.VirtualMachineInstance) bool {
	return func(vmi *v1.VirtualMachineInstance) bool {
		for _, c := range vmi.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				return reason == "" || c.Reason == reason
			}
		}
		return false
	}
}

func not(f func(*v1.VirtualMachineInstance) bool) func(*v1.VirtualMachineInstance) bool {
	return func(vmi *v1.VirtualMachineInstance) bool { return !f(vmi) }
}

// volumeIs waits for the phase of a volume.
func volumeIs(name string, phase v1.VolumePhase) func(*v1.VirtualMachineInstance) bool {
	return func(vmi *v1.VirtualMachineInstance) bool {
		for _, s := range vmi.Status.VolumeStatus {
			if s.Name == name {
				return s.Phase == phase
			}
		}
		return false
	}
}
