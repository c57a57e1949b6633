// SPDX-License-Identifier: Apache-2.0

package nodecheck

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestJudge_Problems(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*Facts)
		want []string
	}{
		"nothing":                   {edit: func(*Facts) {}},
		"no KVM":                    {edit: func(f *Facts) { f.KVM = false }, want: []string{noKVM}},
		"KVM that is none":          {edit: func(f *Facts) { f.CPU = false }, want: []string{noKVM}},
		"KVM that is none, unused":  {edit: func(f *Facts) { f.CPU, f.Emulation = false, true }},
		"no KVM, and none needed":   {edit: func(f *Facts) { f.KVM, f.Emulation = false, true }},
		"no tun":                    {edit: func(f *Facts) { f.Tun = false }, want: []string{noTun}},
		"no tun, with emulation":    {edit: func(f *Facts) { f.Tun, f.Emulation = false, true }, want: []string{noTun}},
		"no vhost-net":              {edit: func(f *Facts) { f.VhostNet = false }, want: []string{noVhostNet}},
		"no vhost-net, emulation":   {edit: func(f *Facts) { f.VhostNet, f.Emulation = false, true }},
		"another kubelet's folder":  {edit: func(f *Facts) { f.Mounted, f.Shared = false, false }, want: []string{podsNoMount}},
		"a private mount":           {edit: func(f *Facts) { f.Shared = false }, want: []string{podsNoShared}},
		"no cgroups":                {edit: func(f *Facts) { f.Cgroup = false }, want: []string{noCgroup}},
		"no cgroups where unneeded": {edit: func(f *Facts) { f.Cgroup, f.Cgroups = false, "" }},
		"nothing at all":            {edit: func(f *Facts) { *f = Facts{Cgroups: "/c"} }, want: []string{noKVM, noTun, noVhostNet, podsNoMount, noCgroup}},
	} {
		t.Run(name, func(t *testing.T) {
			f := Facts{KVM: true, CPU: true, Tun: true, VhostNet: true, Pods: "/pods", Mounted: true, Shared: true, Cgroups: "/c", Cgroup: true}
			tt.edit(&f)
			var got []string
			for _, p := range Judge(f) {
				got = append(got, p.Code)
				if p.What == "" || p.Remedy == "" {
					t.Errorf("%+v", p)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestPropagates_Tables(t *testing.T) {
	const root = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
	for name, tt := range map[string]struct {
		table string
		want  bool
	}{
		"the root is shared":          {table: root, want: true},
		"the root is private":         {table: "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"},
		"its own is private":          {table: root + "30 21 8:1 /pods /var/lib/kubelet/pods rw - ext4 /dev/sda1 rw\n"},
		"its own gets and gives none": {table: root + "30 21 8:1 /pods /var/lib/kubelet/pods rw master:1 - ext4 /dev/sda1 rw\n"},
		"its own is both":             {table: root + "30 21 8:1 /pods /var/lib/kubelet/pods rw master:1 shared:7 - ext4 /dev/sda1 rw\n", want: true},
		"one above is private":        {table: root + "30 21 8:1 / /var/lib rw - ext4 /dev/sda1 rw\n"},
		"one beside is private":       {table: root + "30 21 8:1 / /var/lib/kub rw - ext4 /dev/sda1 rw\n", want: true},
		"one below is private":        {table: root + "30 21 0:9 / /var/lib/kubelet/pods/a rw - tmpfs volume rw\n", want: true},
		"one over the other":          {table: root + "30 21 0:9 / /var rw - tmpfs a rw\n31 30 0:9 / /var rw shared:3 - tmpfs b rw\n", want: true},
		"a source says so":            {table: "21 1 8:1 / / rw - ext4 shared:1 rw\n"},
		"a short line":                {table: "shared:1\n" + root, want: true},
		"nothing":                     {},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := propagates(strings.NewReader(tt.table), "/var/lib/kubelet/pods"); err != nil || got != tt.want {
				t.Errorf("%t, %v", got, err)
			}
		})
	}
}

func TestProbe_EmptyNode(t *testing.T) {
	p := &Probe{Pods: "/pods", Cgroups: t.TempDir(), Root: t.TempDir(), Emulation: func(context.Context) (bool, error) { return false, nil }}
	f, err := p.Facts(t.Context())
	if err != nil || f.KVM || f.Tun || f.VhostNet || f.Mounted || f.Cgroup {
		t.Errorf("%+v, %v", f, err)
	}
	// A file is no device.
	if err := errors.Join(os.MkdirAll(filepath.Join(p.Root, "dev"), 0o700), os.WriteFile(filepath.Join(p.Root, "dev/kvm"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if f, _ := p.Facts(t.Context()); f.KVM {
		t.Error("a file is KVM")
	}
}

func TestProbe_CPU(t *testing.T) {
	for name, tt := range map[string]struct {
		cpuinfo string
		want    bool
	}{
		"Intel's":               {"processor\t: 0\nflags\t\t: fpu vmx sse\nvmx flags\t: ept\n", true},
		"AMD's":                 {"flags\t\t: fpu svm\n", true},
		"one without":           {"flags\t\t: fpu sse svm_lock\nvmx flags\t: vmx\n", false},
		"one that does not say": {"Features\t: fp asimd\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Probe{Root: t.TempDir()}
			if err := errors.Join(os.Mkdir(filepath.Join(p.Root, "proc"), 0o700), os.WriteFile(filepath.Join(p.Root, "proc/cpuinfo"), []byte(tt.cpuinfo), 0o600)); err != nil {
				t.Fatal(err)
			}
			if got, err := p.virtualizes(); got != tt.want || err != nil {
				t.Errorf("%t, %v, want %t", got, err, tt.want)
			}
		})
	}
}

func TestProbe_SettingUnknown(t *testing.T) {
	unread := errors.New("unread")
	p := &Probe{Pods: t.TempDir(), Emulation: func(context.Context) (bool, error) { return false, unread }}
	f, err := p.Facts(t.Context())
	if !errors.Is(err, unread) || !f.Emulation || !f.Mounted {
		t.Errorf("%+v, %v", f, err)
	}
	if !(&Probe{}).device("/dev/null") {
		t.Error("/dev/null is no device")
	}
}
