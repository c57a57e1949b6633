// SPDX-License-Identifier: Apache-2.0

package assume_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
)

// A tool without a node shows the domain of a VMI, with what it knows of the node.
func ExampleFacts() {
	size := resource.MustParse("64Mi")
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001"}}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &size}
	for _, name := range []string{"root", "data"} {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
			v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{},
		}})
	}
	facts := assume.Facts(vmi)
	facts.Disks["data"] = convert.DiskSource{Path: "/dev/vg0/data", Block: true}
	d, err := convert.Convert(vmi, facts)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, disk := range d.Devices.Disks {
		switch src := disk.Source; {
		case src.File != nil:
			fmt.Println(disk.Target.Dev, "file", src.File.File)
		case src.Block != nil:
			fmt.Println(disk.Target.Dev, "device", src.Block.Dev)
		}
	}
	// Output:
	// vda file /var/run/kubevirt-private/vmi-disks/root/disk.img
	// vdb device /dev/vg0/data
}
