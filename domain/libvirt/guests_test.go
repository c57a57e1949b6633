// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
)

// testGuests runs real guests as a node agent would, inspects them from inside, and compares the
// status.
func testGuests(t *testing.T, ns *nodes) {
	t.Run("a guest lives", func(t *testing.T) {
		t.Parallel()
		testLife(t, ns)
	})
	t.Run("a guest that is asked to shut down does", func(t *testing.T) {
		t.Parallel()
		testShutdown(t, ns)
	})
	t.Run("a guest that does not listen is ended after its grace period", func(t *testing.T) {
		t.Parallel()
		testDeaf(t, ns)
	})
	t.Run("a guest boots by UEFI and has a TPM", func(t *testing.T) {
		t.Parallel()
		testFirmware(t, ns)
	})
}

// living is the guest that is changed while it runs.
type living struct {
	*keeper
	*shell
	t *testing.T
}

func testLife(t *testing.T, ns *nodes) {
	k := keep(t, ns, "living", func(vmi *v1.VirtualMachineInstance) {
		isa, most := v1.PanicDeviceModel("isa"), resource.MustParse("384Mi")
		d := &vmi.Spec.Domain
		d.CPU, d.Memory.MaxGuest = &v1.CPU{Sockets: 1, Cores: 1, Threads: 1, MaxSockets: 2}, &most
		d.Devices.PanicDevices = []v1.PanicDevice{{Model: &isa}}
		vmi.Status.Memory = &v1.MemoryStatus{GuestAtBoot: d.Memory.Guest}
		d.Devices.Disks = []v1.Disk{
			{Name: "root", Serial: "ROOT", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}},
			{Name: "disc", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSCSI}}},
		}
		vmi.Spec.Volumes = []v1.Volume{claimVolume("root")}
	})
	k.agent = true
	k.facts.Disks["root"] = convert.DiskSource{Path: ns.file(t, filepath.Join(k.facts.Dir, "root.img"), 4<<20), Shared: true}
	k.booted()
	l := &living{keeper: k, shell: openShell(t, k.n, k.facts), t: t}
	l.pause()
	l.agentReports()
	for _, bus := range []v1.DiskBus{v1.DiskBusVirtio, v1.DiskBusSCSI} {
		l.disk(bus)
	}
	l.disc()
	l.card()
	l.restarts() // before CPUs are hotplugged: QEMU 7.2 may crash when it resets those, if it emulates them
	l.cpus()
	l.memory()
	l.freeze()
	l.crash()
}

// pause pauses the guest, and the status reports it as long as it is paused.
func (l *living) pause() {
	l.request(plan.RequestPause)
	l.until("condition Paused", hasCondition(v1.VirtualMachineInstancePaused, status.ReasonPausedByUser))
	l.settled()
	if st := l.look().State; st.Status != domain.StatusPaused {
		l.t.Errorf("the guest is %s: a later pass has let it go on", st.Status)
	}
	l.request(plan.RequestUnpause)
	l.until("no condition Paused", not(hasCondition(v1.VirtualMachineInstancePaused, "")))
	l.in("true")
}

// agentReports: the agent's answer is in the status.
func (l *living) agentReports() {
	l.until("condition AgentConnected", hasCondition(v1.VirtualMachineInstanceAgentConnected, ""))
	l.until("what the guest says of itself", func(vmi *v1.VirtualMachineInstance) bool {
		nics := vmi.Status.Interfaces
		return vmi.Status.GuestOSInfo.ID == "virtloom" && len(nics) == 1 && nics[0].InterfaceName == "eth0"
	})
	if got, want := l.vmi.Status.Interfaces[0].MAC, l.in("cat /sys/class/net/eth0/address"); got != want {
		l.t.Errorf("the status has address %s, the guest %s", got, want)
	}
	if got, want := l.vmi.Status.GuestOSInfo.KernelRelease, l.in("uname -r"); got != want {
		l.t.Errorf("the status has kernel %s, the guest %s", got, want)
	}
}

// blockDevices lists the guest's disks with their sizes in sectors.
const blockDevices = "for d in /sys/block/[sv]d*; do echo ${d##*/}=$(cat $d/size); done"

// disk is hotplugged, grown and unplugged.
func (l *living) disk(bus v1.DiskBus) {
	name, before := "hot-"+string(bus), l.in(blockDevices)
	const size = 2 << 20
	l.volume(v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}}}, size)
	l.until(name+" is Ready", volumeIs(name, v1.VolumeReady))
	l.settled()
	has := func(bytes int64) func(string) bool {
		return func(got string) bool {
			return got != before && strings.Contains(got, "="+strconv.FormatInt(bytes/512, 10))
		}
	}
	l.sees(name+" is there", blockDevices, has(size))
	src := l.facts.Disks[name]
	src.Bytes = 2 * size
	l.facts.Disks[name] = src
	l.settled()
	l.sees(name+" has grown", blockDevices, has(2*size))

	disks, volumes := l.vmi.Spec.Domain.Devices.Disks, l.vmi.Spec.Volumes
	l.vmi.Spec.Domain.Devices.Disks, l.vmi.Spec.Volumes = disks[:len(disks)-1], volumes[:len(volumes)-1]
	l.until(name+" is released", func(vmi *v1.VirtualMachineInstance) bool {
		return !volumeIs(name, v1.VolumeReady)(vmi)
	})
	l.sees(name+" is gone", blockDevices, equals(before))
	l.vmi.Status.VolumeStatus = withoutVolume(l.vmi.Status.VolumeStatus, name)
	l.settled()
}

// withoutVolume returns the statuses without those of a volume that is gone, as the controller
// removes them.
func withoutVolume(all []v1.VolumeStatus, name string) (rest []v1.VolumeStatus) {
	for _, s := range all {
		if s.Name != name {
			rest = append(rest, s)
		}
	}
	return rest
}

// disc is inserted into a drive and ejected.
func (l *living) disc() {
	// Reading makes the guest check whether the medium has changed.
	const label = "dd if=/dev/sr0 bs=2048 skip=16 count=1 2>/dev/null | dd bs=1 skip=40 count=8 2>/dev/null"
	const size = 1 << 20
	l.sees("the drive is empty", label, equals(""))
	file := l.ns.file(l.t, filepath.Join(l.facts.Dir, "disc.iso"), size)
	volume := make([]byte, 2048)
	copy(volume, "\x01CD001\x01")
	copy(volume[40:], "VIRTLOOM")
	f, err := os.OpenFile(l.n.HostPath(file), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(volume, 16*2048)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		l.t.Fatal(err)
	}
	before := l.vmi.Spec.Volumes
	l.vmi.Spec.Volumes = append(append([]v1.Volume{}, before...), claimVolume("disc"))
	l.vmi.Status.VolumeStatus = append(l.vmi.Status.VolumeStatus, v1.VolumeStatus{
		Name: "disc", HotplugVolume: &v1.HotplugVolumeStatus{}, Phase: v1.HotplugVolumeMounted,
	})
	l.facts.Disks["disc"] = convert.DiskSource{Path: file, ReadOnly: true, Shared: true}
	l.until("the disc is Ready", volumeIs("disc", v1.VolumeReady))
	l.settled()
	l.sees("the disc has its label", label, equals("VIRTLOOM"))
	l.sees("the disc has its size", "cat /sys/block/sr0/size", equals(strconv.Itoa(size/512)))

	l.vmi.Spec.Volumes = before
	delete(l.facts.Disks, "disc")
	l.until("the disc is released", not(volumeIs("disc", v1.VolumeReady)))
	l.sees("the drive is empty again", label, equals(""))
	l.vmi.Status.VolumeStatus = withoutVolume(l.vmi.Status.VolumeStatus, "disc")
	l.settled()
}

// card is hotplugged, loses its link and is unplugged.
func (l *living) card() {
	d := &l.vmi.Spec.Domain.Devices
	d.Interfaces = append(d.Interfaces, v1.Interface{
		Name: "hot", MacAddress: "02:00:00:00:00:77",
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
	l.vmi.Spec.Networks = append(l.vmi.Spec.Networks, v1.Network{Name: "hot", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "hot"}}})
	l.facts.Bridges["hot"] = "br0"
	link := func(want string) func(*v1.VirtualMachineInstance) bool {
		return func(vmi *v1.VirtualMachineInstance) bool {
			for _, s := range vmi.Status.Interfaces {
				if s.Name == "hot" {
					return s.LinkState == want && s.MAC == "02:00:00:00:00:77"
				}
			}
			return want == ""
		}
	}
	l.until("the card is in the status", link("up"))
	l.settled()
	l.sees("the card is there", "cat /sys/class/net/eth1/address", equals("02:00:00:00:00:77"))
	l.in("ip link set eth1 up")
	l.sees("its link is up", "cat /sys/class/net/eth1/carrier", equals("1"))
	l.vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateLinkDown
	l.until("the link is down", link("down"))
	l.sees("its link is down", "cat /sys/class/net/eth1/carrier", equals("0"))
	l.vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateLinkUp
	l.until("the link is up again", link("up"))
	l.sees("its link is up again", "cat /sys/class/net/eth1/carrier", equals("1"))

	l.vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
	l.until("the card is not in the status", link(""))
	l.sees("the card is gone", "ls /sys/class/net | grep -c eth", equals("1"))
	d = &l.vmi.Spec.Domain.Devices
	d.Interfaces, l.vmi.Spec.Networks = d.Interfaces[:1], l.vmi.Spec.Networks[:1]
	l.settled()
}

// freeze delays the guest's writes until it is thawed.
func (l *living) freeze() {
	l.in("mke2fs -q /dev/vda && mount -t ext4 /dev/vda /mnt")
	l.request(plan.RequestFreeze)
	l.until("fsFreezeStatus frozen", func(vmi *v1.VirtualMachineInstance) bool { return vmi.Status.FSFreezeStatus == "frozen" })
	l.in("(touch /mnt/after; echo written >/run/written) & true")
	if got := l.in("cat /run/written"); strings.Contains(got, "written\n") {
		l.t.Errorf("a frozen file system was written to: %s", got)
	}
	l.request(plan.RequestUnfreeze)
	l.until("no fsFreezeStatus", func(vmi *v1.VirtualMachineInstance) bool { return vmi.Status.FSFreezeStatus == "" })
	l.sees("what was held is written", "cat /run/written", equals("written"))
	l.in("umount /mnt")
}

// restarts: at once and by the agent, each time the guest reboots in the same process.
func (l *living) restarts() {
	pid := findQEMU(l.t, l.n, l.name())
	for i, verb := range []plan.RequestVerb{plan.RequestReset, plan.RequestSoftReboot} {
		l.until("the agent is connected", hasCondition(v1.VirtualMachineInstanceAgentConnected, ""))
		l.in("touch /run/before")
		l.request(verb)
		l.up(i + 2)
		l.enter()
		if got := l.in("ls /run/before 2>/dev/null"); got != "" {
			l.t.Errorf("%s: the guest has gone on", verb)
		}
		l.until("phase Running", inPhase(v1.Running))
		l.settled()
	}
	if now := findQEMU(l.t, l.n, l.name()); now != pid {
		l.t.Errorf("process %d runs the guest, and not %d any more", now, pid)
	}
	if log := serial(l.t, l.n, l.facts); !strings.Contains(log, "virtloom-shutdown -h -r ") {
		l.t.Error("the agent was not asked to restart the guest")
	}
}

// crash: the guest's kernel panics.
func (l *living) crash() {
	l.write("echo c >/proc/sysrq-trigger\n")
	l.until("phase Failed", inPhase(v1.Failed))
	l.settled()
	if st := l.look().State; st != nil {
		l.t.Errorf("the domain is still there: %s, %s", st.Status, st.Reason)
	}
}

// testShutdown deletes a guest that obeys: it ends by itself and in time.
func testShutdown(t *testing.T, ns *nodes) {
	grace := int64(3600)
	k := keep(t, ns, "obedient", func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TerminationGracePeriodSeconds = &grace })
	k.facts.Initrd = ns.image.Initrd
	k.booted()
	k.delete()
	k.until("phase Succeeded", inPhase(v1.Succeeded))
	k.settled()
	if st := k.look().State; st != nil {
		t.Errorf("the domain is still there: %s, %s", st.Status, st.Reason)
	}
	if log := serial(t, k.n, k.facts); !strings.Contains(log, "virtloom-power-button") {
		t.Error("the guest has not seen its power button")
	}
}

// testDeaf deletes a guest that ignores its power button: nothing happens before its grace period
// is over, and it is destroyed afterwards.
func testDeaf(t *testing.T, ns *nodes) {
	grace := int64(3600)
	k := keep(t, ns, "deaf", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.TerminationGracePeriodSeconds = &grace
		vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs += " deaf=1 hb=0.1"
	})
	k.facts.Initrd = ns.image.Initrd
	k.booted()
	k.delete()
	k.pass()
	asked := len(beats(serial(t, k.n, k.facts)))
	await(t, "heartbeats after the guest was asked to shut down", func() bool {
		k.pass()
		return len(beats(serial(t, k.n, k.facts))) > asked+10
	})
	if k.vmi.Status.Phase != v1.Running {
		t.Errorf("phase %s while the guest runs", k.vmi.Status.Phase)
	}
	k.ahead = time.Duration(grace)*time.Second - time.Minute
	k.pass()
	if st := k.look().State; st == nil || !st.Alive() {
		t.Fatal("the guest was ended before its grace period was over")
	}
	k.ahead += 2 * time.Minute
	k.until("a final phase", (*v1.VirtualMachineInstance).IsFinal)
	k.settled()
	if st := k.look().State; st != nil {
		t.Errorf("the domain is still there: %s, %s", st.Status, st.Reason)
	}
	if k.vmi.Status.Phase != v1.Failed {
		t.Errorf("phase %s of a guest that was killed and has ACPI", k.vmi.Status.Phase)
	}
}

// testFirmware boots a guest with UEFI, whose variables persist, and a TPM.
func testFirmware(t *testing.T, ns *nodes) {
	k := keep(t, ns, "firmware", func(vmi *v1.VirtualMachineInstance) {
		off, on := false, true
		vmi.Spec.Domain.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{SecureBoot: &off}}
		vmi.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: &on}}
		vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{}
		memory := resource.MustParse("256Mi")
		vmi.Spec.Domain.Memory.Guest = &memory
	})
	k.facts.Kernel = ns.image.KernelUEFI
	k.facts.Firmware.Plain = convert.FirmwareImage{Code: "/usr/share/OVMF/OVMF_CODE_4M.fd", Vars: "/usr/share/OVMF/OVMF_VARS_4M.fd"}
	k.booted()
	s := openShell(t, k.n, k.facts)
	if got := s.in("ls -d /sys/firmware/efi"); got != "/sys/firmware/efi" {
		t.Errorf("the guest has not booted by UEFI: %s", got)
	}
	if got := s.in("cat /sys/class/tpm/tpm0/tpm_version_major"); got != "2" {
		t.Errorf("the guest's TPM has version %s", got)
	}
	if got := k.vmi.Status.Phase; got != v1.Running {
		t.Errorf("phase %s", got)
	}
}
