// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Kinds of input devices and models of video cards that are compared.
const (
	inputTablet   = "tablet"
	inputKeyboard = "keyboard"
	videoBochs    = "bochs"
	videoVGA      = "vga"
)

// videoRAM is the memory of a VGA card in KiB, KubeVirt's value.
const videoRAM = 16384

// videoModels are those a guest of an architecture may ask for.
var videoModels = map[string][]string{
	specX86:   {videoVGA, busVirtio, videoBochs, "cirrus", "ramfb", "qxl"},
	specARM:   {busVirtio, "ramfb"},
	specS390X: {busVirtio},
}

// hasGraphics tells whether the guest has a display. One of another architecture
// than its node's has none, as with KubeVirt: the display would only show how
// slow it is.
func (c *Conversion) hasGraphics() bool {
	return !isFalse(c.VMI.Spec.Domain.Devices.AutoattachGraphicsDevice) && !c.crossArchitecture()
}

// graphics adds display, video card and input devices.
func graphics(c *Conversion) error {
	video := c.VMI.Spec.Domain.Devices.Video
	if err := inputs(c); err != nil {
		return err
	}
	if !c.hasGraphics() {
		if video != nil {
			return c.Invalid(specDevices+"video", "needs a graphics device", "set autoattachGraphicsDevice, or remove it")
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
			return c.Invalid(specDevices+"video.type", fmt.Sprintf("%q is no video card of %s", video.Type, c.arch.name), "use one of "+strings.Join(models, ", "))
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

// bootsEFI tells whether the guest boots with UEFI.
func (c *Conversion) bootsEFI() bool {
	fw := c.VMI.Spec.Domain.Firmware
	return fw != nil && fw.Bootloader != nil && fw.Bootloader.EFI != nil
}

// inputs adds the tablets of the spec, and what a guest with a display needs in
// addition: virt and s390 machines have no keyboard of their own.
func inputs(c *Conversion) error {
	in := c.VMI.Spec.Domain.Devices.Inputs
	if isTrue(c.VMI.Spec.Domain.Devices.AutoattachInputDevice) && len(in) == 0 {
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
		if len(in) == 0 { // all of the spec's are tablets
			add(inputTablet, busUSB)
		}
		add(inputKeyboard, busUSB)
	case specS390X:
		add(inputKeyboard, busVirtio)
	}
	return nil
}

// noInputSource is what libvirtxml reads from a device that QEMU emulates.
func noInputSource() *libvirtxml.DomainInputSource { return &libvirtxml.DomainInputSource{} }

func (c *Conversion) tablet(field string, in *v1.Input) (libvirtxml.DomainInput, error) {
	out := libvirtxml.DomainInput{Type: inputTablet, Alias: alias(in.Name), Bus: string(in.Bus), Source: noInputSource()}
	if in.Type != v1.InputTypeTablet {
		return out, c.Invalid(field+".type", fmt.Sprintf("%q is no input device", in.Type), "use tablet")
	}
	if err := c.checkName(field+".name", in.Name); err != nil {
		return out, err
	}
	switch {
	case in.Bus == "" && !c.hasUSB():
		out.Bus = busVirtio
	case in.Bus == "":
		out.Bus = busUSB
	}
	switch {
	case out.Bus == busVirtio:
		out.Model = busVirtio
	case out.Bus != busUSB:
		return out, c.Invalid(field+".bus", fmt.Sprintf("%q is no bus for a tablet", in.Bus), "use usb or virtio")
	case !c.hasUSB():
		return out, c.Invalid(field+".bus", "guests of "+c.arch.name+" have no USB", "use virtio")
	}
	return out, nil
}
