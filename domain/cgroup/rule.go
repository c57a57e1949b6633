// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/virtloom/virtloom/domain"
)

// Kind is the kind of a device.
type Kind byte

// The kinds of devices.
const (
	Char  Kind = 'c'
	Block Kind = 'b'
)

// Any stands for all numbers.
const Any int64 = -1

// Access is what may be done with a device. The values are the kernel's
// (linux/bpf.h: BPF_DEVCG_ACC_...).
type Access uint32

// What may be done with a device.
const (
	Mknod Access = 1 << iota
	Read
	Write

	// All is what guests get: libvirt makes device nodes for QEMU in a namespace of
	// its own.
	All = Mknod | Read | Write
)

// Rule allows access to a device, or to many.
type Rule struct {
	// Kind is that of the device.
	Kind Kind
	// Major and Minor are its numbers; Any for all.
	Major, Minor int64
	// Access is what is allowed.
	Access Access
}

// String is the rule as cgroup v1 and container runtimes write it: c 10:232 rwm.
func (r Rule) String() string {
	number := func(n int64) string {
		if n == Any {
			return "*"
		}
		return fmt.Sprint(n)
	}
	access := ""
	for _, a := range []struct {
		Access
		letter string
	}{{Read, "r"}, {Write, "w"}, {Mknod, "m"}} {
		if r.Access&a.Access != 0 {
			access += a.letter
		}
	}
	return fmt.Sprintf("%c %s:%s %s", r.Kind, number(r.Major), number(r.Minor), access)
}

// check tells whether the kernel can apply the rule.
func (r Rule) check() error {
	if r.Kind != Char && r.Kind != Block || r.Access == 0 || r.Access&^All != 0 ||
		r.Major < Any || r.Minor < Any || r.Major > math.MaxUint32 || r.Minor > math.MaxUint32 {
		return fmt.Errorf("cgroup: %q is no rule: %w", r, domain.ErrInvalid)
	}
	return nil
}

const (
	majorMem  = 1  // null, zero, random
	majorTTY  = 5  // the terminal of a process, and the maker of pseudo terminals
	majorMisc = 10 // kvm and its like
	majorPTS  = 136
	lastPTS   = 151
)

// Default is what every guest may use: what programs expect to find in a container,
// pseudo terminals for consoles, KVM, tap devices and vhost-net.
func Default() []Rule {
	var out []Rule
	char := func(major int64, minors ...int64) {
		for _, m := range minors {
			out = append(out, Rule{Kind: Char, Major: major, Minor: m, Access: All})
		}
	}
	char(majorMem, 3, 5, 7, 8, 9)  // null, zero, full, random, urandom
	char(majorTTY, 0, 2)           // tty, ptmx
	char(majorMisc, 200, 232, 238) // net/tun, kvm, vhost-net
	for m := int64(majorPTS); m <= lastPTS; m++ {
		char(m, Any)
	}
	return out
}

// Normal returns the rules in an order of their own, each device once.
func Normal(rules []Rule) []Rule {
	out := slices.Clone(rules)
	slices.SortFunc(out, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
	n := 0
	for _, r := range out {
		if n > 0 && out[n-1].Kind == r.Kind && out[n-1].Major == r.Major && out[n-1].Minor == r.Minor {
			out[n-1].Access |= r.Access
			continue
		}
		out[n] = r
		n++
	}
	return out[:n]
}
