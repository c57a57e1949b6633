// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestFind_LinearComparisons(t *testing.T) {
	compared := func(n int) (calls int) {
		d := &rendering{}
		key := func(v *corev1.Volume) string { calls++; return v.Name }
		var list []corev1.Volume
		at := field{base: fieldVolumes}
		for i := range n {
			name := fmt.Sprintf("v%d", i)
			if find(d, list, at, name, key) >= 0 {
				t.Fatalf("%s is there", name)
			}
			list = append(list, corev1.Volume{Name: name})
			d.places.added(at, name, len(list))
		}
		for i := range n {
			if got := find(d, list, at, list[i].Name, key); got != i {
				t.Fatalf("%d is at %d", i, got)
			}
		}
		return calls
	}
	few, many := compared(1000), compared(2000)
	if many > 2*few+2*shortList*shortList {
		t.Errorf("%d comparisons for 1000 elements, %d for 2000", few, many)
	}
}

func TestFind_ModifiedList(t *testing.T) {
	d := &rendering{}
	at := field{base: fieldVolumes}
	var list []corev1.Volume
	for i := range 2 * shortList {
		list = append(list, corev1.Volume{Name: fmt.Sprintf("v%d", i)})
	}
	if find(d, list, at, "new", volumeKey) >= 0 {
		t.Fatal("is there")
	}
	list = append(list, corev1.Volume{Name: "new"})
	if got := find(d, list, at, "new", volumeKey); got != len(list)-1 {
		t.Errorf("is at %d", got)
	}
	list = list[:shortList+1]
	if got := find(d, list, at, "new", volumeKey); got >= 0 {
		t.Errorf("is at %d of a list that has shrunk", got)
	}
}
