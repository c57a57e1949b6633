// SPDX-License-Identifier: Apache-2.0

package hostdevice_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/domain/hostdevice"
)

// tree is a sysfs in a directory.
type tree struct {
	t   *testing.T
	dir string
}

func newTree(t *testing.T) tree { return tree{t, t.TempDir()} }

func (s tree) host() hostdevice.Host { return hostdevice.Host{Sys: s.dir} }

// write writes attributes of a device.
func (s tree) write(device string, attributes map[string]string) {
	s.t.Helper()
	for name, text := range attributes {
		path := filepath.Join(s.dir, device, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o600)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// link makes a link; what was there is replaced.
func (s tree) link(path, to string) {
	s.t.Helper()
	path = filepath.Join(s.dir, path)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		s.t.Fatal(err)
	}
}

const pciDevices = "bus/pci/devices/"

// pci makes a PCI device, as the kernel shows it: a link to where it is connected.
func (s tree) pci(address, id, driver string, group, cell int) {
	s.t.Helper()
	vendor, product, _ := strings.Cut(id, ":")
	at := "devices/pci0000:00/" + address
	s.write(at, map[string]string{"vendor": "0x" + vendor, "device": "0x" + product, "numa_node": fmt.Sprint(cell)})
	if driver != "" {
		s.link(at+"/driver", "../../../bus/pci/drivers/"+driver)
	}
	if group >= 0 {
		s.link(at+"/iommu_group", fmt.Sprintf("../../../kernel/iommu_groups/%d", group))
	}
	s.link(pciDevices+address, "../../../"+at)
}

// mediated makes a mediated device of a PCI device.
func (s tree) mediated(parent, uuid, kind, name string, group int) {
	s.t.Helper()
	at := "devices/pci0000:00/" + parent + "/" + uuid
	s.link(at+"/mdev_type", "../mdev_supported_types/"+kind)
	if attributes := map[string]string{"name": name}; name != "" {
		s.write("devices/pci0000:00/"+parent+"/mdev_supported_types/"+kind, attributes)
	}
	s.link(at+"/iommu_group", fmt.Sprintf("../../../../kernel/iommu_groups/%d", group))
	s.link("bus/mdev/devices/"+uuid, "../../../"+at)
}

// usb makes a USB device.
func (s tree) usb(port, id string, bus, number int) {
	s.t.Helper()
	vendor, product, _ := strings.Cut(id, ":")
	s.write("bus/usb/devices/"+port, map[string]string{"idVendor": vendor, "idProduct": product, "busnum": fmt.Sprint(bus), "devnum": fmt.Sprint(number)})
}

// remove takes something away.
func (s tree) remove(path string) {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(s.dir, path)); err != nil {
		s.t.Fatal(err)
	}
}

// permit parses spec.configuration.permittedHostDevices.
func permit(t *testing.T, text string) *v1.PermittedHostDevices {
	t.Helper()
	out := &v1.PermittedHostDevices{}
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// list returns the devices as lines: resource, ID, NUMA node, variable and values, nodes.
func list(t *testing.T, h hostdevice.Host, permitted string) (lines []string, err error) {
	t.Helper()
	found, err := h.Find(permit(t, permitted))
	for resource, units := range found {
		for _, u := range units {
			at := "-"
			if u.Cell != nil {
				at = fmt.Sprint(*u.Cell)
			}
			lines = append(lines, fmt.Sprintf("%s %s %s %s=%s %s", resource, u.ID, at, u.Variable, strings.Join(u.Values, ","), strings.Join(u.Nodes, " ")))
		}
	}
	return lines, err
}

const (
	uuid1 = "b9401f24-6d5a-4a3c-9d55-0a8a2d4c7a01"
	uuid2 = "b9401f24-6d5a-4a3c-9d55-0a8a2d4c7a02"
)

// fifo makes a pipe, from which a read would not return.
func (s tree) fifo(path string) {
	s.t.Helper()
	path = filepath.Join(s.dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), unix.Mkfifo(path, 0o600)); err != nil {
		s.t.Fatal(err)
	}
}
