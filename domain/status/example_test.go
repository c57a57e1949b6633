// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/status"
)

// exampleVMI has a disk on a claim, and an interface on the Pod network.
func exampleVMI() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001"},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled, NodeName: "node-a"},
	}
	size := resource.MustParse("64Mi")
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &size}
	vmi.Spec.Domain.Devices = v1.Devices{
		Disks:      []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
		Interfaces: []v1.Interface{{Name: "default", MacAddress: "02:00:00:00:00:01", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}},
	}
	vmi.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{},
	}}}
	return vmi
}

// exampleObservation is of a node on which the VMI runs.
func exampleObservation(vmi *v1.VirtualMachineInstance) (status.Observation, error) {
	facts := assume.Facts(vmi)
	d, err := convert.Convert(vmi, facts)
	if err != nil {
		return status.Observation{}, err
	}
	return status.Observation{
		Node:  "node-a",
		State: &domain.State{Name: d.Name, Status: domain.StatusRunning, Domain: d, Metadata: domain.Metadata{UID: vmi.UID}},
		Guest: &guestagent.Info{Interfaces: []guestagent.Interface{
			{Name: "enp1s0", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.2.2"}},
			{Name: "docker0", MAC: "02:42:00:00:00:01", IPs: []string{"172.17.0.1"}},
		}},
		Facts: facts,
	}, nil
}

// A domain has started; then a user pauses the VMI.
func ExampleReflect() {
	vmi := exampleVMI()
	o, err := exampleObservation(vmi)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	vmi = status.Reflect(vmi, o, now)
	fmt.Println("phase", vmi.Status.Phase)

	o.State.Status, o.State.Metadata.Paused = domain.StatusPaused, true
	vmi = status.Reflect(vmi, o, now.Add(time.Minute))
	for _, c := range vmi.Status.Conditions {
		if c.Type == v1.VirtualMachineInstancePaused {
			fmt.Println("paused", c.Status, "by a user:", c.Reason == status.ReasonPausedByUser)
		}
	}
	// Output:
	// phase Running
	// paused True by a user: true
}

// The agent reports the guest's own interfaces as well, without a name in the spec.
func ExampleInterfaces() {
	vmi := exampleVMI()
	o, err := exampleObservation(vmi)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, i := range status.Interfaces(vmi, o) {
		fmt.Printf("%q is %s with %v (%s)\n", i.Name, i.InterfaceName, i.IPs, i.InfoSource)
	}
	// Output:
	// "default" is enp1s0 with [10.0.2.2] (domain, guest-agent)
	// "" is docker0 with [172.17.0.1] (guest-agent)
}

// A user has unplugged a disk. Its Pod must stay until the guest has released it.
func ExampleVolumeStatus() {
	vmi := exampleVMI()
	o, err := exampleObservation(vmi)
	if err != nil {
		fmt.Println(err)
		return
	}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{
		Name: "root", Phase: v1.VolumeReady, HotplugVolume: &v1.HotplugVolumeStatus{AttachPodName: "hp-volume-1"},
	}}
	vmi.Spec.Volumes, vmi.Spec.Domain.Devices.Disks = nil, nil
	for _, v := range status.VolumeStatus(vmi, o) {
		fmt.Println(v.Name, v.Target, v.Phase, "detaching:", v.Reason == status.ReasonVolumeDetaching)
	}
	// Output:
	// root vda Ready detaching: true
}

// A claim that only one node can open prevents a live migration; a disk that belongs to the node is
// copied.
func ExampleLiveMigratable() {
	vmi := exampleVMI()
	facts := assume.Facts(vmi)
	show := func() {
		condition, method := status.LiveMigratable(vmi, facts)
		fmt.Printf("%s %s %q\n", condition.Status, method, condition.Message)
	}
	facts.Disks["root"] = convert.DiskSource{Path: "/srv/volumes/root.img", Shared: true}
	show()
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}})
	show()
	facts.Disks["root"] = convert.DiskSource{Path: "/var/local/root.img"}
	show()
	// Output:
	// True LiveMigration ""
	// True BlockMigration ""
	// False BlockMigration "cannot migrate VMI: volume root is not shared, live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"
}
