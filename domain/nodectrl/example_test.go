// SPDX-License-Identifier: Apache-2.0

package nodectrl_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/nodectrl"
)

// An agent that keeps the labels of nodes itself computes them from libvirt's descriptions, and
// removes those of the same kind that no longer hold.
func ExampleLabels() {
	facts := nodectrl.Facts{Realtime: true, Capabilities: domain.Capabilities{
		Host: `<capabilities><host><cpu><counter name='tsc' frequency='2000000000' scaling='yes'/></cpu></host></capabilities>`,
		Domain: `<domainCapabilities><arch>x86_64</arch><cpu><mode name='custom' supported='yes'>
			<model usable='yes'>EPYC</model><model usable='no'>Icelake-Server</model><model usable='yes'>Penryn</model>
			</mode></cpu></domainCapabilities>`,
	}}
	labels, err := nodectrl.Labels(facts, nodectrl.LabelConfig{Obsolete: []string{"Penryn"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		fmt.Printf("%s=%s\n", key, labels[key])
	}
	for _, key := range []string{"cpu-model.node.kubevirt.io/Penryn", "topology.kubernetes.io/zone"} {
		_, holds := labels[key]
		fmt.Println("remove", key, nodectrl.Owned(key) && !holds)
	}
	// Output:
	// cpu-model-migration.node.kubevirt.io/EPYC=true
	// cpu-model-migration.node.kubevirt.io/Icelake-Server=true
	// cpu-model.node.kubevirt.io/EPYC=true
	// cpu-timer.node.kubevirt.io/tsc-frequency=2000000000
	// cpu-timer.node.kubevirt.io/tsc-scalable=true
	// kubevirt.io/realtime=
	// remove cpu-model.node.kubevirt.io/Penryn true
	// remove topology.kubernetes.io/zone false
}

// In a cluster with a KubeVirt object, that says which CPU models are obsolete.
func ExampleLabelConfigOf() {
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.ObsoleteCPUModels = map[string]bool{"Penryn": true, "Conroe": false}
	fmt.Println(nodectrl.LabelConfigOf(kv).Obsolete)
	// Output: [Penryn]
}

// deviceNodes are device nodes without which no VMI can start.
type deviceNodes []string

var _ nodectrl.Readiness = deviceNodes{}

func (d deviceNodes) Ready() bool {
	return !slices.ContainsFunc(d, func(path string) bool {
		_, err := os.Stat(path)
		return err != nil
	})
}

// The node is schedulable until the agent ends.
func ExampleHeartbeat() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := fake.NewClientBuilder().WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}).Build()
	nodes, err := c.Watch(ctx, &corev1.NodeList{})
	if err != nil {
		fmt.Println(err)
		return
	}
	heartbeat := &nodectrl.Heartbeat{
		NodeName: "node-a", Client: c, Hypervisor: memory.New("node-a"), Devices: deviceNodes{"/dev/null"},
		Clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
	}
	ended := make(chan error)
	go func() { ended <- heartbeat.Start(ctx) }() // or mgr.Add(heartbeat)
	for range 2 {
		node, _ := (<-nodes.ResultChan()).Object.(*corev1.Node)
		fmt.Println(node.Labels[v1.NodeSchedulable], node.Annotations[v1.VirtHandlerHeartbeat])
		cancel()
	}
	fmt.Println(<-ended)
	// Output:
	// true 2026-01-01T00:00:00Z
	// false 2026-01-01T00:00:00Z
	// <nil>
}
