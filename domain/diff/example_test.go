// SPDX-License-Identifier: Apache-2.0

package diff_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/memory"
)

// domainWith converts a VMI with the given virtio disks.
func domainWith(disks ...string) (*libvirtxml.Domain, error) {
	size := resource.MustParse("64Mi")
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001"},
		Spec:       v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &size}}},
	}
	facts := convert.Facts{Dir: "/var/lib/virtloom/guests/web", Disks: map[string]convert.DiskSource{}}
	for _, name := range disks {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
			v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{},
		}})
		facts.Disks[name] = convert.DiskSource{Path: "/srv/volumes/" + name + ".img", Shared: true}
	}
	return convert.Convert(vmi, facts)
}

// Start a domain, and later apply the differences that can be applied while the guest runs.
func ExampleCompare() {
	ctx := context.Background()
	h := memory.New("node-1")
	d, err := domainWith("root")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := diff.Stamp(d); err != nil {
		fmt.Println(err)
		return
	}
	if err := h.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		fmt.Println(err)
		return
	}

	desired, err := domainWith("root", "data")
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
		last, err := diff.LastApplied(state.Metadata)
		if err != nil {
			fmt.Println(err)
			return
		}
		differences, err := diff.Compare(desired, last, state.Domain)
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

// when returns when a user gets what has been changed in a VMI.
func when(c diff.Class) string {
	switch c {
	case diff.Live:
		return "now"
	case diff.NeedsMigration:
		return "with the next live migration"
	case diff.NextBoot:
		return "when the guest is shut down and started again"
	case diff.NeedsRecreation:
		return "never; it would be another machine"
	}
	return "unknown"
}

// A VMI is changed in two ways while its domain runs.
func ExampleClass() {
	live, err := domainWith("root")
	if err != nil {
		fmt.Println(err)
		return
	}
	desired, err := domainWith("root", "data")
	if err != nil {
		fmt.Println(err)
		return
	}
	desired.OS.Type.Machine = "pc-q35-rhel9.6.0"
	differences, err := diff.Compare(desired, live, live)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range differences {
		fmt.Println(d.Field, "-", when(d.Class))
	}
	// Output:
	// spec.domain.machine.type - never; it would be another machine
	// spec.domain.devices.disks[data] - now
}
