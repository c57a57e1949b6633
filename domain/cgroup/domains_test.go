// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
)

// nodes is an in-memory implementation of Devices.
type nodes map[string]cgroup.Node

func (n nodes) Node(path string) (cgroup.Node, error) {
	node, found := n[path]
	if !found {
		return node, domain.ErrNotReady
	}
	return node, nil
}

func (n nodes) List(dir string) ([]string, error) {
	var out []string
	for path := range n {
		if filepath.Dir(path) == dir {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out, nil
}

var machine = nodes{
	"/dev/sda": {Kind: cgroup.Block, Major: 8, Minor: 0}, "/dev/sdb": {Kind: cgroup.Block, Major: 8, Minor: 16},
	"/dev/dm-0": {Kind: cgroup.Block, Major: 253, Minor: 0}, "/dev/vfio/vfio": {Kind: cgroup.Char, Major: 10, Minor: 196},
	"/dev/vfio/7": {Kind: cgroup.Char, Major: 240, Minor: 7}, "/dev/vhost-vsock": {Kind: cgroup.Char, Major: 10, Minor: 241},
	"/dev/hwrng": {Kind: cgroup.Char, Major: 10, Minor: 183}, "/dev/sev": {Kind: cgroup.Char, Major: 10, Minor: 124},
	"/dev/iommu": {Kind: cgroup.Char, Major: 10, Minor: 125}, "/dev/vfio/devices/vfio0": {Kind: cgroup.Char, Major: 511, Minor: 0},
	"/dev/ttyS3": {Kind: cgroup.Char, Major: 4, Minor: 67}, "/dev/tpm0": {Kind: cgroup.Char, Major: 10, Minor: 224},
	"/dev/input/event1": {Kind: cgroup.Char, Major: 13, Minor: 65},
}

// parsed parses a domain with the given devices.
func parsed(t *testing.T, devices string) *libvirtxml.Domain {
	t.Helper()
	var d libvirtxml.Domain
	if err := d.Unmarshal("<domain type='kvm'>" + devices + "</domain>"); err != nil {
		t.Fatal(err)
	}
	return &d
}

func disk(dev string) string {
	return "<disk type='block'><source dev='" + dev + "'/></disk>"
}

func TestRules_FromDomains(t *testing.T) {
	for name, tt := range map[string]struct {
		domains []string
		want    []string
	}{
		"nothing": {nil, nil},
		"files":   {[]string{"<devices><disk type='file'><source file='/a'/></disk></devices>"}, nil},
		"S8: each block volume": {[]string{"<devices>" + disk("/dev/sda") + disk("/dev/sdb") + "</devices>"},
			[]string{"b 8:0 rwm", "b 8:16 rwm"}},
		"#8699: what is plugged and what shall be": {
			[]string{"<devices>" + disk("/dev/sda") + "</devices>", "<devices>" + disk("/dev/sdb") + "</devices>"},
			[]string{"b 8:0 rwm", "b 8:16 rwm"}},
		"below an overlay, and where a copy goes": {[]string{`<devices><disk type='file'><source file='/o'/>
			<backingStore type='file'><source file='/p'/><backingStore type='block'><source dev='/dev/sda'/></backingStore></backingStore>
			<mirror type='block' job='copy'><source dev='/dev/sdb'/></mirror></disk></devices>`}, []string{"b 8:0 rwm", "b 8:16 rwm"}},
		"changed block tracking": {[]string{`<devices><disk type='file'><source file='/o'><dataStore type='block'><format type='raw'/>
			<source dev='/dev/dm-0'/></dataStore></source></disk></devices>`}, []string{"b 253:0 rwm"}},
		"S8, #17527: VFIO": {[]string{`<devices><hostdev mode='subsystem' type='pci'><source><address domain='0' bus='1' slot='0' function='0'/></source></hostdev></devices>`},
			[]string{"c 10:196 rwm", "c 240:7 rwm"}},
		"mediated": {[]string{`<devices><hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/></source></hostdev></devices>`},
			[]string{"c 10:196 rwm", "c 240:7 rwm"}},
		"with iommufd": {[]string{`<devices><hostdev mode='subsystem' type='pci'><driver iommufd='yes'/><source><address domain='0' bus='1' slot='0' function='0'/></source></hostdev></devices>`},
			[]string{"c 10:196 rwm", "c 10:125 rwm", "c 240:7 rwm", "c 511:0 rwm"}},
		"S8: USB": {[]string{`<devices><hostdev mode='subsystem' type='usb'><source><address bus='3' device='7'/></source></hostdev></devices>`},
			[]string{"c 189:* rwm"}},
		"S8: vsock":                 {[]string{`<devices><vsock model='virtio'><cid auto='no' address='3'/></vsock></devices>`}, []string{"c 10:241 rwm"}},
		"random":                    {[]string{`<devices><rng model='virtio'><backend model='random'>/dev/hwrng</backend></rng></devices>`}, []string{"c 10:183 rwm"}},
		"TPM":                       {[]string{`<devices><tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm></devices>`}, []string{"c 10:224 rwm"}},
		"input":                     {[]string{`<devices><input type='passthrough'><source evdev='/dev/input/event1'/></input></devices>`}, []string{"c 13:65 rwm"}},
		"a serial port of the host": {[]string{`<devices><serial type='dev'><source path='/dev/ttyS3'/></serial></devices>`}, []string{"c 4:67 rwm"}},
		"SEV":                       {[]string{`<launchSecurity type='sev'><policy>1</policy></launchSecurity>`}, []string{"c 10:124 rwm"}},
	} {
		t.Run(name, func(t *testing.T) {
			domains := []*libvirtxml.Domain{nil}
			for _, d := range tt.domains {
				domains = append(domains, parsed(t, d))
			}
			got, err := cgroup.Rules(machine, domains...)
			if err != nil {
				t.Fatal(err)
			}
			extra := map[string]bool{}
			for _, r := range got {
				extra[r.String()] = true
			}
			for _, r := range cgroup.Default() {
				if !extra[r.String()] {
					t.Errorf("rule %s of the default list is missing", r)
				}
				delete(extra, r.String())
			}
			for _, w := range tt.want {
				if !extra[w] {
					t.Errorf("rule %s is missing", w)
				}
				delete(extra, w)
			}
			if len(extra) > 0 {
				t.Errorf("unexpected rules: %v", extra)
			}
		})
	}
}

func TestRules_MissingDevice(t *testing.T) {
	for name, devices := range map[string]string{
		"disk":  "<devices>" + disk("/dev/sda") + disk("/dev/none") + "</devices>",
		"vsock": "<devices><vsock model='virtio'/></devices>",
		"SEV":   "<launchSecurity type='sev'><policy>1</policy></launchSecurity>",
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := cgroup.Rules(nodes{"/dev/sda": machine["/dev/sda"]}, parsed(t, devices))
			if !errors.Is(err, domain.ErrNotReady) || rules != nil {
				t.Errorf("%v, %v", rules, err)
			}
		})
	}
}

func TestRoot_MountNamespace(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	dir := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		unix.Mknod(filepath.Join(dir, "disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 16))),
		unix.Mknod(filepath.Join(dir, "char"), unix.S_IFCHR|0o600, int(unix.Mkdev(10, 196))),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.Symlink("disk", filepath.Join(dir, "link")),
		os.Symlink("/proc/self/exe", filepath.Join(dir, "magic")),
	); err != nil {
		t.Fatal(err)
	}
	root := cgroup.Root{PID: os.Getpid()}
	for name, want := range map[string]cgroup.Node{
		"disk": {Kind: cgroup.Block, Major: 8, Minor: 16}, "char": {Kind: cgroup.Char, Major: 10, Minor: 196}, "link": {Kind: cgroup.Block, Major: 8, Minor: 16},
	} {
		if got, err := root.Node(filepath.Join(dir, name)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, want := range map[string]error{"none": domain.ErrNotReady, "file": domain.ErrInvalid, "pipe": domain.ErrInvalid, "magic": unix.ELOOP} {
		if got, err := root.Node(filepath.Join(dir, name)); !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	got, err := cgroup.Root{}.List(dir)
	slices.Sort(got)
	if want := []string{filepath.Join(dir, "char"), filepath.Join(dir, "disk")}; err != nil || !slices.Equal(want, got) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := root.List(filepath.Join(dir, "none")); err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
}
