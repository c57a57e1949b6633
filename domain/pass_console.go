// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"path/filepath"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Files of the guest in [Facts.Dir], by the names KubeVirt gives them.
const (
	// SerialSocket is where the serial console can be connected to.
	SerialSocket = "virt-serial0"
	// SerialLog is everything the guest ever wrote to its serial console.
	SerialLog = "virt-serial0-log"
	// VNCSocket is where the display can be connected to.
	VNCSocket = "virt-vnc"
)

// maxSocketPath is the length of a Unix socket's address in Linux, without the
// final zero.
const maxSocketPath = 107

// AgentChannel is the name of the guest agent's channel.
const AgentChannel = "org.qemu.guest_agent.0"

// socketPath returns the path of a socket in the guest's directory.
func (c *Conversion) socketPath(name string) (string, error) {
	p := filepath.Join(c.Facts.Dir, name)
	switch {
	case !filepath.IsAbs(c.Facts.Dir):
		return "", &Error{Object: "node", Reason: fmt.Sprintf("no absolute directory for guests but %q", c.Facts.Dir),
			Remedy: "configure one", Err: ErrInvalid}
	case len(p) > maxSocketPath:
		return "", &Error{Object: "node", Reason: fmt.Sprintf("path of a socket is longer than %d bytes: %s", maxSocketPath, p),
			Remedy: "configure a shorter state directory", Err: ErrInvalid}
	}
	return p, nil
}

// console adds the serial console and the channel of the guest agent. The
// console's socket is opened by QEMU and its log written by QEMU, so both work
// whoever listens: after a restart of the agent as after a live migration,
// where the same path is opened on the other node.
func console(c *Conversion) error {
	d := c.Domain.Devices
	d.Channels = append(d.Channels, libvirtxml.DomainChannel{
		Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
		Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: AgentChannel}},
	})
	if isFalse(c.VMI.Spec.Domain.Devices.AutoattachSerialConsole) {
		return nil
	}
	path, err := c.socketPath(SerialSocket)
	if err != nil {
		return err
	}
	serial := libvirtxml.DomainSerial{
		Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind", Path: path}},
		Target: &libvirtxml.DomainSerialTarget{Type: c.arch.serialTarget, Port: ptr(uint(0))},
		Alias:  alias("serial0"),
	}
	if !isFalse(c.VMI.Spec.Domain.Devices.LogSerialConsole) {
		serial.Log = &libvirtxml.DomainChardevLog{File: filepath.Join(c.Facts.Dir, SerialLog), Append: "on"}
	}
	d.Serials = append(d.Serials, serial)
	return nil
}

// videoModels are those a guest may ask for.
var videoModels = map[string]bool{"vga": true, busVirtio: true, "bochs": true, "cirrus": true, "ramfb": true, "qxl": true}

// graphics adds display, video card and pointing device.
func graphics(c *Conversion) error {
	in := &c.VMI.Spec.Domain.Devices
	if err := inputs(c); err != nil {
		return err
	}
	if isFalse(in.AutoattachGraphicsDevice) {
		if in.Video != nil {
			return c.Invalid(specDevices+"video", "needs a graphics device", "set autoattachGraphicsDevice, or remove it")
		}
		// libvirt adds a video card of its own unless told not to.
		c.Domain.Devices.Videos = []libvirtxml.DomainVideo{{Model: libvirtxml.DomainVideoModel{Type: "none"}}}
		return nil
	}
	path, err := c.socketPath(VNCSocket)
	if err != nil {
		return err
	}
	c.Domain.Devices.Graphics = []libvirtxml.DomainGraphic{{VNC: &libvirtxml.DomainGraphicVNC{
		Listeners: []libvirtxml.DomainGraphicListener{{Socket: &libvirtxml.DomainGraphicListenerSocket{Socket: path}}},
	}}}
	model := c.arch.video
	if in.Video != nil && in.Video.Type != "" {
		if model = in.Video.Type; !videoModels[model] {
			return c.Invalid(specDevices+"video.type", fmt.Sprintf("%q is no video card", model), "use vga, virtio or bochs")
		}
	}
	video := libvirtxml.DomainVideoModel{Type: model, Heads: 1}
	if model == "vga" {
		video.VRam = 16384
	}
	c.Domain.Devices.Videos = []libvirtxml.DomainVideo{{Model: video}}
	return nil
}

// inputs adds the tablets.
func inputs(c *Conversion) error {
	in := c.VMI.Spec.Domain.Devices.Inputs
	if isTrue(c.VMI.Spec.Domain.Devices.AutoattachInputDevice) && len(in) == 0 {
		in = []v1.Input{{Name: "default-0", Type: v1.InputTypeTablet, Bus: v1.InputBusUSB}}
	}
	for i, input := range in {
		field := fmt.Sprintf("%sinputs[%d]", specDevices, i)
		if input.Type != v1.InputTypeTablet {
			return c.Invalid(field+".type", fmt.Sprintf("%q is no input device", input.Type), "use tablet")
		}
		if err := c.checkName(field+".name", input.Name); err != nil {
			return err
		}
		out := libvirtxml.DomainInput{Type: string(input.Type), Alias: alias(input.Name)}
		switch input.Bus {
		case "", v1.InputBusUSB:
			out.Bus = busUSB
		case v1.InputBusVirtio:
			out.Bus, out.Model = busVirtio, c.virtioModel()
		default:
			return c.Invalid(field+".bus", fmt.Sprintf("%q is no bus for a tablet", input.Bus), "use usb or virtio")
		}
		c.Domain.Devices.Inputs = append(c.Domain.Devices.Inputs, out)
	}
	return nil
}
