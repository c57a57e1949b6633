// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
)

func char(major, minor int64) cgroup.Rule {
	return cgroup.Rule{Kind: cgroup.Char, Major: major, Minor: minor, Access: cgroup.All}
}

// set sets the rules and reports whether that changed the filter.
func set(t *testing.T, dir string, rules ...cgroup.Rule) bool {
	t.Helper()
	changed, err := cgroup.Set(dir, rules)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func TestSet_AllowsListedDevicesOnly(t *testing.T) {
	for name, make := range map[string]func(*testing.T) string{"v1": containerV1, "v2": container} {
		t.Run(name, func(t *testing.T) { allowsListedDevicesOnly(t, make(t)) })
	}
}

func allowsListedDevicesOnly(t *testing.T, dir string) {
	t.Helper()
	g := startGuest(t, dir, 0)
	g.is(map[string]bool{"/dev/zero": true, "/dev/null": true, "/dev/full": true})
	for name, tt := range map[string]struct {
		rules []cgroup.Rule
		want  map[string]bool
	}{
		"nothing":      {nil, map[string]bool{"/dev/zero": false, "/dev/null": false}},
		"one":          {[]cgroup.Rule{char(1, 5)}, map[string]bool{"/dev/zero": true, "/dev/null": false}},
		"two":          {[]cgroup.Rule{char(1, 5), char(1, 3)}, map[string]bool{"/dev/zero": true, "/dev/null": true, "/dev/full": false}},
		"all of major": {[]cgroup.Rule{char(1, cgroup.Any)}, map[string]bool{"/dev/zero": true, "/dev/null": true, "/dev/kvm": false}},
		"all":          {[]cgroup.Rule{char(cgroup.Any, cgroup.Any)}, map[string]bool{"/dev/zero": true, "/dev/kvm": true}},
		"block is not character": {[]cgroup.Rule{{Kind: cgroup.Block, Major: 1, Minor: 5, Access: cgroup.All}},
			map[string]bool{"/dev/zero": false}},
		"write is not read":    {[]cgroup.Rule{{Kind: cgroup.Char, Major: 1, Minor: 5, Access: cgroup.Write}}, map[string]bool{"/dev/zero": false}},
		"read is enough":       {[]cgroup.Rule{{Kind: cgroup.Char, Major: 1, Minor: 5, Access: cgroup.Read}}, map[string]bool{"/dev/zero": true}},
		"read and write apart": {[]cgroup.Rule{{Kind: cgroup.Char, Major: 1, Minor: 5, Access: cgroup.Write}, {Kind: cgroup.Char, Major: 1, Minor: 5, Access: cgroup.Read}}, map[string]bool{"/dev/zero": true}},
		"S8: the default list has KVM, tap devices, null, the console": {cgroup.Default(), map[string]bool{
			"/dev/kvm": true, "/dev/net/tun": true, "/dev/null": true, "/dev/urandom": true, "/dev/ptmx": true, "/dev/mem": false, "/dev/loop0": false}},
	} {
		t.Run(name, func(t *testing.T) {
			set(t, dir, tt.rules...)
			if set(t, dir, tt.rules...) {
				t.Error("the second call changed the filter")
			}
			g.t = t
			for path := range tt.want {
				if _, err := os.Stat(path); err != nil {
					delete(tt.want, path) // not every machine has it
				}
			}
			if len(tt.want) == 0 {
				t.Fatal("no device left to test")
			}
			g.is(tt.want)
		})
	}
}

func TestSet_Idempotent(t *testing.T) {
	dir := container(t)
	rules := []cgroup.Rule{char(1, 3), char(1, 5), char(136, cgroup.Any)}
	if !set(t, dir, rules...) {
		t.Error("the first list did not change the filter")
	}
	first := programs(t, dir)
	slices.Reverse(rules)
	if set(t, dir, append(rules, char(1, 3))...) {
		t.Error("the same list in another order changed the filter")
	}
	if got := programs(t, dir); !slices.Equal(first, got) {
		t.Errorf("programs %v, then %v", first, got)
	}
	if !set(t, dir, rules[1:]...) || len(programs(t, dir)) != 1 {
		t.Errorf("another list did not replace the filter: %v", programs(t, dir))
	}
}

func programs(t *testing.T, dir string) []ebpf.ProgramID {
	t.Helper()
	fd, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(fd.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		t.Fatal(err)
	}
	var out []ebpf.ProgramID
	for _, p := range found.Programs {
		out = append(out, p.ID)
	}
	return out
}

// attach attaches a filter of another program, with the same answer for all devices.
func attach(t *testing.T, dir string, answer int32, flags uint32) {
	t.Helper()
	fd, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm32(asm.R0, answer), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(fd.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: flags,
	}); err != nil {
		t.Fatal(err)
	}
}

func TestSet_ReplacesForeignFilters(t *testing.T) {
	for name, lay := range map[string]func(t *testing.T, dir string){
		"of a container runtime": func(t *testing.T, dir string) { attach(t, dir, 0, unix.BPF_F_ALLOW_MULTI) },
		"of two": func(t *testing.T, dir string) {
			attach(t, dir, 0, unix.BPF_F_ALLOW_MULTI)
			attach(t, dir, 1, unix.BPF_F_ALLOW_MULTI)
		},
		"of three, one of them ours": func(t *testing.T, dir string) {
			set(t, dir, char(1, 5))
			attach(t, dir, 0, unix.BPF_F_ALLOW_MULTI)
			attach(t, dir, 0, unix.BPF_F_ALLOW_MULTI)
		},
		"of one that wants to be alone":     func(t *testing.T, dir string) { attach(t, dir, 0, 0) },
		"of one that children may override": func(t *testing.T, dir string) { attach(t, dir, 0, unix.BPF_F_ALLOW_OVERRIDE) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := container(t)
			lay(t, dir)
			if !set(t, dir, char(1, 5)) {
				t.Error("the filter was not changed")
			}
			if n := len(programs(t, dir)); n != 1 {
				t.Errorf("%d filters", n)
			}
			startGuest(t, dir, 0).is(map[string]bool{"/dev/zero": true, "/dev/null": false})
			if set(t, dir, char(1, 5)) {
				t.Error("the second call changed the filter")
			}
		})
	}
}

// Hotplug changes the list of a running guest: devices in both lists must be accessible at all
// times, devices in neither never.
func TestSet_AtomicReplacement(t *testing.T) { replaceMeanwhile(t, container(t)) }

// replaceMeanwhile replaces a list with a longer one and back, again and again, while a guest looks what it may open.
func replaceMeanwhile(t *testing.T, dir string) {
	t.Helper()
	both, extra := char(1, 3), char(1, 7)
	set(t, dir, both)
	g := startGuest(t, dir, 0)
	var replaced atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := cgroup.Set(dir, []cgroup.Rule{both, extra}[:1+i%2]); err != nil {
				return err
			}
			replaced.Add(1)
		}
		return nil
	})
	for rounds := 0; ctx.Err() == nil && (rounds < 20 || replaced.Load() < 300); rounds++ {
		g.is(map[string]bool{"/dev/null": true, "/dev/zero": false})
	}
	stop()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestSet_ChildCgroups(t *testing.T) {
	dir := container(t)
	inner := filepath.Join(dir, "housekeeping")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	g := startGuest(t, inner, 0)
	set(t, dir, char(1, 5))
	g.is(map[string]bool{"/dev/zero": true, "/dev/null": false})
}

func TestSet_InvalidDirectory(t *testing.T) {
	root, dir := hierarchy(t), container(t)
	linked := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, linked); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		dir  string
		want error
	}{
		"#10409: the root of the hierarchy": {root, domain.ErrInvalid},
		"another file system":               {t.TempDir(), domain.ErrUnsupported},
		"none":                              {filepath.Join(dir, "none"), domain.ErrNotFound},
		"a link":                            {linked, nil},
		"a file":                            {filepath.Join(dir, "cgroup.procs"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := programs(t, root)
			_, err := cgroup.Set(tt.dir, nil)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if after := programs(t, root); !slices.Equal(before, after) {
				t.Fatalf("the root has filters %v, had %v", after, before)
			}
		})
	}
}

func TestSet_InvalidRule(t *testing.T) {
	dir := container(t)
	set(t, dir, char(1, 5))
	before := programs(t, dir)
	for name, r := range map[string]cgroup.Rule{
		"no kind":    {Major: 1, Minor: 5, Access: cgroup.All},
		"no access":  {Kind: cgroup.Char, Major: 1, Minor: 5},
		"too much":   {Kind: cgroup.Char, Major: 1, Minor: 5, Access: 8},
		"negative":   {Kind: cgroup.Char, Major: -2, Minor: 5, Access: cgroup.All},
		"too large":  {Kind: cgroup.Char, Major: 1, Minor: 1 << 32, Access: cgroup.All},
		"everything": {Kind: 'a', Major: cgroup.Any, Minor: cgroup.Any, Access: cgroup.All},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cgroup.Set(dir, []cgroup.Rule{char(1, 3), r}); !errors.Is(err, domain.ErrInvalid) {
				t.Errorf("%v", err)
			}
		})
	}
	if after := programs(t, dir); !slices.Equal(before, after) {
		t.Errorf("a list that was refused changed the filter: %v, was %v", after, before)
	}
}
