// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// BenchmarkLauncher renders a typical VMI: four disks, two networks. It reports the mean and the median.
func BenchmarkLauncher(b *testing.B) {
	in := input(read(b, "typical.vmi.yaml"), claim("data", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany))
	r := template.Default()
	measure(b, func() error {
		_, err := r.Launcher(in)
		return err
	})
}

// BenchmarkLauncherRich renders a VMI with many features.
func BenchmarkLauncherRich(b *testing.B) {
	in := richInput(b)
	r := template.Default()
	measure(b, func() error {
		_, err := r.Launcher(in)
		return err
	})
}

// BenchmarkExplain renders the typical VMI with the origins of all fields.
func BenchmarkExplain(b *testing.B) {
	in := input(read(b, "typical.vmi.yaml"), claim("data", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany))
	r := template.Default()
	measure(b, func() error {
		_, err := r.Explain(render.LauncherPod, in)
		return err
	})
}

func measure(b *testing.B, renderPod func() error) {
	b.Helper()
	b.ReportAllocs()
	took := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		start := time.Now()
		if err := renderPod(); err != nil {
			b.Fatal(err)
		}
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns/op")
}
