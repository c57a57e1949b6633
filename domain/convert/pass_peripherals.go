// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"strconv"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// localCID is the context identifier of every guest on nodes with local identifiers: the first
// after those of the hypervisor and the host.
const localCID = 3

// peripherals adds TPM, vsock, sound card and USB redirection.
func peripherals(c *Conversion) error {
	for _, add := range []func(*Conversion) error{tpm, vsock, sound, usbRedirection} {
		if err := add(c); err != nil {
			return err
		}
	}
	return nil
}

// tpm adds a TPM 2.0. A persistent one is, as in KubeVirt, a CRB on amd64; virt machines support
// the other interface only.
func tpm(c *Conversion) error {
	in := c.VMI.Spec.Domain.Devices.TPM
	if in == nil || specIsFalse(in.Enabled) {
		return nil
	}
	if c.arch.name == specS390X {
		return c.Invalid(specDevices+"tpm", "TPM is not supported on s390x", "remove it")
	}
	emulator := &libvirtxml.DomainTPMBackendEmulator{Version: "2.0"}
	model := "tpm-tis"
	if specIsTrue(in.Persistent) {
		emulator.PersistentState = "yes"
		if c.arch.name == specX86 {
			model = "tpm-crb"
		}
	}
	c.Domain.Devices.TPMs = []libvirtxml.DomainTPM{{
		Model: model, Backend: &libvirtxml.DomainTPMBackend{Emulator: emulator},
	}}
	return nil
}

// vsock adds the socket between guest and host. The model has no transitional variant: QEMU
// requires a modern device since 5.1.
func vsock(c *Conversion) error {
	cid := c.VMI.Status.VSOCKCID
	switch wanted := specIsTrue(c.VMI.Spec.Domain.Devices.AutoattachVSOCK); {
	case !wanted && cid == nil:
		return nil
	case c.Facts.LocalVSOCK:
		cid = new(uint32(localCID))
	case cid == nil:
		return &Error{
			Object: c.object(), Field: "status.VSOCKCID", Reason: "no vsock context identifier is allocated",
			Remedy: "wait until the controller allocates one", Err: domain.ErrNotFound,
		}
	case *cid < localCID:
		return c.Invalid("status.VSOCKCID", fmt.Sprintf("Invalid value: %d is reserved", *cid), "allocate another one")
	}
	model := "virtio-non-transitional"
	if c.arch.plainVirtio {
		model = xmlspec.BusVirtio
	}
	c.Domain.Devices.VSock = &libvirtxml.DomainVSock{
		Model: model, CID: &libvirtxml.DomainVSockCID{Auto: "no", Address: strconv.FormatUint(uint64(*cid), 10)},
	}
	return nil
}

// sound adds the sound card.
func sound(c *Conversion) error {
	in := c.VMI.Spec.Domain.Devices.Sound
	if in == nil {
		return nil
	}
	if err := c.checkName(specDevices+"sound.name", in.Name); err != nil {
		return err
	}
	model := cmp.Or(in.Model, "ich9")
	if model != "ich9" && model != "ac97" {
		return c.Invalid(specDevices+"sound.model", fmt.Sprintf("Unsupported value: %q", model), "use ich9 or ac97")
	}
	c.Domain.Devices.Sounds = []libvirtxml.DomainSound{{Model: model, Alias: xmlspec.Alias(in.Name)}}
	return nil
}

// usbRedirection adds the ports through which clients redirect USB devices.
func usbRedirection(c *Conversion) error {
	if c.VMI.Spec.Domain.Devices.ClientPassthrough == nil {
		return nil
	}
	if !c.hasUSB() {
		return c.Invalid(specDevices+"clientPassthrough", "USB is not supported on "+c.arch.name, "remove it")
	}
	for i := range v1.UsbClientPassthroughMaxNumberOf {
		path, err := c.socketPath(USBSocket + strconv.Itoa(i))
		if err != nil {
			return err
		}
		c.Domain.Devices.RedirDevs = append(c.Domain.Devices.RedirDevs, libvirtxml.DomainRedirDev{Bus: xmlspec.BusUSB, Source: unixSocket(path)})
	}
	return nil
}
