// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Kinds of input devices and video models.
const (
	inputTablet   = "tablet"
	inputKeyboard = "keyboard"
	videoBochs    = "bochs"
	videoVGA      = "vga"
)

// videoRAM is the memory of a VGA device in KiB, KubeVirt's value.
const videoRAM = 16384

// videoModels are the video models that each architecture supports.
var videoModels = map[string][]string{
	specX86:   {videoVGA, xmlspec.BusVirtio, videoBochs, "cirrus", "ramfb", "qxl"},
	specARM:   {xmlspec.BusVirtio, "ramfb"},
	specS390X: {xmlspec.BusVirtio},
}

// hasGraphics reports whether the domain has a display. As in KubeVirt, a guest of another
// architecture than its node has none, since emulation would be too slow for it.
func (c *Conversion) hasGraphics() bool {
	return !specIsFalse(c.VMI.Spec.Domain.Devices.AutoattachGraphicsDevice) && !c.crossArchitecture()
}

// graphics adds display, video device and input devices.
func graphics(c *Conversion) error {
	video := c.VMI.Spec.Domain.Devices.Video
	if err := inputs(c); err != nil {
		return err
	}
	if !c.hasGraphics() {
		if video != nil {
			return c.Invalid(specDevices+"video", "Forbidden: requires a graphics device", "set autoattachGraphicsDevice, or remove it")
		}
		return nil
	}
	path, err := c.socketPath(VNCSocket)
	if err != nil {
		return err
	}
	c.Domain.Devices.Graphics = []libvirtxml.DomainGraphic{{VNC: &libvirtxml.DomainGraphicVNC{
		Listeners: []libvirtxml.DomainGraphicListener{{Socket: &libvirtxml.DomainGraphicListenerSocket{Socket: path}}},
	}}}
	model := libvirtxml.DomainVideoModel{Type: c.arch.video, Heads: 1}
	switch {
	case video != nil && video.Type != "":
		if models := videoModels[c.arch.name]; !slices.Contains(models, video.Type) {
			return c.Invalid(specDevices+"video.type", fmt.Sprintf("Unsupported value: %q on %s", video.Type, c.arch.name), "use one of "+strings.Join(models, ", "))
		}
		model.Type, model.VRam = video.Type, videoRAM
	case model.Type == videoVGA && c.Facts.Cluster.BochsForEFI && c.bootsEFI():
		model.Type = videoBochs
	case model.Type == videoVGA:
		model.VRam = videoRAM
	}
	c.Domain.Devices.Videos = []libvirtxml.DomainVideo{{Model: model}}
	return nil
}

// bootsEFI reports whether the guest boots from UEFI.
func (c *Conversion) bootsEFI() bool {
	fw := c.VMI.Spec.Domain.Firmware
	return fw != nil && fw.Bootloader != nil && fw.Bootloader.EFI != nil
}

// inputs adds the tablets of the spec, and a keyboard to domains with a display on virt and s390
// machines, which have none by default.
func inputs(c *Conversion) error {
	in := c.VMI.Spec.Domain.Devices.Inputs
	if specIsTrue(c.VMI.Spec.Domain.Devices.AutoattachInputDevice) && len(in) == 0 {
		in = []v1.Input{{Name: "default-0", Type: v1.InputTypeTablet}}
	}
	for i := range in {
		out, err := c.tablet(fmt.Sprintf("%sinputs[%d]", specDevices, i), &in[i])
		if err != nil {
			return err
		}
		c.Domain.Devices.Inputs = append(c.Domain.Devices.Inputs, out)
	}
	if !c.hasGraphics() {
		return nil
	}
	add := func(kind, bus string) {
		c.Domain.Devices.Inputs = append(c.Domain.Devices.Inputs, libvirtxml.DomainInput{Type: kind, Bus: bus, Source: noInputSource()})
	}
	switch c.arch.name {
	case specARM:
		if len(in) == 0 { // the spec has tablets only
			add(inputTablet, xmlspec.BusUSB)
		}
		add(inputKeyboard, xmlspec.BusUSB)
	case specS390X:
		add(inputKeyboard, xmlspec.BusVirtio)
	}
	return nil
}

// noInputSource returns the value that libvirtxml parses for a device that QEMU emulates.
func noInputSource() *libvirtxml.DomainInputSource { return &libvirtxml.DomainInputSource{} }

func (c *Conversion) tablet(field string, in *v1.Input) (libvirtxml.DomainInput, error) {
	out := libvirtxml.DomainInput{Type: inputTablet, Alias: xmlspec.Alias(in.Name), Bus: string(in.Bus), Source: noInputSource()}
	if in.Type != v1.InputTypeTablet {
		return out, c.Invalid(field+".type", fmt.Sprintf("Unsupported value: %q", in.Type), "use tablet")
	}
	if err := c.checkName(field+".name", in.Name); err != nil {
		return out, err
	}
	switch {
	case in.Bus == "" && !c.hasUSB():
		out.Bus = xmlspec.BusVirtio
	case in.Bus == "":
		out.Bus = xmlspec.BusUSB
	}
	switch {
	case out.Bus == xmlspec.BusVirtio:
		out.Model = xmlspec.BusVirtio
	case out.Bus != xmlspec.BusUSB:
		return out, c.Invalid(field+".bus", fmt.Sprintf("Unsupported value: %q", in.Bus), "use usb or virtio")
	case !c.hasUSB():
		return out, c.Invalid(field+".bus", "USB is not supported on "+c.arch.name, "use virtio")
	}
	return out, nil
}
