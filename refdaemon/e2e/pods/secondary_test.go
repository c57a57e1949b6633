// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// lan is the name of a network attachment, and lanLink that of its link in a launcher's Pod (KubeVirt: the first 11 digits of the
// checksum of the network's name).
const (
	lan     = "lan"
	lanLink = "pod094a367b026"
)

// TestNetwork_Secondary: two guests with a secondary network alone, of a network attachment with the CNI plugin bridge, are reached on
// it from their node. No multus runs: the test calls the plugin in its place.
func TestNetwork_Secondary(t *testing.T) {
	nightly(t)
	c := cluster(t)
	defineLAN(t)
	node := c.Nodes[0]
	t.Cleanup(func() { _ = node.Command(context.Background(), "ip", "link", "delete", "br-lan").Run() })
	var guests []*scene
	for i := 1; i <= 2; i++ {
		guests = append(guests, create(t, newGuest(fmt.Sprintf("lan-%d", i), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name()}
			vmi.Spec.Networks = []v1.Network{{Name: lan, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: lan}}}}
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: lan, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}}
			vmi.Spec.Domain.Devices.AutoattachPodInterface = ptr.To(false)
			args := &vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs
			*args = strings.Replace(*args, "dhcp=1", fmt.Sprintf("gip=192.168.77.%d/24", i), 1)
		})))
	}
	for _, s := range guests {
		s.plugs()
	}
	out, err := node.Command(t.Context(), "ip", "addr", "add", "192.168.77.254/24", "dev", "br-lan").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, s := range guests {
		s.awaitRunning("")
		must(t, refcluster.Await(t.Context(), patience, "the guest to answer", func(ctx context.Context) error {
			asking, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			said, err := node.Command(asking, "busybox", "wget", "-q", "-O", "-", fmt.Sprintf("http://192.168.77.%d:%d/", i+1, port)).CombinedOutput()
			if err == nil && !strings.Contains(string(said), "host="+s.key.Name) {
				err = fmt.Errorf("it says %q", said)
			}
			return err
		}))
	}
}

// defineLAN defines network attachments, as multus does, and creates one.
func defineLAN(t *testing.T) {
	t.Helper()
	c := cluster(t)
	const group, kind = "k8s.cni.cncf.io", "NetworkAttachmentDefinition"
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "network-attachment-definitions." + group}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "network-attachment-definitions", Singular: "network-attachment-definition", Kind: kind},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}}}},
	}}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	must(t, err)
	delete(content, "status")
	definition := &unstructured.Unstructured{Object: content}
	definition.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	must(t, c.Client.Create(t.Context(), definition))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), definition)) })
	attachment := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": lanConfig}}}
	attachment.SetAPIVersion(group + "/v1")
	attachment.SetKind(kind)
	attachment.SetNamespace(namespace)
	attachment.SetName(lan)
	must(t, refcluster.Await(t.Context(), patience, "attachments to be served", func(ctx context.Context) error {
		return client.IgnoreAlreadyExists(c.Client.Create(ctx, attachment.DeepCopy()))
	}))
}

const lanConfig = `{"cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "br-lan", "ipam": {}}`

// plugs connects the launcher's Pod to the secondary network, as multus would before the Pod's containers start.
func (s *scene) plugs() {
	s.Helper()
	var pod *corev1.Pod
	must(s.T, refcluster.Await(s.Context(), patience, "the launcher to run", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err == nil && (len(pods) == 0 || pods[0].Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("none of %d Pods runs", len(pods))
		}
		if err == nil {
			pod = &pods[0]
		}
		return err
	}))
	if want := pod.Annotations["k8s.v1.cni.cncf.io/networks"]; !strings.Contains(want, lanLink) {
		s.Fatalf("the Pod asks multus for %q", want)
	}
	processes, err := s.c.Processes(s.Context(), pod, "compute")
	must(s.T, err)
	pid := ""
	for line := range strings.Lines(processes[0]) {
		_, _ = fmt.Sscanf(line, "Pid: %s", &pid)
	}
	cmd := s.c.Node(pod.Spec.NodeName).Command(s.Context(), "env", "CNI_COMMAND=ADD", "CNI_CONTAINERID="+string(pod.UID),
		"CNI_NETNS=/proc/"+pid+"/ns/net", "CNI_IFNAME="+lanLink, "CNI_PATH=/usr/lib/cni", "/usr/lib/cni/bridge")
	cmd.Stdin = strings.NewReader(lanConfig)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("CNI: %v: %s", err, out)
	}
}
