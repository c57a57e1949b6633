// SPDX-License-Identifier: Apache-2.0

package assume

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// The assumed node has a distinct device for each device of the spec, deterministically.
func TestFacts_Devices(t *testing.T) {
	vmi := domainfixture.Small()
	d := &vmi.Spec.Domain.Devices
	d.Interfaces = append(d.Interfaces,
		v1.Interface{Name: "named", InterfaceBindingMethod: v1.InterfaceBindingMethod{PasstBinding: &v1.InterfacePasstBinding{}}},
		v1.Interface{Name: "unnamed", InterfaceBindingMethod: v1.InterfaceBindingMethod{PasstBinding: &v1.InterfacePasstBinding{}}},
		v1.Interface{Name: "function", InterfaceBindingMethod: v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}}},
	)
	vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{Name: "named", PodInterfaceName: "pod37a8eec1ce1"}}
	d.HostDevices = []v1.HostDevice{{Name: "a", DeviceName: "card"}, {Name: "b", ClaimRequest: &v1.ClaimRequest{ClaimName: "c", RequestName: "r"}}}
	d.GPUs = []v1.GPU{{Name: "g", DeviceName: "card"}, {Name: "h", DeviceName: "gpu", VirtualGPUOptions: &v1.VGPUOptions{}}}
	d.Filesystems = []v1.Filesystem{{Name: "data"}}
	f := Facts(vmi)
	got := convert.Facts{Links: f.Links, SRIOV: f.SRIOV, Devices: f.Devices, Filesystems: f.Filesystems, LocalVSOCK: f.LocalVSOCK}
	want := convert.Facts{
		Links:       map[string]convert.Link{"default": {Tap: "tap0"}, "named": {Passt: "pod37a8eec1ce1"}, "unnamed": {Passt: "eth2"}},
		SRIOV:       map[string]string{"function": "0000:65:04.0"},
		Filesystems: map[string]string{"data": "/var/run/kubevirt/virtiofs-containers/data.sock"},
		Devices: map[string][]convert.HostDevice{
			"card": {{PCI: "0000:81:00.0"}, {PCI: "0000:83:00.0"}}, "c/r": {{PCI: "0000:82:00.0"}},
			"gpu": {{MDev: "00000000-0000-4000-8000-000000000004"}},
		},
		LocalVSOCK: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(f, Facts(vmi)); diff != "" {
		t.Errorf("the second call differs:\n%s", diff)
	}
	if vmi.Status.VSOCKCID = new(uint32(9)); Facts(vmi).LocalVSOCK {
		t.Error("an allocated context identifier is replaced")
	}
}
