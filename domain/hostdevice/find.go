// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/deviceplugin"
)

// Find returns the permitted devices that the node has, by the name of their resource. A device that cannot be offered is left out,
// and so is an entry that is invalid: the error, which does not affect the others, says why.
func (h Host) Find(permitted *v1.PermittedHostDevices) (map[string][]deviceplugin.Unit, error) {
	s := search{host: h, found: map[string][]deviceplugin.Unit{}}
	if permitted == nil {
		return s.found, nil
	}
	s.pci(permitted.PciHostDevices)
	s.mediated(permitted.MediatedDevices)
	s.usb(permitted.USB)
	return s.found, errors.Join(s.errs...)
}

// search is one call of Find.
type search struct {
	host  Host
	found map[string][]deviceplugin.Unit
	errs  []error
}

// omit notes why something is left out.
func (s *search) omit(what string, err error) {
	s.errs = append(s.errs, fmt.Errorf("hostdevice: %s: %w", what, err))
}

// add adds a device to a resource, unless that has one with this ID.
func (s *search) add(resource string, u deviceplugin.Unit) {
	if !slices.ContainsFunc(s.found[resource], func(other deviceplugin.Unit) bool { return other.ID == u.ID }) {
		s.found[resource] = append(s.found[resource], u)
	}
}

// ownDomain is the domain of the resources that every node offers.
const ownDomain = "devices.kubevirt.io/"

// checkResource returns an error for a name that the kubelet does not take, or that is not for host
// devices.
func checkResource(name string) error {
	domain, _, two := strings.Cut(name, "/")
	problems := validation.IsQualifiedName(name)
	switch {
	case !two:
		problems = append(problems, "it must have a domain, such as nvidia.com/GA102")
	case strings.HasPrefix(name, ownDomain), domain == "kubernetes.io", strings.HasSuffix(domain, ".kubernetes.io"), strings.HasPrefix(domain, "requests."):
		problems = append(problems, "its domain is reserved; use another one")
	}
	if len(problems) > 0 {
		return fmt.Errorf("resourceName: Invalid value: %.80q: %s", name, problems[0])
	}
	return nil
}

// selectors collects which resource a selector stands for. As in KubeVirt the last of several entries
// with one selector counts.
func (s *search) selectors(field string, i int, selector, resource string, into map[string]string) {
	at := fmt.Sprintf("spec.configuration.permittedHostDevices.%s[%d]", field, i)
	if err := checkResource(resource); err != nil {
		s.omit(at, err)
		return
	}
	if other, there := into[selector]; there && other != resource {
		s.omit(at, fmt.Errorf("its selector %.80q is that of %s as well, which gets no device by it; remove one of them", selector, other))
	}
	into[selector] = resource
}

// The forms of names in sysfs that become addresses of a domain, or parts of a path.
var (
	pciForm  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// vfioDriver is the driver by which a hypervisor gets a PCI device.
const vfioDriver = "vfio-pci"

// pci finds PCI devices.
func (s *search) pci(entries []v1.PciHostDevice) {
	selected := map[string]string{}
	for i, e := range entries {
		if !e.ExternalResourceProvider {
			s.selectors("pciHostDevices", i, strings.ToLower(strings.TrimSpace(e.PCIVendorSelector)), e.ResourceName, selected)
		}
	}
	s.each("pci", pciForm, selected, func(f folder, address string) error {
		id, err := f.pciID(address)
		resource, permitted := selected[id]
		if err != nil || !permitted {
			return err
		}
		driver, err := f.target(address, "driver")
		if err != nil || driver != vfioDriver {
			return err // it is the node's own
		}
		group, err := f.group(address)
		if err == nil {
			s.add(resource, vfioUnit(group, v1.PCIResourcePrefix, resource, address, f.cell(address)))
		}
		return err
	})
}

// pciID returns vendor and device of a PCI device as in a selector: 10de:2204.
func (f folder) pciID(address string) (string, error) {
	var id [2]uint64
	for i, name := range []string{"vendor", "device"} {
		n, err := f.number(address, name, 0, 16)
		if err != nil {
			return "", err
		}
		id[i] = n
	}
	return fmt.Sprintf("%04x:%04x", id[0], id[1]), nil
}

// mediated finds mediated devices.
func (s *search) mediated(entries []v1.MediatedHostDevice) {
	selected := map[string]string{}
	for i, e := range entries {
		if !e.ExternalResourceProvider {
			s.selectors("mediatedDevices", i, typeName(e.MDEVNameSelector), e.ResourceName, selected)
		}
	}
	s.each("mdev", uuidForm, selected, func(f folder, uuid string) error {
		kind, err := f.mediatedType(uuid)
		resource, permitted := selected[kind]
		if err != nil || !permitted {
			return err
		}
		group, err := f.group(uuid)
		if err != nil {
			return err
		}
		s.add(resource, vfioUnit(group, v1.MDevResourcePrefix, resource, uuid, s.host.mediatedCell(uuid)))
		return nil
	})
}

// mediatedCell returns the NUMA node of the PCI device that a mediated device is a part of.
func (h Host) mediatedCell(uuid string) *int64 {
	path, err := os.Readlink(filepath.Join(string(h.bus("mdev")), uuid))
	if parent := filepath.Base(filepath.Dir(path)); err == nil && pciForm.MatchString(parent) {
		return h.bus("pci").cell(parent)
	}
	return nil
}

// typeName returns the name of a type of mediated devices as it is compared.
func typeName(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), " ", "_") }

// mediatedType returns the name of a mediated device's type, or what that has for a name in sysfs.
func (f folder) mediatedType(uuid string) (string, error) {
	name, err := f.attribute(uuid, "mdev_type/name")
	if err != nil || name == "" {
		name, err = f.target(uuid, "mdev_type")
	}
	return typeName(name), err
}

// each calls a function for all devices of a bus, if any is permitted.
func (s *search) each(bus string, form *regexp.Regexp, selected map[string]string, look func(f folder, name string) error) {
	if len(selected) == 0 {
		return
	}
	f := s.host.bus(bus)
	names, err := f.names(form)
	if err != nil {
		s.omit(bus+" devices", err)
	}
	for _, name := range names {
		if err := look(f, name); err != nil {
			s.omit(bus+" device "+name, err)
		}
	}
}

// vfioUnit returns a device that a hypervisor opens by its IOMMU group.
func vfioUnit(group, prefix, resource, address string, cell *int64) deviceplugin.Unit {
	return deviceplugin.Unit{
		ID: group, Nodes: []string{"/dev/vfio/vfio", "/dev/vfio/" + group}, Variable: variable(prefix, resource), Values: []string{address}, Cell: cell,
	}
}

// variable returns the environment variable of a resource (KubeVirt: ResourceNameToEnvVar).
func variable(prefix, resource string) string {
	return prefix + "_" + strings.ToUpper(strings.NewReplacer("/", "_", ".", "_").Replace(resource))
}
