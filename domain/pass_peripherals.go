// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"strconv"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// localCID is the context identifier of every guest on nodes where identifiers are
// private to a network namespace: the first that is neither the hypervisor's nor
// the host's.
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

// tpm adds a trusted platform module of version 2.0. One that remembers is, as
// with KubeVirt, a CRB on amd64; virt machines only have the other interface.
func tpm(c *Conversion) error {
	in := c.VMI.Spec.Domain.Devices.TPM
	if in == nil || isFalse(in.Enabled) {
		return nil
	}
	if c.arch.name == specS390X {
		return c.Invalid(specDevices+"tpm", "guests of s390x have no TPM", "remove it")
	}
	emulator := &libvirtxml.DomainTPMBackendEmulator{Version: "2.0"}
	model := "tpm-tis"
	if isTrue(in.Persistent) {
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

// vsock adds the socket between guest and host. The model has no transitional
// variant: QEMU has forced it to be a modern device since 5.1.
func vsock(c *Conversion) error {
	cid := c.VMI.Status.VSOCKCID
	switch wanted := isTrue(c.VMI.Spec.Domain.Devices.AutoattachVSOCK); {
	case !wanted && cid == nil:
		return nil
	case c.Facts.LocalVSOCK:
		cid = ptr(uint32(localCID))
	case cid == nil:
		return &Error{
			Object: c.object(), Field: "status.VSOCKCID", Reason: "the guest has no context identifier for vsock",
			Remedy: "wait until the controller has given it one", Err: ErrNotFound,
		}
	case *cid < localCID:
		return c.Invalid("status.VSOCKCID", fmt.Sprintf("%d does not belong to guests", *cid), "give it another one")
	}
	model := "virtio-non-transitional"
	if c.arch.plainVirtio {
		model = busVirtio
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
		return c.Invalid(specDevices+"sound.model", fmt.Sprintf("%q is no sound card", model), "use ich9 or ac97")
	}
	c.Domain.Devices.Sounds = []libvirtxml.DomainSound{{Model: model, Alias: alias(in.Name)}}
	return nil
}

// usbRedirection adds the ports through which clients hand USB devices in.
func usbRedirection(c *Conversion) error {
	if c.VMI.Spec.Domain.Devices.ClientPassthrough == nil {
		return nil
	}
	if !c.hasUSB() {
		return c.Invalid(specDevices+"clientPassthrough", "guests of "+c.arch.name+" have no USB", "remove it")
	}
	for i := range v1.UsbClientPassthroughMaxNumberOf {
		path, err := c.socketPath(USBSocket + strconv.Itoa(i))
		if err != nil {
			return err
		}
		c.Domain.Devices.RedirDevs = append(c.Domain.Devices.RedirDevs, libvirtxml.DomainRedirDev{Bus: busUSB, Source: unixSocket(path)})
	}
	return nil
}
