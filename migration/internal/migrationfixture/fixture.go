// SPDX-License-Identifier: Apache-2.0

// Package migrationfixture has fixtures shared by tests of the packages below migration.
package migrationfixture

import (
	"math/rand/v2"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

// skylake is a label that [Node] has and [Target] selects.
const skylake = v1.CPUModelLabel + "Skylake"

// Fill sets some of the pointers below v to values that every field of the name takes.
func Fill(rng *rand.Rand, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() != reflect.Pointer || rng.IntN(2) == 0 || f.Type() == reflect.TypeFor[*v1alpha1.Selectors]() {
			continue
		}
		f.Set(reflect.New(f.Type().Elem()))
		switch at := f.Interface().(type) {
		case *bool:
			*at = rng.IntN(2) == 0
		case *int64:
			*at = rng.Int64N(101)
		case *uint64:
			*at = 1 + rng.Uint64N(1000)
		case *uint32:
			*at = rng.Uint32N(10)
		case *string:
			*at = "1"
		case *v1.MigrationCompression:
			*at = []v1.MigrationCompression{v1.MigrationCompressionNone, v1.MigrationCompressionZstd}[rng.IntN(2)]
		case *resource.Quantity:
			*at = *resource.NewQuantity(rng.Int64N(1000)<<20, resource.BinarySI)
		default:
			Fill(rng, f.Elem())
		}
	}
}

// Node returns a node that fits [Target].
func Node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.NodeSchedulable: "true", skylake: "true", "zone": "a"}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("2"),
			},
		},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

// Target returns a target Pod.
func Target(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{v1.NodeSchedulable: "true", skylake: "true", "zone": "a"},
		Containers: []corev1.Container{{Name: "compute", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")},
		}}},
	}}
	for _, c := range change {
		c(p)
	}
	return p
}
