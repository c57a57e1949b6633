// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// explained returns a Pod to which a stage has added one of every keyed element.
func explained(t *testing.T) *render.Explanation {
	t.Helper()
	everything := render.Stage{Name: "everything", Apply: func(d *render.Draft) error {
		d.AddContainer(corev1.Container{Name: "agent", Image: "example.com/agent:v1"})
		d.Label("example.com/a", "x")
		d.Annotation("example.com/b.c", "y")
		d.Container("agent").Env(corev1.EnvVar{Name: "E", Value: "z"})
		d.Container("agent").Port(corev1.ContainerPort{Name: "http", ContainerPort: 80, Protocol: corev1.ProtocolTCP})
		d.Container("agent").Port(corev1.ContainerPort{ContainerPort: 81})
		d.Volume(corev1.Volume{Name: "v"})
		d.Container("agent").Mount(corev1.VolumeMount{Name: "v", MountPath: "/v"})
		d.Container("agent").Device(corev1.VolumeDevice{Name: "v", DevicePath: "/dev/v"})
		d.Container("agent").Arg("--one", "1", "2")
		d.Container("agent").Arg("--none")
		d.ResourceClaim(corev1.PodResourceClaim{Name: "gpu"})
		d.Container("agent").Claim(corev1.ResourceClaim{Name: "gpu", Request: "r"})
		d.PullSecret("secret")
		d.Toleration(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
		d.NodeSelector("zone", "a")
		d.Affinity().RequireNode(corev1.NodeSelectorRequirement{Key: "rack", Operator: corev1.NodeSelectorOpExists})
		d.Affinity().AvoidPods(corev1.PodAffinityTerm{TopologyKey: "host"})
		d.Set("spec.priorityClassName", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
		return nil
	}}
	dropping := render.Stage{Name: "dropping", Overrides: []string{"spec.nodeSelector[zone]"}, Apply: func(d *render.Draft) error {
		d.Drop("spec.nodeSelector[zone]")
		return nil
	}}
	r, err := template.Default().After(template.StageCompute, everything, dropping)
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.Explain(render.LauncherPod, input(newVMI(requests("memory", "1Gi"))))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExplanationValue(t *testing.T) {
	e := explained(t)
	for path, want := range map[string]string{
		"metadata.labels[example.com/a]":                                     `"x"`,
		"metadata.annotations[example.com/b.c]":                              `"y"`,
		"spec.containers[agent]":                                             `"agent"`,
		"spec.containers[agent].image":                                       `"example.com/agent:v1"`,
		"spec.containers[agent].env[E]":                                      `{"name":"E","value":"z"}`,
		"spec.containers[agent].ports[80/TCP/http]":                          `{"containerPort":80,"name":"http","protocol":"TCP"}`,
		"spec.containers[agent].ports[81//]":                                 `{"containerPort":81}`,
		"spec.volumes[v]":                                                    `{"name":"v"}`,
		"spec.containers[agent].volumeMounts[/v]":                            `{"mountPath":"/v","name":"v"}`,
		"spec.containers[agent].volumeDevices[/dev/v]":                       `{"devicePath":"/dev/v","name":"v"}`,
		"spec.containers[agent].args[--one]":                                 `["1","2"]`,
		"spec.containers[agent].args[--none]":                                `[]`,
		"spec.resourceClaims[gpu]":                                           `{"name":"gpu"}`,
		"spec.containers[agent].resources.claims[gpu/r]":                     `{"name":"gpu","request":"r"}`,
		"spec.containers[compute].resources.limits[devices.kubevirt.io/kvm]": `"1"`,
		"spec.imagePullSecrets[secret]":                                      `{"name":"secret"}`,
		"spec.tolerations[k:Exists::NoSchedule]":                             `{"effect":"NoSchedule","key":"k","operator":"Exists"}`,
		"spec.nodeSelector[zone]":                                            "",
		"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution[rack Exists]": `[{"key":"rack","operator":"Exists"}]`,
		"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]":        `{"topologyKey":"host"}`,
		"spec.priorityClassName":   `"high"`,
		"spec.restartPolicy":       `"Never"`,
		"spec.restartPolicy.below": "",
		"spec.volumes[absent]":     "",
		"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[host]": "",
	} {
		got, err := e.Value(path)
		if err != nil || got != want {
			t.Errorf("%s: %s, want %s; error %v", path, got, want, err)
		}
	}
}

func TestExplanationValue_EveryField(t *testing.T) {
	e := explained(t)
	for _, o := range e.Fields {
		got, err := e.Value(o.Path)
		if err != nil || (got == "") != (o.Stage == "dropping") {
			t.Errorf("%s of stage %s: value %q, error %v", o.Path, o.Stage, got, err)
		}
	}
}

func TestExplanationAmounts(t *testing.T) {
	e := explained(t)
	count := 0
	for _, list := range [][]corev1.Container{e.Pod.Spec.Containers, e.Pod.Spec.InitContainers} {
		for _, c := range list {
			count += len(c.Resources.Requests) + len(c.Resources.Limits)
		}
	}
	var lines []string
	for _, a := range e.Amounts() {
		lines = append(lines, fmt.Sprint(a.Container, " ", a.Limit, " ", a.Resource, " ", a.Quantity.String(), " ", a.Origin.Stage))
		if a.Origin.Path == "" {
			t.Errorf("%s of %s has no origin", a.Resource, a.Container)
		}
	}
	text := strings.Join(lines, "\n")
	if len(lines) != count {
		t.Errorf("%d amounts, want %d:\n%s", len(lines), count, text)
	}
	if !strings.Contains(text, "compute false cpu 100m resources\ncompute false ephemeral-storage 50M resources\ncompute false memory ") ||
		!strings.Contains(text, "\ncompute true devices.kubevirt.io/kvm 1 devices\n") {
		t.Errorf("amounts in another order:\n%s", text)
	}
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "guest-console-log true memory 60M") {
		t.Errorf("init containers are not last: %s", last)
	}
}
