// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

func exampleVMI() *v1.VirtualMachineInstance {
	memory := resource.MustParse("64Mi")
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001"},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: &memory},
				Devices: v1.Devices{
					Disks: []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
				},
			},
			Volumes: []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{},
			}}},
		},
	}
}

func exampleFacts() convert.Facts {
	return convert.Facts{
		Dir:   "/var/lib/virtloom/guests/web",
		Disks: map[string]convert.DiskSource{"root": {Path: "/srv/volumes/root.img", Shared: true}},
	}
}

// Convert returns a libvirt domain, or an error with the field and a remedy.
func ExampleConvert() {
	d, err := convert.Convert(exampleVMI(), exampleFacts())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Name, d.Type, d.Devices.Disks[0].Target.Dev)

	vmi := exampleVMI()
	vmi.Spec.Domain.Devices.Disks[0].Disk.Bus = "ide"
	_, err = convert.Convert(vmi, exampleFacts())
	var e *domain.Error
	if errors.As(err, &e) {
		fmt.Println(e.Field, "-", e.Reason, "-", e.Remedy)
	}
	// Output:
	// default_web kvm vda
	// spec.domain.devices.disks[0].disk.bus - Unsupported value: "ide" - use virtio, sata, scsi or usb
}

// A custom pass runs after the standard ones.
func ExampleConvertWith() {
	owner := convert.Pass{Name: "owner", Apply: func(c *convert.Conversion) error {
		c.Domain.Description = "belongs to " + c.VMI.Namespace
		return nil
	}}
	d, err := convert.ConvertWith(exampleVMI(), exampleFacts(), append(convert.Passes(), owner))
	fmt.Println(d.Description, err)
	// Output: belongs to default <nil>
}
