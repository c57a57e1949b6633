// SPDX-License-Identifier: Apache-2.0

package template

// MeshAnnotations generates the annotations for Istio about the traffic of VMIs with masquerade binding, which comes from a
// bridge in the Pod, not from the Pod's own interface.
type MeshAnnotations struct{}

// Annotations implements AnnotationGenerator. It returns no error.
func (MeshAnnotations) Annotations(in Input) (map[string]string, error) {
	for i := range in.VMI.Spec.Domain.Devices.Interfaces {
		if in.VMI.Spec.Domain.Devices.Interfaces[i].Masquerade != nil {
			return map[string]string{
				"traffic.sidecar.istio.io/kubevirtInterfaces": "k6t-eth0",
				"istio.io/reroute-virtual-interfaces":         "k6t-eth0",
			}, nil
		}
	}
	return nil, nil
}
