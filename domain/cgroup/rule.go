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

// Any matches all device numbers.
const Any int64 = -1

// Access is a set of operations on a device. The values are those of the kernel (linux/bpf.h:
// BPF_DEVCG_ACC_...).
type Access uint32

// The operations on devices.
const (
	Mknod Access = 1 << iota
	Read
	Write

	// All is the access of guests: libvirt creates device nodes for QEMU in a mount namespace of
	// its own.
	All = Mknod | Read | Write
)

// Rule allows access to one or more devices.
type Rule struct {
	// Kind is the kind of device.
	Kind Kind
	// Major and Minor are the device numbers. Any matches all.
	Major, Minor int64
	// Access holds the allowed operations.
	Access Access
}

// String returns the rule in the notation of cgroup v1 and container runtimes: c 10:232 rwm.
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

// check reports an error if the kernel cannot apply the rule.
func (r Rule) check() error {
	if r.Kind != Char && r.Kind != Block || r.Access == 0 || r.Access&^All != 0 ||
		r.Major < Any || r.Minor < Any || r.Major > math.MaxUint32 || r.Minor > math.MaxUint32 {
		return fmt.Errorf("cgroup: invalid rule %q: %w", r, domain.ErrInvalid)
	}
	return nil
}

const (
	majorMem  = 1  // null, zero, random
	majorTTY  = 5  // controlling terminal, and the multiplexer of pseudo terminals
	majorMisc = 10 // misc devices such as kvm
	majorPTS  = 136
	lastPTS   = 151
)

// Default returns the rules for every guest: the devices that programs expect in a container,
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

// normal returns the rules in canonical order, merged to one per device.
func normal(rules []Rule) []Rule {
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
