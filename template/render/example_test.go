// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// web returns the input of a VMI in the zone that a label names.
func web() render.Input {
	return render.Input{
		VMI: &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "1234", Labels: map[string]string{"example.com/zone": "blue"},
		}},
		Config: render.Config{LauncherImage: "example.com/virt-launcher:v1"},
	}
}

// name names Pods of every kind.
var name = render.Stage{Name: "name", Pods: render.AllPods, Apply: func(d *render.Draft) error {
	d.From("metadata.name").Set("metadata.name", func(p *corev1.Pod) { p.Name = d.VMI().Name + "-pod" })
	return nil
}}

// guest adds the container to Pods that are launchers, which Stage.Pods has as default.
var guest = render.Stage{Name: "guest", Pods: render.GuestPods, Apply: func(d *render.Draft) error {
	d.From("Config.LauncherImage").AddContainer(corev1.Container{Name: "guest", Image: d.Config().LauncherImage})
	terms := []render.Term{
		{Name: "guest memory", Amount: resource.MustParse("1Gi")}, {Name: "QEMU", Amount: resource.MustParse("50Mi")},
	}
	d.Terms(terms...).Container("guest").Request(corev1.ResourceMemory, render.Sum(terms))
	return nil
}}

// zone keeps a Pod in the zone that a label of the VMI names. Stages add to an affinity, they do not replace it.
var zone = render.Stage{Name: "zone", Apply: func(d *render.Draft) error {
	const label = "example.com/zone"
	wanted := d.VMI().Labels[label]
	if wanted == "" {
		return render.Invalid("metadata.labels["+label+"]", "must be set", "add the zone of the VMI")
	}
	require(d.From("metadata.labels["+label+"]").Affinity(), label, wanted)
	return nil
}}

// require adds a node label to the affinity.
func require(a render.Affinity, label, value string) {
	a.RequireNode(corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
}

// printTerms prints the stage of a calculated amount, and the lines of its sum.
func printTerms(o render.Origin) {
	fmt.Println(o.Stage)
	for _, term := range o.Terms {
		fmt.Println(term)
	}
}

// A renderer of other stages than the stock ones. Its Pods are explained in the same way.
func ExampleNew() {
	renderer, err := render.NewRenderer(name, guest, zone)
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := renderer.Explain(render.LauncherPod, web())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Pod.Name, e.Pod.Spec.Containers[0].Image)
	origins, err := e.At("spec.containers[guest].resources.requests.memory")
	if err != nil {
		fmt.Println(err)
		return
	}
	printTerms(origins[0])
	// Output:
	// web-pod example.com/virt-launcher:v1
	// guest
	// 1Gi guest memory
	// 50Mi QEMU
}

// What a stage rejects is an error with stage, object, field and remedy.
func ExampleInvalid() {
	renderer, err := render.NewRenderer(name, zone)
	if err != nil {
		fmt.Println(err)
		return
	}
	in := web()
	in.VMI.Labels = nil
	_, err = renderer.Launcher(in)
	fmt.Println(err)
	fmt.Println(errors.Is(err, render.ErrInvalid))
	// Output:
	// render VirtualMachineInstance default/web: stage zone: metadata.labels[example.com/zone]: must be set (invalid); add the zone of the VMI
	// true
}

// Two stages must not set one field, and a list of stages has no name twice.
func ExampleRenderer_Before() {
	renderer, err := render.NewRenderer(name)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = renderer.Before("no-such-stage", guest)
	fmt.Println(errors.Is(err, render.ErrStage))
	other := name
	other.Name = "other-name"
	both, err := renderer.Before("name", other)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = both.Launcher(web())
	fmt.Println(errors.Is(err, render.ErrFieldOwned))
	// Output:
	// true
	// true
}
