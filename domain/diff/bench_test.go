// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// typical returns a VMI with four disks and two interfaces, and the facts of its node.
func typical(b *testing.B) (*v1.VirtualMachineInstance, convert.Facts) {
	b.Helper()
	vmi := domainfixture.Read(b, "../template/testdata/typical.vmi.yaml")
	return vmi, assume.Facts(vmi)
}

// BenchmarkConvert converts the typical VMI before it starts.
func BenchmarkConvert(b *testing.B) {
	vmi, f := typical(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := convert.Convert(vmi, f); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConvertRunning converts it while it runs.
func BenchmarkConvertRunning(b *testing.B) {
	vmi, f := typical(b)
	d, err := convert.Convert(vmi, f)
	if err != nil {
		b.Fatal(err)
	}
	f.Layout = convert.LayoutOf(d)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := convert.Convert(vmi, f); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDiffSteady compares the typical VMI with an identical running domain.
func BenchmarkDiffSteady(b *testing.B) {
	vmi, f := typical(b)
	d, err := convert.Convert(vmi, f)
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
				if found, err := Compare(d, last, live); err != nil || len(found) > 0 {
					b.Fatal(found, err)
				}
			}
		})
	}
}
