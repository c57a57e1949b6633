// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

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
	var e *convert.Error
	if errors.As(err, &e) {
		fmt.Println(e.Field, "-", e.Reason, "-", e.Remedy)
	}
	// Output:
	// default_web kvm vda
	// spec.domain.devices.disks[0].disk.bus - Unsupported value: "ide" - use virtio, sata, scsi or usb
}

// A custom pass runs after the standard ones. It rejects what it cannot convert with the field and a remedy.
func ExampleConvertWith() {
	owner := convert.Pass{Name: "owner", Apply: func(c *convert.Conversion) error {
		const field = "metadata.annotations[example.com/owner]"
		name, has := c.VMI.Annotations["example.com/owner"]
		switch {
		case name == "" && has:
			return c.Invalid(field, "Required value", "name the team that owns the VMI")
		case strings.Contains(name, ","):
			return c.Unsupported(field, "name one team only")
		}
		c.Domain.Description = "belongs to " + cmp.Or(name, c.VMI.Namespace)
		return nil
	}}
	for _, name := range []string{"blue", "blue,green"} {
		vmi := exampleVMI()
		vmi.Annotations = map[string]string{"example.com/owner": name}
		d, err := convert.ConvertWith(vmi, exampleFacts(), append(convert.Passes(), owner))
		if err != nil {
			fmt.Println(errors.Is(err, domain.ErrUnsupported), err)
			return
		}
		fmt.Println(d.Description)
	}
	// Output:
	// belongs to blue
	// true VirtualMachineInstance default/web: metadata.annotations[example.com/owner]: is not supported yet (name one team only)
}

// The channels of a domain, and the files in the directory of its VMI, have fixed names, by which programs
// beside it find them: a proxy of consoles and displays, a server of metrics, a redirector of USB devices.
func ExampleConvert_names() {
	vmi, facts := exampleVMI(), exampleFacts()
	vmi.Spec.Domain.Devices.DownwardMetrics = &v1.DownwardMetrics{}
	vmi.Spec.Domain.Devices.ClientPassthrough = &v1.ClientPassthroughDevices{}
	facts.IOMMUFD = true
	facts.Services.DownwardMetrics = true
	facts.Cluster = convert.Cluster{FirmwareLog: true, FeatureGates: []string{"DownwardMetrics"}}
	facts.SMBIOS = &convert.SMBIOS{Manufacturer: "Example", Product: "Cloud"}
	d, err := convert.Convert(vmi, facts)
	if err != nil {
		fmt.Println(err)
		return
	}
	in := func(name string) string { return path.Join(facts.Dir, name) }
	for _, c := range d.Devices.Channels {
		if c.Target.VirtIO.Name == convert.MetricsChannel {
			fmt.Println("metrics:", c.Source.UNIX.Path == in(convert.MetricsSocket))
		}
	}
	fmt.Println("open file of /dev/iommu:", d.IOMMUFD.FDGroup == convert.IOMMUFDGroup)
	fmt.Println("console:", d.Devices.Serials[0].Source.UNIX.Path == in(convert.SerialSocket))
	fmt.Println("display:", d.Devices.Graphics[0].VNC.Listeners[0].Socket.Socket == in(convert.VNCSocket))
	fmt.Println("first USB device:", d.Devices.RedirDevs[0].Source.UNIX.Path == in(convert.USBSocket+"0"))
	for _, a := range d.QEMUCommandline.Args {
		if strings.Contains(a.Value, in(convert.FirmwareLog)) {
			fmt.Println("firmware:", a.Value)
		}
	}
	// Output:
	// metrics: true
	// open file of /dev/iommu: true
	// console: true
	// display: true
	// first USB device: true
	// firmware: file,id=firmwarelog,path=/var/lib/virtloom/guests/web/firmware.log
}

// Where are the devices of a domain, and how many can be hotplugged?
func ExampleLayoutOf() {
	d, err := convert.Convert(exampleVMI(), exampleFacts())
	if err != nil {
		fmt.Println(err)
		return
	}
	l := convert.LayoutOf(d)
	free := map[uint]convert.Bus{}
	for _, b := range l.Buses {
		if b.Model == "pcie-root-port" && !b.Fixed {
			free[b.Index] = b
		}
	}
	for _, p := range l.Places {
		delete(free, p.Bus)
	}
	fmt.Println("disk root at", l.Places["ua-root"], "-", len(free), "ports for hotplug")
	// Output:
	// disk root at 0000:03:00.0 - 4 ports for hotplug
}
