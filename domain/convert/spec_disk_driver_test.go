// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

func driverOf(d *libvirtxml.DomainDisk) any {
	return strings.TrimSpace(d.Driver.Cache + " " + d.Driver.IO)
}

func policyOf(d *libvirtxml.DomainDisk) any { return d.Driver.ErrorPolicy }

func queuesOf(d *libvirtxml.Domain) any {
	var out []string
	for i := range d.Devices.Disks {
		q := "-"
		if n := d.Devices.Disks[i].Driver.Queues; n != nil {
			q = fmt.Sprint(*n)
		}
		out = append(out, q)
	}
	return strings.Join(out, " ")
}

func TestSpecDiskDriver(t *testing.T) {
	cache := func(mode v1.DriverCache) func(vmiArg, *Facts) {
		return func(v vmiArg, _ *Facts) { root(v).Cache = mode }
	}
	policy := func(p v1.DiskErrorPolicy) func(vmiArg, *Facts) {
		return func(v vmiArg, _ *Facts) { root(v).ErrorPolicy = &p }
	}
	preallocated := DiskSource{Path: "/x", DirectIO: true, Preallocated: true}
	overlay := func(below DiskSource) DiskSource {
		return DiskSource{Path: "/o", Format: formatQcow2, DirectIO: true, Backing: &below}
	}
	shared := func(v vmiArg, _ *Facts) { root(v).Shareable = new(true) }
	runDiskRows(t, map[string]diskRow{
		"C14: queues count the CPUs that are there": {
			change: func(v vmiArg, _ *Facts) {
				v.Spec.Domain.CPU = &v1.CPU{Cores: 2, Threads: 2, Sockets: 2, MaxSockets: 8}
				v.Spec.Domain.Devices.BlockMultiQueue = new(true)
			}, read: queuesOf, want: "8",
		},
		"C20: errors stop the guest":        {read: onRoot(policyOf), want: "stop"},
		"C20: errors are ignored":           {change: policy("ignore"), read: onRoot(policyOf), want: "ignore"},
		"C20: errors stop it if space ends": {change: policy("enospace"), read: onRoot(policyOf), want: "enospace"},
		"C20: errors are reported":          {change: policy("report"), read: onRoot(policyOf), want: "report"},
		"C31: writethrough is kept with O_DIRECT": {
			change: onFile(fileData, cache(v1.CacheWriteThrough)), read: onRoot(driverOf), want: "writethrough",
		},
		"C31: writethrough is kept without":    {change: cache(v1.CacheWriteThrough), read: onRoot(driverOf), want: "writethrough"},
		"C31: writeback is kept":               {change: onFile(fileData, cache(v1.CacheWriteBack)), read: onRoot(driverOf), want: "writeback"},
		"an open cache is none with O_DIRECT":  {change: onFile(fileData), read: onRoot(driverOf), want: "none"},
		"an open cache is writethrough else":   {read: onRoot(driverOf), want: "writethrough"},
		"an image is as direct as those below": {change: onFile(overlay(overlay(DiskSource{Path: "/b"}))), read: onRoot(driverOf), want: "writethrough"},
		"and none if all are":                  {change: onFile(overlay(overlay(fileData))), read: onRoot(driverOf), want: "none"},
		"a data store decides as well": {
			change: onFile(DiskSource{Path: "/o", Format: formatQcow2, DirectIO: true, DataStore: &DiskSource{Path: "/d"}}),
			read:   onRoot(driverOf), want: "writethrough",
		},
		"C32: I/O of a block device is native": {change: onFile(blockData, cache(v1.CacheNone)), read: onRoot(driverOf), want: "none native"},
		"C32: I/O of a sparse file is open":    {change: onFile(fileData, cache(v1.CacheNone)), read: onRoot(driverOf), want: "none"},
		"C32: I/O of a full file is native":    {change: onFile(preallocated, cache(v1.CacheNone)), read: onRoot(driverOf), want: "none native"},
		"C32: I/O is open with writethrough": {
			change: onFile(blockData, cache(v1.CacheWriteThrough)), read: onRoot(driverOf), want: "writethrough",
		},
		"C32: I/O of a data store on a block device is native": {
			change: onFile(DiskSource{Path: "/o", Format: formatQcow2, DirectIO: true, DataStore: &blockData}),
			read:   onRoot(driverOf), want: "none native",
		},
		"the spec's I/O mode is kept": {
			change: onFile(blockData, func(v vmiArg, _ *Facts) { root(v).IO = v1.IOThreads }), read: onRoot(driverOf), want: "none threads",
		},
		"the I/O mode default is none of libvirt": {
			change: onFile(blockData, func(v vmiArg, _ *Facts) { root(v).IO = "default" }), read: onRoot(driverOf), want: "none",
		},
		"C34: a shareable disk has no cache": {
			change: onFile(blockData, shared),
			read:   onRoot(func(d *libvirtxml.DomainDisk) any { return d.Driver.Cache + yesNo(d.Shareable != nil) }), want: "noneyes",
		},
		"C35: blockMultiQueue gives virtio disks a queue per CPU": {
			change: func(v vmiArg, _ *Facts) {
				v.Spec.Domain.CPU = &v1.CPU{Cores: 4}
				v.Spec.Domain.Devices.BlockMultiQueue = new(true)
				domainfixture.AddDisk(v, "data", sataDisk)
				domainfixture.AddDisk(v, "scratch", virtioDisk)
			}, read: queuesOf, want: "4 - 4",
		},
		"C35: a guest without CPUs in its spec has one": {
			change: func(v vmiArg, _ *Facts) { v.Spec.Domain.Devices.BlockMultiQueue = new(true) }, read: queuesOf, want: "1",
		},
		"without blockMultiQueue there are no queues": {read: queuesOf, want: "-"},
		"a virtio disk is transitional if asked for": {
			change: func(v vmiArg, _ *Facts) { v.Spec.Domain.Devices.UseVirtioTransitional = new(true) },
			read:   onRoot(func(d *libvirtxml.DomainDisk) any { return d.Model }), want: "virtio-transitional",
		},
		"no other disk has a model": {
			change: func(v vmiArg, _ *Facts) { root(v).DiskDevice = scsiDisk },
			read:   onRoot(func(d *libvirtxml.DomainDisk) any { return d.Model }), want: "",
		},
		"boot order and serial number": {
			change: func(v vmiArg, _ *Facts) { root(v).BootOrder, root(v).Serial = new(uint(2)), "Ab_c.1+2-3" },
			read:   onRoot(func(d *libvirtxml.DomainDisk) any { return fmt.Sprint(d.Boot.Order, d.Serial) }), want: "2Ab_c.1+2-3",
		},
	})
	const disk = "spec.domain.devices.disks[0]"
	runDiskErrors(t, map[string]diskError{
		"C20: no such policy":                   {policy("x"), disk + ".errorPolicy", domain.ErrInvalid, "enospace"},
		"C31: no cache needs O_DIRECT":          {cache(v1.CacheNone), disk + ".cache", domain.ErrInvalid, "O_DIRECT"},
		"C31: of images below as well":          {onFile(overlay(DiskSource{Path: "/b"}), cache(v1.CacheNone)), disk + ".cache", domain.ErrInvalid, "O_DIRECT"},
		"C34: a shareable disk cannot have one": {onFile(blockData, shared, cache(v1.CacheWriteBack)), disk + ".cache", domain.ErrInvalid, "shareable"},
		"a shareable disk needs O_DIRECT":       {shared, disk + ".cache", domain.ErrInvalid, "shareable"},
		"native I/O through the page cache":     {onFile(blockData, cache(v1.CacheWriteBack), func(v vmiArg, _ *Facts) { root(v).IO = v1.IONative }), disk + ".io", domain.ErrInvalid, "native"},
		"no such cache mode, on an empty drive": {func(v vmiArg, _ *Facts) { domainfixture.AddDisk(v, "none", sataDrive).Cache = "x" }, "spec.domain.devices.disks[1].cache", domain.ErrInvalid, "writeback"},
		"a shareable drive with a cache, no disc": {func(v vmiArg, _ *Facts) {
			d := domainfixture.AddDisk(v, "none", sataDrive)
			d.Cache, d.Shareable = "writeback", new(true)
		}, "spec.domain.devices.disks[1].cache", domain.ErrInvalid, "shareable"},
		"no such I/O mode":                         {func(v vmiArg, _ *Facts) { root(v).IO = "fast" }, disk + ".io", domain.ErrInvalid, "native or threads"},
		"bootOrder counts from 1":                  {func(v vmiArg, _ *Facts) { root(v).BootOrder = new(uint(0)) }, disk + ".bootOrder", domain.ErrInvalid, "count from 1"},
		"a serial number that libvirt cuts or not": {func(v vmiArg, _ *Facts) { root(v).Serial = "a b" }, disk + ".serial", domain.ErrInvalid, "letters"},
	})
}

func TestSpecDiskDiscard(t *testing.T) {
	claim := func(preallocated bool, kind v1.DiskDevice, src DiskSource) func(vmiArg, *Facts) {
		return func(v vmiArg, f *Facts) {
			onVolume(claimSource(false), src)(v, f)
			root(v).DiskDevice = kind
			v.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{Preallocated: preallocated}}}
		}
	}
	disc := func(source v1.VolumeSource) func(vmiArg, *Facts) {
		return func(v vmiArg, f *Facts) {
			onVolume(source, DiskSource{Path: "/x"})(v, f)
			root(v).DiskDevice = sataDrive
		}
	}
	rows := map[string]diskRow{}
	for name, r := range map[string]struct {
		change func(vmiArg, *Facts)
		want   string
	}{
		"disk":                         {claim(false, virtioDisk, fileData), "unmap"},
		"LUN":                          {claim(false, scsiLUN, blockData), "unmap"},
		"disk of a preallocated claim": {claim(true, virtioDisk, fileData), ""},
		"LUN of a preallocated claim":  {claim(true, scsiLUN, blockData), ""},
		"disc":                         {claim(false, sataDrive, fileData), ""},
		"full, and not meant to be":    {claim(false, virtioDisk, DiskSource{Path: "/x", Preallocated: true}), "unmap"},
		"disc of a containerDisk":      {disc(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}), "unmap"},
		"disc of an emptyDisk":         {disc(v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}), "unmap"},
		"disc of an ephemeral":         {disc(v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}), "unmap"},
		"disc of a secret":             {disc(v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}), ""},
	} {
		rows[name] = diskRow{r.change, onRoot(func(d *libvirtxml.DomainDisk) any { return d.Driver.Discard }), r.want}
	}
	runDiskRows(t, rows)
}

func TestSpecBlockSizes(t *testing.T) {
	sizes := onRoot(func(d *libvirtxml.DomainDisk) any {
		if d.BlockIO == nil {
			return "none"
		}
		out := fmt.Sprint(d.BlockIO.LogicalBlockSize, d.BlockIO.PhysicalBlockSize)
		if g := d.BlockIO.DiscardGranularity; g != nil {
			out += fmt.Sprint(" ", *g)
		}
		return out
	})
	custom := func(logical, physical uint, granularity ...uint) func(vmiArg, *Facts) {
		return func(v vmiArg, _ *Facts) {
			c := &v1.CustomBlockSize{Logical: logical, Physical: physical}
			if len(granularity) > 0 {
				c.DiscardGranularity = &granularity[0]
			}
			root(v).BlockSize = &v1.BlockSize{Custom: c}
		}
	}
	match := func(s *SectorSize, enabled *bool) func(vmiArg, *Facts) {
		return onFile(DiskSource{Path: "/x", Sector: s}, func(v vmiArg, _ *Facts) {
			root(v).BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{Enabled: enabled}}
		})
	}
	onZ := func(change func(vmiArg, *Facts)) func(vmiArg, *Facts) {
		return func(v vmiArg, f *Facts) {
			f.Arch = xmlspec.ArchS390X
			change(v, f)
		}
	}
	runDiskRows(t, map[string]diskRow{
		"none":                                {nil, sizes, "none"},
		"custom":                              {custom(512, 4096), sizes, "512 4096"},
		"custom, with granularity":            {custom(512, 4096, 8192), sizes, "512 4096 8192"},
		"custom, nothing is given back":       {custom(512, 512, 0), sizes, "512 512 0"},
		"custom on s390x":                     {onZ(custom(4096, 4096)), sizes, "4096 4096"},
		"matched":                             {match(&SectorSize{Logical: 512, Physical: 4096, DiscardGranularity: 65536}, nil), sizes, "512 4096 65536"},
		"matched, enabled":                    {match(&SectorSize{Logical: 4096, Physical: 4096, DiscardGranularity: 4096}, new(true)), sizes, "4096 4096 4096"},
		"matched, off":                        {match(nil, new(false)), sizes, "none"},
		"no logical size copies the physical": {match(&SectorSize{Physical: 4096}, nil), sizes, "4096 4096"},
		"no physical size copies the logical": {match(&SectorSize{Logical: 512}, nil), sizes, "512 512"},
		"granularity that is no multiple is the physical size": {
			match(&SectorSize{Logical: 4096, Physical: 8192, DiscardGranularity: 1000}, nil), sizes, "4096 8192 8192",
		},
		"matched with the data store, not the overlay": {
			onFile(DiskSource{Path: "/o", Format: formatQcow2, Sector: &SectorSize{Logical: 4096}, DataStore: &DiskSource{Path: "/dev/d", Block: true, Sector: &SectorSize{Logical: 512}}},
				func(v vmiArg, _ *Facts) { root(v).BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{}} }), sizes, "512 512",
		},
		"an empty drive matches nothing": {func(v vmiArg, _ *Facts) {
			domainfixture.AddDisk(v, "none", sataDrive).BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{}}
		}, on("none", func(d *libvirtxml.DomainDisk) any { return d.BlockIO == nil }), true},
	})
	const field = "spec.domain.devices.disks[0].blockSize"
	runDiskErrors(t, map[string]diskError{
		"s390x boots from small blocks only": {onZ(custom(8192, 8192)), field + ".custom", domain.ErrInvalid, "4096"},
		"matched as well":                    {onZ(match(&SectorSize{Logical: 65536}, nil)), field + ".matchVolume", domain.ErrInvalid, "4096"},
		"no power of two":                    {custom(513, 1024), field + ".custom", domain.ErrInvalid, "power of two"},
		"too small":                          {custom(256, 512), field + ".custom", domain.ErrInvalid, "512"},
		"too large":                          {custom(512, 4<<20), field + ".custom", domain.ErrInvalid, "2097152"},
		"nothing set":                        {custom(0, 0), field + ".custom", domain.ErrInvalid, "power of two"},
		"physical below logical":             {custom(4096, 512), field + ".custom", domain.ErrInvalid, "less than the logical"},
		"granularity":                        {custom(4096, 4096, 512), field + ".custom.discardGranularity", domain.ErrInvalid, "multiple"},
		"sizes the node cannot determine":    {match(nil, nil), field + ".matchVolume", domain.ErrUnsupported, "cannot determine"},
		"sizes that are zero":                {match(&SectorSize{DiscardGranularity: 512}, nil), field + ".matchVolume", domain.ErrUnsupported, "cannot determine"},
		"both": {func(v vmiArg, f *Facts) {
			custom(512, 512)(v, f)
			root(v).BlockSize.MatchVolume = &v1.FeatureState{}
		}, field, domain.ErrInvalid, "set one of them"},
	})
}

func TestVirtioDisk_EncryptedUsesIOMMU(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	vmi.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{SEV: &v1.SEV{}}
	domainfixture.AddDisk(vmi, "data", scsiDisk)
	// Only convert the disks, without firmware and launch security.
	passes := slices.DeleteFunc(Passes(), func(p Pass) bool { return p.Name != "identity" && p.Name != "disks" })
	d, err := ConvertWith(vmi, f, passes)
	if err != nil {
		t.Fatal(err)
	}
	if got := [2]string{d.Devices.Disks[0].Driver.IOMMU, d.Devices.Disks[1].Driver.IOMMU}; got != [2]string{"on", ""} {
		t.Errorf("iommu is %q", got)
	}
}
