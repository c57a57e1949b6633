// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
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

func exampleFacts() domain.Facts {
	return domain.Facts{
		Dir:   "/var/lib/virtloom/guests/web",
		Disks: map[string]domain.DiskSource{"root": {Path: "/srv/volumes/root.img", Shared: true}},
	}
}

// A VirtualMachineInstance becomes a libvirt domain; what stands in the way is
// named with its field and a remedy.
func ExampleConvert() {
	d, err := domain.Convert(exampleVMI(), exampleFacts())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Name, d.Type, d.Devices.Disks[0].Target.Dev)

	vmi := exampleVMI()
	vmi.Spec.Domain.Devices.Disks[0].Disk.Bus = "ide"
	_, err = domain.Convert(vmi, exampleFacts())
	var e *domain.Error
	if errors.As(err, &e) {
		fmt.Println(e.Field, "-", e.Reason, "-", e.Remedy)
	}
	// Output:
	// default_web kvm vda
	// spec.domain.devices.disks[0].disk.bus - "ide" is no disk bus - use virtio, sata, scsi or usb
}

// A pass of one's own adds to what the stock passes make.
func ExampleConvertWith() {
	owner := domain.Pass{Name: "owner", Apply: func(c *domain.Conversion) error {
		c.Domain.Description = "belongs to " + c.VMI.Namespace
		return nil
	}}
	d, err := domain.ConvertWith(exampleVMI(), exampleFacts(), append(domain.Passes(), owner))
	fmt.Println(d.Description, err)
	// Output: belongs to default <nil>
}

// Converging: start what is wanted, and later apply what differs and can be
// applied while the guest runs.
func ExampleDiff() {
	ctx := context.Background()
	h := domaintest.New("node-1")
	facts := exampleFacts()
	d, err := domain.Convert(exampleVMI(), facts)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := domain.Stamp(d); err != nil {
		fmt.Println(err)
		return
	}
	if err := h.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		fmt.Println(err)
		return
	}

	vmi := exampleVMI()
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
		v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "data"})
	facts.Disks["data"] = domain.DiskSource{Path: "/srv/volumes/data.img", Shared: true}
	desired, err := domain.Convert(vmi, facts)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		state, err := h.Get(ctx, d.Name)
		if err != nil {
			fmt.Println(err)
			return
		}
		last, err := domain.LastApplied(state.Metadata)
		if err != nil {
			fmt.Println(err)
			return
		}
		differences, err := domain.Diff(desired, last, state.Domain)
		fmt.Println(len(differences), "differences", err)
		for _, x := range differences {
			fmt.Println(x.Field, x.Class, x.Operation.Verb, h.Apply(ctx, *x.Operation))
		}
	}
	// Output:
	// 1 differences <nil>
	// spec.domain.devices.disks[data] Live AttachDevice <nil>
	// 0 differences <nil>
}
