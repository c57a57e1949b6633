// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// devicesOf changes the devices of the small VMI.
func devicesOf(change func(*v1.Devices)) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, f *Facts) {
		f.Dir = "/g"
		change(&v.Spec.Domain.Devices)
	}
}

func TestSpecConsole(t *testing.T) {
	const (
		agent   = `<channel type="unix"><target type="virtio" name="org.qemu.guest_agent.0"/></channel>`
		metrics = `<channel type="unix"><source mode="bind" path="/g/downwardmetrics.sock"/><target type="virtio" name="org.github.vhostmd.1"/></channel>`
	)
	serial := func(target, log string) string {
		return `<serial type="unix"><source mode="bind" path="/g/virt-serial0"/><target type="` + target + `" port="0"/>` + log + aliasXML("serial0") + `</serial>`
	}
	const logged = `<log file="/g/virt-serial0-log" append="on"/>`
	withController := both(pickSerial, pickController("virtio-serial"))
	const controller = `<controller type="virtio-serial" index="0" model="virtio-non-transitional"/>`
	nothing := devicesOf(func(*v1.Devices) {})
	unlogged := func(d *bool) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			nothing(v, f)
			f.Cluster.NoSerialConsoleLog, v.Spec.Domain.Devices.LogSerialConsole = true, d
		}
	}
	runDeviceRows(t, map[string]deviceRow{
		"C58: without a serial console there is neither console nor controller; the agent has its channel": {
			change: devicesOf(func(d *v1.Devices) { d.AutoattachSerialConsole = new(false) }), pick: withController, want: agent,
		},
		"console: a socket and a log, and the agent's channel": {
			change: nothing, pick: withController, want: controller + serial("isa-serial", logged) + agent,
		},
		"console: the first port of arm64": {arch: xmlspec.ArchARM, change: nothing, pick: pickSerial, want: serial("system-serial", logged) + agent},
		"console: the first port of s390x": {
			arch: xmlspec.ArchS390X, change: nothing, pick: withController,
			want: `<controller type="virtio-serial" index="0" model="virtio"/>` + serial("sclp-serial", logged) + agent,
		},
		"console: a guest can do without the log": {
			change: devicesOf(func(d *v1.Devices) { d.LogSerialConsole = new(false) }), pick: pickSerial, want: serial("isa-serial", "") + agent,
		},
		"console: so can all guests of a cluster":      {change: unlogged(nil), pick: pickSerial, want: serial("isa-serial", "") + agent},
		"console: a guest can have a log all the same": {change: unlogged(new(true)), pick: pickSerial, want: serial("isa-serial", logged) + agent},
		"downward metrics: a channel of their own": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				nothing(v, f)
				v.Spec.Domain.Devices.DownwardMetrics, f.Services.DownwardMetrics = &v1.DownwardMetrics{}, true
			}, pick: pickSerial, want: serial("isa-serial", logged) + agent + metrics,
		},
		"downward metrics: nobody serves them": {
			change: devicesOf(func(d *v1.Devices) { d.DownwardMetrics = &v1.DownwardMetrics{} }),
			field:  "spec.domain.devices.downwardMetrics", err: domain.ErrUnsupported,
		},
	})
}

func TestSpecGraphics(t *testing.T) {
	const vnc = `<graphics type="vnc"><listen type="socket" socket="/g/virt-vnc"/></graphics>`
	video := func(model string) string { return vnc + `<video><model ` + model + `/></video>` }
	auto := func(b *bool) func(*v1.VirtualMachineInstance, *Facts) {
		return devicesOf(func(d *v1.Devices) { d.AutoattachGraphicsDevice = b })
	}
	asked := func(model string) func(*v1.VirtualMachineInstance, *Facts) {
		return devicesOf(func(d *v1.Devices) { d.Video = &v1.VideoDevice{Type: model} })
	}
	runDeviceRows(t, map[string]deviceRow{
		"C56: autoattachGraphicsDevice false: no display, no video card": {change: auto(new(false)), pick: pickDisplay, want: ""},
		"C56: nil: VGA":                 {change: auto(nil), pick: pickDisplay, want: video(`type="vga" heads="1" vram="16384"`)},
		"C56: true: VGA":                {change: auto(new(true)), pick: pickDisplay, want: video(`type="vga" heads="1" vram="16384"`)},
		"video: virtio on arm64":        {arch: xmlspec.ArchARM, change: auto(nil), pick: pickDisplay, want: video(`type="virtio" heads="1"`)},
		"video: virtio on s390x":        {arch: xmlspec.ArchS390X, change: auto(nil), pick: pickDisplay, want: video(`type="virtio" heads="1"`)},
		"video: what the spec asks for": {change: asked("bochs"), pick: pickDisplay, want: video(`type="bochs" heads="1" vram="16384"`)},
		"video: a type left open":       {change: asked(""), pick: pickDisplay, want: video(`type="vga" heads="1" vram="16384"`)},
		"video: bochs only with UEFI":   {change: func(v *v1.VirtualMachineInstance, f *Facts) { auto(nil)(v, f); f.Cluster.BochsForEFI = true }, pick: pickDisplay, want: video(`type="vga" heads="1" vram="16384"`)},
		"video: no VGA on arm64":        {arch: xmlspec.ArchARM, change: asked("vga"), field: "spec.domain.devices.video.type", err: domain.ErrInvalid},
		"video: only virtio on s390x":   {arch: xmlspec.ArchS390X, change: asked("ramfb"), field: "spec.domain.devices.video.type", err: domain.ErrInvalid},
		"video: an unknown card":        {change: asked("voodoo"), field: "spec.domain.devices.video.type", err: domain.ErrInvalid},
		"video: a card without a display": {change: devicesOf(func(d *v1.Devices) {
			d.AutoattachGraphicsDevice, d.Video = new(false), &v1.VideoDevice{Type: "vga"}
		}), field: "spec.domain.devices.video", err: domain.ErrInvalid},
	})
}

func TestSpecInputs(t *testing.T) {
	in := func(inputs ...v1.Input) func(*v1.VirtualMachineInstance, *Facts) {
		return devicesOf(func(d *v1.Devices) { d.Inputs = inputs })
	}
	const field = "spec.domain.devices.inputs[0]"
	const usb = `<input type="tablet" bus="usb"><alias name="ua-t"/></input>`
	const virtio = `<input type="tablet" bus="virtio" model="virtio"><alias name="ua-t"/></input>`
	const keys = `<input type="keyboard" bus="usb"/>`
	tablet := func(bus v1.InputBus) v1.Input { return v1.Input{Name: "t", Type: v1.InputTypeTablet, Bus: bus} }
	rows := map[string]deviceRow{
		"C59: bus ps2":                            {change: in(tablet("ps2")), field: field + ".bus", err: domain.ErrInvalid},
		"C59: a keyboard":                         {change: in(v1.Input{Name: "t", Type: v1.InputTypeKeyboard, Bus: v1.InputBusUSB}), field: field + ".type", err: domain.ErrInvalid},
		"C59: a USB tablet":                       {change: in(tablet(v1.InputBusUSB)), pick: pickInputs, want: usb},
		"C59: a bus left open is USB":             {change: in(tablet("")), pick: pickInputs, want: usb},
		"inputs: a virtio tablet":                 {change: in(tablet(v1.InputBusVirtio)), pick: pickInputs, want: virtio},
		"inputs: no name":                         {change: in(v1.Input{Type: v1.InputTypeTablet}), field: field + ".name", err: domain.ErrInvalid},
		"inputs: none by default":                 {pick: pickInputs, want: ""},
		"inputs: arm64 has tablet and keyboard":   {arch: xmlspec.ArchARM, pick: pickInputs, want: `<input type="tablet" bus="usb"/>` + keys},
		"inputs: arm64 adds no second tablet":     {arch: xmlspec.ArchARM, change: in(tablet(v1.InputBusVirtio)), pick: pickInputs, want: virtio + keys},
		"inputs: s390x has a keyboard":            {arch: xmlspec.ArchS390X, pick: pickInputs, want: `<input type="keyboard" bus="virtio"/>`},
		"inputs: s390x has no USB":                {arch: xmlspec.ArchS390X, change: in(tablet(v1.InputBusUSB)), field: field + ".bus", err: domain.ErrInvalid},
		"inputs: a bus left open is virtio there": {arch: xmlspec.ArchS390X, change: in(tablet("")), pick: pickInputs, want: virtio + `<input type="keyboard" bus="virtio"/>`},
		"inputs: autoattachInputDevice": {
			change: devicesOf(func(d *v1.Devices) { d.AutoattachInputDevice = new(true) }), pick: pickInputs,
			want: `<input type="tablet" bus="usb"><alias name="ua-default-0"/></input>`,
		},
		"inputs: autoattachInputDevice adds nothing to those of the spec": {
			change: devicesOf(func(d *v1.Devices) { d.AutoattachInputDevice, d.Inputs = new(true), []v1.Input{tablet("")} }), pick: pickInputs, want: usb,
		},
	}
	for arch, name := range map[string]string{xmlspec.ArchARM: "arm64", xmlspec.ArchS390X: "s390x"} {
		rows["inputs: nothing is added without a display on "+name] = deviceRow{
			arch: arch, change: devicesOf(func(d *v1.Devices) { d.AutoattachGraphicsDevice = new(false) }), pick: pickInputs, want: "",
		}
	}
	runDeviceRows(t, rows)
}

func TestSpecBuses(t *testing.T) {
	usb, scsi := pickController("usb"), pickController("scsi")
	const none, xhci = `<controller type="usb" index="0" model="none"/>`, `<controller type="usb" index="0" model="qemu-xhci"/>`
	const modernSCSI = `<controller type="scsi" index="0" model="virtio-non-transitional"/>`
	sealed := func(disks ...v1.Disk) func(*v1.VirtualMachineInstance, *Facts) {
		return devicesOf(func(d *v1.Devices) { d.DisableHotplug, d.Disks = true, append(d.Disks, disks...) })
	}
	onBus := func(bus v1.DiskBus) v1.Disk {
		return v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}}}
	}
	runDeviceRows(t, map[string]deviceRow{
		"C40: hotplug allowed: a SCSI controller without a SCSI disk": {pick: scsi, want: modernSCSI},
		"C40: the same on s390x":                          {arch: xmlspec.ArchS390X, pick: scsi, want: `<controller type="scsi" index="0" model="virtio-scsi"/>`},
		"C40: hotplug disabled: none":                     {change: sealed(), pick: scsi, want: ""},
		"scsi: a disk brings its controller":              {change: sealed(onBus(v1.DiskBusSCSI)), pick: scsi, want: modernSCSI},
		"scsi: transitional":                              {change: devicesOf(func(d *v1.Devices) { d.UseVirtioTransitional = new(true) }), pick: scsi, want: `<controller type="scsi" index="0" model="virtio-transitional"/>`},
		"C41: no USB device on amd64":                     {pick: usb, want: none},
		"C41: an input whose bus is left open":            {change: devicesOf(func(d *v1.Devices) { d.Inputs = []v1.Input{{Name: "t", Type: v1.InputTypeTablet}} }), pick: usb, want: xhci},
		"C41: arm64 always":                               {arch: xmlspec.ArchARM, change: devicesOf(func(d *v1.Devices) { d.AutoattachGraphicsDevice = new(false) }), pick: usb, want: xhci},
		"C41: s390x never":                                {arch: xmlspec.ArchS390X, pick: usb, want: none},
		"usb: a disk":                                     {change: sealed(onBus(v1.DiskBusUSB)), pick: usb, want: xhci},
		"usb: ports for clients":                          {change: devicesOf(func(d *v1.Devices) { d.ClientPassthrough = &v1.ClientPassthroughDevices{} }), pick: usb, want: xhci},
		"serial: the model follows useVirtioTransitional": {change: devicesOf(func(d *v1.Devices) { d.UseVirtioTransitional = new(true) }), pick: pickController("virtio-serial"), want: `<controller type="virtio-serial" index="0" model="virtio-transitional"/>`},
	})
}

func TestSpecPeripherals(t *testing.T) {
	pickSound := func(in, out *libvirtxml.DomainDeviceList) { out.Sounds = in.Sounds }
	pickWatchdog := func(in, out *libvirtxml.DomainDeviceList) { out.Watchdogs = in.Watchdogs }
	pickRNG := func(in, out *libvirtxml.DomainDeviceList) { out.RNGs = in.RNGs }
	pickRedir := func(in, out *libvirtxml.DomainDeviceList) { out.RedirDevs = in.RedirDevs }
	dog := func(w v1.WatchdogDevice) func(*v1.VirtualMachineInstance, *Facts) {
		return devicesOf(func(d *v1.Devices) { d.Watchdog = &v1.Watchdog{Name: "dog", WatchdogDevice: w} })
	}
	i6300 := v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: v1.WatchdogActionPoweroff}}
	diag := v1.WatchdogDevice{Diag288: &v1.Diag288Watchdog{Action: v1.WatchdogActionShutdown}}
	music := func(name, model string) func(*v1.VirtualMachineInstance, *Facts) {
		return devicesOf(func(d *v1.Devices) { d.Sound = &v1.SoundDevice{Name: name, Model: model} })
	}
	rng := devicesOf(func(d *v1.Devices) { d.Rng = &v1.Rng{} })
	port := func(i string) string {
		return `<redirdev type="unix" bus="usb"><source mode="bind" path="/g/virt-usbredir-` + i + `"/></redirdev>`
	}
	redirection := devicesOf(func(d *v1.Devices) { d.ClientPassthrough = &v1.ClientPassthroughDevices{} })
	runDeviceRows(t, map[string]deviceRow{
		"C61: random numbers":             {change: rng, pick: pickRNG, want: `<rng model="virtio-non-transitional"><backend model="random">/dev/urandom</backend></rng>`},
		"rng: none by default":            {pick: pickRNG, want: ""},
		"C62: sound, model left open":     {change: music("loud", ""), pick: pickSound, want: `<sound model="ich9">` + aliasXML("loud") + `</sound>`},
		"C62: sound, a bad model":         {change: music("loud", "sb16"), field: "spec.domain.devices.sound.model", err: domain.ErrInvalid},
		"C62: no sound by default":        {pick: pickSound, want: ""},
		"sound: ac97":                     {change: music("loud", "ac97"), pick: pickSound, want: `<sound model="ac97">` + aliasXML("loud") + `</sound>`},
		"sound: no name":                  {change: music("", "ac97"), field: "spec.domain.devices.sound.name", err: domain.ErrInvalid},
		"sound: the name of a disk":       {change: music("root", "ac97"), field: "spec.domain.devices.*.name", err: domain.ErrInvalid},
		"C64: i6300esb":                   {change: dog(i6300), pick: pickWatchdog, want: `<watchdog model="i6300esb" action="poweroff">` + aliasXML("dog") + `</watchdog>`},
		"C64: none on arm64":              {arch: xmlspec.ArchARM, change: dog(i6300), field: "spec.domain.devices.watchdog", err: domain.ErrInvalid},
		"C64: diag288 on s390x":           {arch: xmlspec.ArchS390X, change: dog(diag), pick: pickWatchdog, want: `<watchdog model="diag288" action="shutdown">` + aliasXML("dog") + `</watchdog>`},
		"watchdog: i6300esb not on s390x": {arch: xmlspec.ArchS390X, change: dog(i6300), field: "spec.domain.devices.watchdog", err: domain.ErrInvalid},
		"watchdog: resets by default":     {change: dog(v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{}}), pick: pickWatchdog, want: `<watchdog model="i6300esb" action="reset">` + aliasXML("dog") + `</watchdog>`},
		"watchdog: an unknown action":     {change: dog(v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: "bark"}}), field: "spec.domain.devices.watchdog.action", err: domain.ErrInvalid},
		"usb redirection: four ports":     {change: redirection, pick: pickRedir, want: port("0") + port("1") + port("2") + port("3")},
		"usb redirection: not on s390x":   {arch: xmlspec.ArchS390X, change: redirection, field: "spec.domain.devices.clientPassthrough", err: domain.ErrInvalid},
	})
}
