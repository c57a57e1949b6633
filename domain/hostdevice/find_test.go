// SPDX-License-Identifier: Apache-2.0

package hostdevice_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFind_Kinds(t *testing.T) {
	s := newTree(t)
	s.pci("0000:65:00.0", "10de:2204", "vfio-pci", 12, 1)
	s.pci("0000:65:00.1", "10de:1aef", "vfio-pci", 12, 1) // its sound, in the same group
	s.pci("0000:66:00.0", "10de:2204", "nvidia", 13, 1)   // the node's own
	s.pci("0000:67:00.0", "10de:2204", "", 14, 1)
	s.pci("0000:68:00.0", "10de:2204", "vfio-pci", 15, -1)
	s.pci("0000:69:00.0", "10de:2204", "vfio-pci", 15, 0) // the second of its group
	s.pci("0000:00:02.0", "8086:3e9b", "i915", 3, 0)
	s.mediated("0000:00:02.0", uuid1, "i915-GVTg_V5_4", "GVTg V5 4", 20)
	s.mediated("0000:66:00.0", uuid2, "nvidia-222", "", 21)
	s.usb("1-1", "46f4:0001", 1, 2)
	s.usb("1-2.4", "46f4:0001", 1, 31)
	s.usb("2-1", "0951:1666", 2, 3)
	s.usb("usb1", "1d6b:0002", 1, 1)
	s.write("bus/usb/devices/1-1:1.0", map[string]string{"bInterfaceClass": "08"})
	for name, tt := range map[string]struct {
		permitted string
		want      []string
		err       string
	}{
		"nothing": {permitted: `{}`},
		"PCI": {permitted: `pciHostDevices: [{pciVendorSelector: "10DE:2204", resourceName: nvidia.com/GA102-gpu}, {pciVendorSelector: "10de:1aef", resourceName: nvidia.com/sound}]`, want: []string{
			"nvidia.com/GA102-gpu 12 1 PCI_RESOURCE_NVIDIA_COM_GA102-GPU=0000:65:00.0 /dev/vfio/vfio /dev/vfio/12",
			"nvidia.com/GA102-gpu 15 - PCI_RESOURCE_NVIDIA_COM_GA102-GPU=0000:68:00.0 /dev/vfio/vfio /dev/vfio/15",
			"nvidia.com/sound 12 1 PCI_RESOURCE_NVIDIA_COM_SOUND=0000:65:00.1 /dev/vfio/vfio /dev/vfio/12",
		}},
		"mediated": {permitted: `mediatedDevices: [{mdevNameSelector: "GVTg V5 4", resourceName: intel.com/gvt}, {mdevNameSelector: nvidia-222, resourceName: nvidia.com/grid}]`, want: []string{
			"intel.com/gvt 20 0 MDEV_PCI_RESOURCE_INTEL_COM_GVT=" + uuid1 + " /dev/vfio/vfio /dev/vfio/20",
			"nvidia.com/grid 21 1 MDEV_PCI_RESOURCE_NVIDIA_COM_GRID=" + uuid2 + " /dev/vfio/vfio /dev/vfio/21",
		}},
		"USB": {permitted: `usb: [{resourceName: a.example/stick, selectors: [{vendor: 46f4, product: "0001"}]}, {resourceName: a.example/late, selectors: [{vendor: 46F4, product: "1"}]}]`, want: []string{
			"a.example/stick 1-1 - USB_RESOURCE_A_EXAMPLE_STICK=1:2 /dev/bus/usb/001/002",
			"a.example/stick 1-2.4 - USB_RESOURCE_A_EXAMPLE_STICK=1:31 /dev/bus/usb/001/031",
		}},
		"USB, together": {permitted: `usb: [{resourceName: a.example/set, selectors: [{vendor: 46f4, product: "0001"}, {vendor: "0951", product: "1666"}]}, {resourceName: a.example/rest, selectors: [{vendor: 46f4, product: "0001"}]}]`, want: []string{
			"a.example/rest 1-2.4 - USB_RESOURCE_A_EXAMPLE_REST=1:31 /dev/bus/usb/001/031",
			"a.example/set 1-1+2-1 - USB_RESOURCE_A_EXAMPLE_SET=1:2,2:3 /dev/bus/usb/001/002 /dev/bus/usb/002/003",
		}},
		"left to others": {permitted: `{pciHostDevices: [{pciVendorSelector: "10de:2204", resourceName: nvidia.com/g, externalResourceProvider: true}],
			mediatedDevices: [{mdevNameSelector: nvidia-222, resourceName: nvidia.com/grid, externalResourceProvider: true}],
			usb: [{resourceName: a.example/stick, selectors: [{vendor: 46f4, product: "0001"}], externalResourceProvider: true}]}`},
		"not here": {permitted: `pciHostDevices: [{pciVendorSelector: "10de:ffff", resourceName: nvidia.com/other}]`},
		"a selector of two resources": {permitted: `pciHostDevices: [{pciVendorSelector: "10de:1aef", resourceName: a.example/one}, {pciVendorSelector: "10DE:1AEF", resourceName: a.example/two}]`,
			want: []string{"a.example/two 12 1 PCI_RESOURCE_A_EXAMPLE_TWO=0000:65:00.1 /dev/vfio/vfio /dev/vfio/12"}, err: "pciHostDevices[1]: its selector"},
		"two selectors of a resource": {permitted: `pciHostDevices: [{pciVendorSelector: "10de:1aef", resourceName: a.example/one}, {pciVendorSelector: "10de:2204", resourceName: a.example/one}]`, want: []string{
			"a.example/one 12 1 PCI_RESOURCE_A_EXAMPLE_ONE=0000:65:00.0 /dev/vfio/vfio /dev/vfio/12",
			"a.example/one 15 - PCI_RESOURCE_A_EXAMPLE_ONE=0000:68:00.0 /dev/vfio/vfio /dev/vfio/15",
		}},
		"every node's resource": {permitted: `pciHostDevices: [{pciVendorSelector: "10de:1aef", resourceName: devices.kubevirt.io/kvm}]`, err: "reserved"},
		"Kubernetes' resource":  {permitted: `mediatedDevices: [{mdevNameSelector: nvidia-222, resourceName: kubernetes.io/grid}]`, err: "reserved"},
		"no domain":             {permitted: `usb: [{resourceName: stick, selectors: [{vendor: 46f4, product: "0001"}]}]`, err: "usb[0]: resourceName"},
		"no name":               {permitted: `usb: [{resourceName: "a.example/../x", selectors: [{vendor: 46f4, product: "0001"}]}]`, err: "usb[0]: resourceName"},
		"no selectors":          {permitted: `usb: [{resourceName: a.example/stick}]`, err: "selectors: Required value"},
		"no hexadecimal number": {permitted: `usb: [{resourceName: a.example/stick, selectors: [{vendor: 46f4, product: "xyz"}]}]`, err: "selectors[0].product"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := list(t, s.host(), tt.permitted)
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

// TestFind_BadTree: whatever is wrong with one device, the others are found, and the error says what it is.
func TestFind_BadTree(t *testing.T) {
	const permitted = `{pciHostDevices: [{pciVendorSelector: "10de:2204", resourceName: a.example/card}], mediatedDevices: [{mdevNameSelector: kind, resourceName: a.example/part}],
		usb: [{resourceName: a.example/stick, selectors: [{vendor: 46f4, product: "0001"}]}]}`
	const card, part, stick = pciDevices + "0000:65:00.0", "bus/mdev/devices/" + uuid1, "bus/usb/devices/1-1"
	for name, tt := range map[string]struct {
		spoil func(s tree)
		lost  string // the resource that is not found
		err   string
	}{
		"as it should be":               {spoil: func(tree) {}},
		"a group that is a path":        {func(s tree) { s.link(card+"/iommu_group", "../12/..") }, "a.example/card", "IOMMU group"},
		"a group that is a name":        {func(s tree) { s.link(card+"/iommu_group", "../../mem") }, "a.example/card", `"mem"`},
		"a group of a mediated device":  {func(s tree) { s.link(part+"/iommu_group", "/dev/mem") }, "a.example/part", `"mem"`},
		"a group with a zero":           {func(s tree) { s.link(card+"/iommu_group", "../012") }, "a.example/card", `"012"`},
		"no group":                      {func(s tree) { s.remove(card + "/iommu_group") }, "a.example/card", "switch the IOMMU"},
		"a group that is no link":       {func(s tree) { s.remove(card + "/iommu_group"); s.write(card, map[string]string{"iommu_group": "12"}) }, "a.example/card", "iommu_group"},
		"another driver":                {func(s tree) { s.link(card+"/driver", "../drivers/vfio-pci-not") }, "a.example/card", ""},
		"no vendor":                     {func(s tree) { s.remove(card + "/vendor") }, "a.example/card", "vendor"},
		"a vendor that is too long":     {func(s tree) { s.write(card, map[string]string{"vendor": "0x110de"}) }, "a.example/card", "vendor"},
		"a vendor that is garbage":      {func(s tree) { s.write(card, map[string]string{"vendor": "\x00\xff"}) }, "a.example/card", "vendor"},
		"a vendor that has no end":      {func(s tree) { s.link(card+"/vendor", "/dev/zero") }, "a.example/card", "regular"},
		"a vendor that is a directory":  {func(s tree) { s.remove(card + "/vendor"); s.write(card+"/vendor", map[string]string{"x": ""}) }, "a.example/card", "regular"},
		"a vendor that never answers":   {func(s tree) { s.remove(card + "/vendor"); s.fifo(card + "/vendor") }, "a.example/card", "regular"},
		"a vendor in a circle":          {func(s tree) { s.link(card+"/vendor", "vendor") }, "a.example/card", "vendor"},
		"a NUMA node that is garbage":   {func(s tree) { s.write(card, map[string]string{"numa_node": "many"}) }, "", ""},
		"a type that is huge":           {func(s tree) { s.write(part+"/mdev_type", map[string]string{"name": strings.Repeat("kind", 1<<20)}) }, "a.example/part", ""},
		"a type that is not said":       {func(s tree) { s.remove(part + "/mdev_type") }, "a.example/part", ""},
		"a parent that is somewhere":    {func(s tree) { s.link(part, filepath.Join(s.dir, "devices/pci0000:00/0000:65:00.0", uuid1)) }, "", ""},
		"a bus that is a path":          {func(s tree) { s.write(stick, map[string]string{"busnum": "../../mem"}) }, "a.example/stick", "busnum"},
		"a number that is negative":     {func(s tree) { s.write(stick, map[string]string{"devnum": "-1"}) }, "a.example/stick", "devnum"},
		"a device that has vanished":    {func(s tree) { s.remove("devices/pci0000:00/0000:65:00.0/vendor"); s.remove(stick) }, "a.example/card", "vendor"},
		"a bus that is a file":          {func(s tree) { s.remove("bus/usb/devices"); s.write("bus/usb", map[string]string{"devices": ""}) }, "a.example/stick", "usb devices"},
		"a bus that is not there":       {func(s tree) { s.remove("bus/mdev") }, "a.example/part", ""},
		"names that are no addresses":   {func(s tree) { s.link(pciDevices+"..:65:00.0", "."); s.link("bus/usb/devices/1-1.", "1-1") }, "", ""},
		"a device that is a dead link":  {func(s tree) { s.link(pciDevices+"0000:99:00.0", "nowhere") }, "", "0000:99:00.0"},
		"a device that is not readable": {func(s tree) { s.link(pciDevices+"0000:99:00.0", "/proc/self/mem") }, "", "0000:99:00.0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTree(t)
			s.pci("0000:65:00.0", "10de:2204", "vfio-pci", 12, 1)
			s.mediated("0000:65:00.0", uuid1, "kind-1", "kind", 20)
			s.usb("1-1", "46f4:0001", 1, 2)
			tt.spoil(s)
			got, err := list(t, s.host(), permitted)
			for _, resource := range []string{"a.example/card", "a.example/part", "a.example/stick"} {
				there := slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, resource+" ") })
				gone := resource == tt.lost || resource == "a.example/stick" && name == "a device that has vanished"
				if there == gone {
					t.Errorf("%s is found: %t\n%s", resource, there, strings.Join(got, "\n"))
				}
			}
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}
