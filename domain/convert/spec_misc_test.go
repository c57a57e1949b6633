// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

func TestSpecBalloon(t *testing.T) {
	const reporting, period = ` freePageReporting="on"`, `<stats period="10"/>`
	balloon := func(reporting, rest string) string {
		return `<memballoon model="virtio-non-transitional"` + reporting + `>` + rest + `</memballoon>`
	}
	empty := func(reporting string) string { return `<memballoon model="virtio-non-transitional"` + reporting + `/>` }
	annotated := func(value string) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Annotations = map[string]string{"kubevirt.io/free-page-reporting-disabled": value}
		}
	}
	const off = ` freePageReporting="off"`
	runDeviceRows(t, map[string]deviceRow{
		"balloon: reports every 10 s and gives free pages back": {pick: pickBalloon, want: balloon(reporting, period)},
		"balloon: the cluster's period": {change: func(_ *v1.VirtualMachineInstance, f *Facts) { f.Cluster.BalloonPeriod = new(uint32(3)) },
			pick: pickBalloon, want: balloon(reporting, `<stats period="3"/>`)},
		"balloon: period 0 is none": {change: func(_ *v1.VirtualMachineInstance, f *Facts) { f.Cluster.BalloonPeriod = new(uint32(0)) },
			pick: pickBalloon, want: empty(reporting)},
		"balloon: not attached": {change: func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.Devices.AutoattachMemBalloon = new(false)
		}, pick: pickBalloon, want: `<memballoon model="none"/>`},
		"balloon: the cluster keeps free pages": {change: func(_ *v1.VirtualMachineInstance, f *Facts) { f.Cluster.NoFreePageReporting = true },
			pick: pickBalloon, want: balloon(off, period)},
		"balloon: the annotation keeps free pages": {change: annotated("true"), pick: pickBalloon, want: balloon(off, period)},
		"balloon: any other value of it does not":  {change: annotated("false"), pick: pickBalloon, want: balloon(reporting, period)},
		"balloon: s390x has one model":             {arch: xmlspec.ArchS390X, pick: pickBalloon, want: strings.Replace(balloon(reporting, period), modern, "virtio", 1)},
	})
}

// Free page reporting does not depend on other requirements of the conversion.
func TestFreePageReporting_LatencySensitive(t *testing.T) {
	for name, change := range map[string]func(*v1.DomainSpec){
		"dedicated CPUs": func(d *v1.DomainSpec) { d.CPU = &v1.CPU{DedicatedCPUPlacement: true} },
		"realtime":       func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Realtime: &v1.Realtime{}} },
		"huge pages":     func(d *v1.DomainSpec) { d.Memory.Hugepages = &v1.Hugepages{PageSize: "2Mi"} },
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			c := &Conversion{VMI: vmi}
			if !reportsFreePages(c) {
				t.Fatal("free page reporting is off in any case")
			}
			change(&vmi.Spec.Domain)
			if reportsFreePages(c) {
				t.Error("free page reporting is on")
			}
		})
	}
}

func TestSpecPanicDevices(t *testing.T) {
	panics := func(models ...*v1.PanicDeviceModel) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) {
			for _, m := range models {
				v.Spec.Domain.Devices.PanicDevices = append(v.Spec.Domain.Devices.PanicDevices, v1.PanicDevice{Model: m})
			}
		}
	}
	const field = "spec.domain.devices.panicDevices[0]"
	model := func(s string) *v1.PanicDeviceModel { return new(v1.PanicDeviceModel(s)) }
	runDeviceRows(t, map[string]deviceRow{
		"panic: all models of amd64, one of them left to libvirt": {
			change: panics(nil, model("isa"), model("hyperv"), model("pvpanic")), pick: pickPanics,
			want: `<panic/><panic model="isa"/><panic model="hyperv"/><panic model="pvpanic"/>`,
		},
		"panic: the model of arm64": {arch: xmlspec.ArchARM, change: panics(nil, model("pvpanic")), pick: pickPanics, want: `<panic model="pvpanic"/><panic model="pvpanic"/>`},
		"panic: no isa on arm64":    {arch: xmlspec.ArchARM, change: panics(model("isa")), field: field + ".model", err: domain.ErrInvalid},
		"panic: none on s390x":      {arch: xmlspec.ArchS390X, change: panics(nil), field: field, err: domain.ErrInvalid},
		"panic: an unknown model":   {change: panics(model("button")), field: field + ".model", err: domain.ErrInvalid},
	})
}

func TestSpecTPM(t *testing.T) {
	tpm := func(enabled, persistent *bool) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			v.Spec.Domain.Devices.TPM = &v1.TPMDevice{Enabled: enabled, Persistent: persistent}
			f.Services.PersistentState = true
		}
	}
	const plain = `<tpm model="tpm-tis"><backend type="emulator" version="2.0"/></tpm>`
	persistent := func(model string) string {
		return `<tpm model="` + model + `"><backend type="emulator" version="2.0" persistent_state="yes"/></tpm>`
	}
	runDeviceRows(t, map[string]deviceRow{
		"tpm: none by default":                          {pick: pickTPM, want: ""},
		"tpm: one that forgets":                         {change: tpm(nil, nil), pick: pickTPM, want: plain},
		"tpm: enabled by name":                          {change: tpm(new(true), new(false)), pick: pickTPM, want: plain},
		"tpm: disabled, persistent or not":              {change: tpm(new(false), new(true)), pick: pickTPM, want: ""},
		"tpm: one that remembers has another interface": {change: tpm(nil, new(true)), pick: pickTPM, want: persistent("tpm-crb")},
		"tpm: which arm64 has not":                      {arch: xmlspec.ArchARM, change: tpm(nil, new(true)), pick: pickTPM, want: persistent("tpm-tis")},
		"tpm: none on s390x":                            {arch: xmlspec.ArchS390X, change: tpm(nil, nil), field: "spec.domain.devices.tpm", err: domain.ErrInvalid},
		"tpm: nobody keeps its state": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			tpm(nil, new(true))(v, f)
			f.Services.PersistentState = false
		}, field: "spec.domain.devices.tpm.persistent", err: domain.ErrUnsupported},
	})
}

func TestSpecVSOCK(t *testing.T) {
	vsock := func(auto *bool, cid *uint32, local bool) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			v.Spec.Domain.Devices.AutoattachVSOCK, v.Status.VSOCKCID, f.LocalVSOCK = auto, cid, local
			v.Spec.Domain.Devices.UseVirtioTransitional = new(true)
		}
	}
	want := func(model, cid string) string {
		return `<vsock model="` + model + `"><cid auto="no" address="` + cid + `"/></vsock>`
	}
	runDeviceRows(t, map[string]deviceRow{
		"vsock: none by default": {change: vsock(nil, nil, true), pick: pickVSock, want: ""},
		"vsock: the identifier of the status, always a modern device": {change: vsock(new(true), new(uint32(4294967294)), false), pick: pickVSock, want: want(modern, "4294967294")},
		"vsock: an identifier is enough":                              {change: vsock(nil, new(uint32(77)), false), pick: pickVSock, want: want(modern, "77")},
		"vsock: the same for all where it is local":                   {change: vsock(new(true), new(uint32(77)), true), pick: pickVSock, want: want(modern, "3")},
		"vsock: local, and none given":                                {change: vsock(new(true), nil, true), pick: pickVSock, want: want(modern, "3")},
		"vsock: s390x has one model":                                  {arch: xmlspec.ArchS390X, change: vsock(new(true), new(uint32(77)), false), pick: pickVSock, want: want("virtio", "77")},
		"vsock: no identifier yet":                                    {change: vsock(new(true), nil, false), field: "status.VSOCKCID", err: domain.ErrNotFound},
		"vsock: the identifier of the host":                           {change: vsock(new(true), new(uint32(2)), false), field: "status.VSOCKCID", err: domain.ErrInvalid},
	})
}

func TestSpecFilesystems(t *testing.T) {
	shared := func(names ...string) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			v.Spec.Domain.CPU = &v1.CPU{Sockets: 2}
			f.Filesystems = map[string]string{}
			for _, n := range names {
				v.Spec.Domain.Devices.Filesystems = append(v.Spec.Domain.Devices.Filesystems, v1.Filesystem{Name: n, Virtiofs: &v1.FilesystemVirtiofs{}})
				v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: n})
				f.Filesystems[n] = "/s/" + n + ".sock"
			}
		}
	}
	want := func(name string) string {
		return `<filesystem type="mount" accessmode="passthrough"><driver type="virtiofs" queue="1024"/><source socket="/s/` + name + `.sock"/><target dir="` + name + `"/></filesystem>`
	}
	long := strings.Repeat("x", 37)
	const field = "spec.domain.devices.filesystems[0]"
	runDeviceRows(t, map[string]deviceRow{
		"C80: virtiofs has a queue of 1024 and the socket of the node": {change: shared("foo"), pick: pickFilesystems, want: want("foo")},
		"filesystems: in the order of the spec":                        {change: shared("b", "a"), pick: pickFilesystems, want: want("b") + want("a")},
		"filesystems: nobody serves it": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			shared("foo")(v, f)
			f.Filesystems = nil
		}, field: "spec.volumes[foo]", err: domain.ErrNotFound},
		"filesystems: no absolute path": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			shared("foo")(v, f)
			f.Filesystems["foo"] = "foo.sock"
		}, field: "spec.volumes[foo]", err: domain.ErrInvalid},
		"filesystems: no volume": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			shared("foo")(v, f)
			v.Spec.Volumes = v.Spec.Volumes[:len(v.Spec.Volumes)-1]
		}, field: field + ".name", err: domain.ErrInvalid},
		"filesystems: another kind": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			shared("foo")(v, f)
			v.Spec.Domain.Devices.Filesystems[0].Virtiofs = nil
		}, field: field, err: domain.ErrInvalid},
		"filesystems: one name twice":                  {change: shared("foo", "foo"), field: "spec.domain.devices.filesystems[1].name", err: domain.ErrInvalid},
		"filesystems: a name that guests cannot mount": {change: shared(long), field: field + ".name", err: domain.ErrInvalid},
		"filesystems: no name":                         {change: shared(""), field: field + ".name", err: domain.ErrInvalid},
	})
}

func TestFilesystems_SocketPathTooLong(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	vmi.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "data", Virtiofs: &v1.FilesystemVirtiofs{}}}
	f.Filesystems = map[string]string{"data": "/" + strings.Repeat("d", 107)}
	if _, err := Convert(vmi, f); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("error is %v", err)
	}
}

func TestSpecCommandLine(t *testing.T) {
	const annotation = "metadata.annotations[kubevirt.io/ignitiondata]"
	ignite := func(data, file string) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			v.Annotations, f.Ignition = map[string]string{"kubevirt.io/ignitiondata": data}, file
		}
	}
	logged := func(dir string) func(*v1.VirtualMachineInstance, *Facts) {
		return func(_ *v1.VirtualMachineInstance, f *Facts) { f.Cluster.FirmwareLog, f.Dir = true, dir }
	}
	const data = `{"ignition": {"version": "3.0.0"}}`
	fwcfg := []string{"-fw_cfg", "name=opt/com.coreos/config,file=/g/data.ign"}
	debug := []string{"-chardev", "file,id=firmwarelog,path=/g/firmware.log", "-device", "isa-debugcon,iobase=0x402,chardev=firmwarelog"}
	for name, row := range map[string]struct {
		arch   string
		change func(*v1.VirtualMachineInstance, *Facts)
		want   []string
		field  string
		err    error
	}{
		"command line: none by default":         {},
		"ignition: by the firmware's device":    {change: ignite(data, "/g/data.ign"), want: fwcfg},
		"ignition: a comma ends no option":      {change: ignite(data, "/g,x/data.ign"), want: []string{"-fw_cfg", "name=opt/com.coreos/config,file=/g,,x/data.ign"}},
		"ignition: only what speaks of it":      {change: ignite("{}", "/g/data.ign")},
		"ignition: the node has no file":        {change: ignite(data, ""), field: annotation, err: domain.ErrNotFound},
		"ignition: the node's path is relative": {change: ignite(data, "x"), field: annotation, err: domain.ErrInvalid},
		"ignition: not on s390x":                {arch: xmlspec.ArchS390X, change: ignite(data, "/g/data.ign"), field: annotation, err: domain.ErrInvalid},
		"firmware log: on amd64":                {change: logged("/g"), want: debug},
		"firmware log: a comma ends no option":  {change: logged("/g,x"), want: []string{"-chardev", "file,id=firmwarelog,path=/g,,x/firmware.log", debug[2], debug[3]}},
		"firmware log: not on arm64":            {arch: xmlspec.ArchARM, change: logged("/g")},
		"ignition and firmware log, in that order": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			ignite(data, "/g/data.ign")(v, f)
			logged("/g")(v, f)
		}, want: append(append([]string{}, fwcfg...), debug...)},
	} {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			f.Arch = row.arch
			if row.change != nil {
				row.change(vmi, &f)
			}
			d, err := Convert(vmi, f)
			if row.err != nil {
				wantError(t, err, row.field, row.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if d.QEMUCommandline != nil {
				for _, a := range d.QEMUCommandline.Args {
					got = append(got, a.Value)
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
