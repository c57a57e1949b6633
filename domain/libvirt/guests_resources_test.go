// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/diff"
)

// cpus hotplugs CPUs.
func (l *living) cpus() {
	if got := l.in("nproc"); got != "1" {
		l.t.Errorf("the guest has %s CPUs to begin with", got)
	}
	l.vmi.Spec.Domain.CPU.Sockets = 2
	l.resize("spec.domain.cpu.sockets")
	l.until("two sockets", func(vmi *v1.VirtualMachineInstance) bool {
		return vmi.Status.CurrentCPUTopology != nil && vmi.Status.CurrentCPUTopology.Sockets == 2
	})
	l.settled()
	l.sees("two CPUs", "nproc", equals("2"))
}

// resize changes the size of the running guest, as the end of a migration does: passes alone leave it as it is.
func (l *living) resize(field string) {
	l.settled()
	if !slices.ContainsFunc(l.differences, func(d diff.Difference) bool { return d.Field == field && d.Class == diff.NeedsMigration }) {
		l.t.Errorf("differences %v, want %s, which needs a migration", l.differences, field)
	}
	s := l.look()
	found, err := diff.Compare(s.Desired, nil, s.State.Domain)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, d := range found {
		if d.Field != field || d.Operation == nil {
			continue
		}
		if err := l.h.Apply(l.t.Context(), *d.Operation); err != nil {
			l.t.Fatal(err)
		}
	}
}

// memory hotplugs memory.
func (l *living) memory() {
	const total = "sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"
	before, err := strconv.Atoi(l.in(total))
	if err != nil {
		l.t.Fatal(err)
	}
	const more = 128 << 10 // KiB
	want := resource.MustParse("256Mi")
	l.vmi.Spec.Domain.Memory.Guest = &want
	l.resize("spec.domain.memory.guest")
	l.until("the memory is requested", func(vmi *v1.VirtualMachineInstance) bool {
		m := vmi.Status.Memory
		return m != nil && m.GuestRequested != nil && m.GuestRequested.Cmp(want) == 0
	})
	l.settled()
	l.sees("more memory", total, func(got string) bool {
		now, err := strconv.Atoi(got)
		return err == nil && now-before > more*9/10 && now-before <= more
	})
	// A busy guest may use a block only minutes later.
	most := resource.NewQuantity(want.Value()-more<<10/10, resource.BinarySI)
	l.until("the status has it", func(vmi *v1.VirtualMachineInstance) bool {
		now := vmi.Status.Memory.GuestCurrent
		return now != nil && now.Cmp(*most) >= 0 && now.Cmp(want) <= 0
	})
}
