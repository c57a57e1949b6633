// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// resources sets the requests and limits of the compute container, except those of devices.
func resources(d *render.Draft, calculators []OverheadCalculator) error {
	r, err := ComputeResources(d.Input(), calculators...)
	if err != nil {
		return err
	}
	write := func(amounts map[corev1.ResourceName]Calculation, set func(render.Container, corev1.ResourceName, resource.Quantity)) {
		for _, name := range sortedKeys(amounts) {
			a := amounts[name]
			set(d.From(a.source()).Terms(a.Terms...).Container(computeContainer), name, a.Quantity)
		}
	}
	write(r.Requests, render.Container.Request)
	write(r.Limits, render.Container.Limit)
	d.From("spec.domain").Terms(r.Overhead.Terms...).
		Annotation(v1.MemoryOverheadAnnotationBytes, strconv.FormatInt(r.Overhead.Bytes, 10))
	return nil
}

// source returns the source of the amount's first term.
func (a *Calculation) source() string {
	for i := range a.Terms {
		if a.Terms[i].From != "" {
			return a.Terms[i].From
		}
	}
	return ""
}
