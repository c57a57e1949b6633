// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"encoding/json"
	"fmt"

	"github.com/virtloom/virtloom/template"
)

// staticIPs assigns interfaces of the Pod the addresses in its VMI's annotation example.com/ips, by the names of
// NetworkAttachmentDefinitions.
type staticIPs struct{ template.MultusAnnotations }

func (g staticIPs) Annotations(in template.Input) (map[string]string, error) {
	annotations, err := g.MultusAnnotations.Annotations(in)
	if err != nil {
		return nil, err
	}
	var elements []template.NetworkElement
	if elements, err = g.Elements(in); err != nil {
		return nil, err
	}
	var ips map[string][]string
	if err := json.Unmarshal([]byte(in.VMI.Annotations["example.com/ips"]), &ips); err != nil {
		return nil, fmt.Errorf("annotation example.com/ips: %w", err)
	}
	for i := range elements {
		elements[i].IPs = ips[elements[i].Name]
	}
	text, err := json.Marshal(elements)
	if err != nil {
		return nil, err
	}
	annotations["k8s.v1.cni.cncf.io/networks"] = string(text)
	return annotations, nil
}

// A custom generator replaces the stock one and assigns the Pod a static address in a secondary network.
func ExampleAnnotationStage() {
	renderer, err := template.Default().Replace(template.StageNetwork,
		template.AnnotationStage(template.StageNetwork, staticIPs{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	vmi := newVMI(virtio, secondary("blue", "storage/nfs"), annotate("example.com/ips", `{"nfs": ["192.0.2.7/24"]}`))
	pod, err := renderer.Launcher(input(vmi))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pod.Annotations["k8s.v1.cni.cncf.io/networks"])
	// Output: [{"name":"nfs","namespace":"storage","ips":["192.0.2.7/24"],"interface":"pod16477688c0e"}]
}
