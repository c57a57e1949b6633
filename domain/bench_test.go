// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// typical is a guest with four disks and two network cards, and what a node knows
// about it.
func typical(b *testing.B) (*v1.VirtualMachineInstance, Facts) {
	b.Helper()
	vmi := readVMI(b, "../template/testdata/typical.vmi.yaml")
	return vmi, AssumeFacts(vmi)
}

// BenchmarkConvert converts the typical guest as it is started.
func BenchmarkConvert(b *testing.B) {
	vmi, f := typical(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Convert(vmi, f); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConvertRunning converts it while it runs.
func BenchmarkConvertRunning(b *testing.B) {
	vmi, f := typical(b)
	d, err := Convert(vmi, f)
	if err != nil {
		b.Fatal(err)
	}
	f.Layout = LayoutOf(d)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Convert(vmi, f); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDiffSteady compares the typical guest with what runs, where nothing
// differs.
func BenchmarkDiffSteady(b *testing.B) {
	vmi, f := typical(b)
	d, err := Convert(vmi, f)
	if err != nil {
		b.Fatal(err)
	}
	live := readBack(b, d)
	read, err := through(d)
	if err != nil {
		b.Fatal(err)
	}
	for name, last := range map[string]*libvirtxml.Domain{"known": d, "read": read, "unknown": nil} {
		b.Run("last="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if found, err := Diff(d, last, live); err != nil || len(found) > 0 {
					b.Fatal(found, err)
				}
			}
		})
	}
}
