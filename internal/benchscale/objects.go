// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/template"
)

const (
	// namespace has all guests.
	namespace = "scale"
	// launcherImage is the image of their Pods.
	launcherImage = "example.test/virt-launcher:1"
	// creators is how many objects are created at the same time.
	creators = 20
	// cpuModel is what the guests ask for, and all nodes have.
	cpuModel = "qemu64"
	// nonRoot is the user of the guests.
	nonRoot = 107
)

func guestName(i int) string { return fmt.Sprintf("guest-%d", i) }

// newGuest is a guest as KubeVirt's webhooks leave it.
func newGuest(i int) *v1.VirtualMachineInstance {
	memory := resource.MustParse("64Mi")
	g := &v1.VirtualMachineInstance{}
	g.Namespace, g.Name = namespace, guestName(i)
	g.Labels = map[string]string{"guest": g.Name}
	g.Annotations = map[string]string{"kubevirt.io/nonroot": ""}
	g.Finalizers = []string{v1.VirtualMachineInstanceFinalizer}
	g.Spec = v1.VirtualMachineInstanceSpec{
		Domain: v1.DomainSpec{
			CPU: &v1.CPU{Model: cpuModel, Cores: 1, Sockets: 1, Threads: 1}, Memory: &v1.Memory{Guest: &memory}, Machine: &v1.Machine{Type: "q35"},
			Devices: v1.Devices{
				Disks: []v1.Disk{{Name: "disk", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
				Interfaces: []v1.Interface{{
					Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
				}},
			},
		},
		Networks: []v1.Network{*v1.DefaultPodNetwork()},
		Volumes: []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{
			ContainerDisk: &v1.ContainerDiskSource{Image: "example.test/disk:1", ImagePullPolicy: corev1.PullIfNotPresent},
		}}},
	}
	g.Status.Phase, g.Status.RuntimeUser = v1.Pending, nonRoot
	return g
}

// atOnce calls do for each number below n, as many at a time as there are creators.
func atOnce(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// createAll creates n guests, or what leads to them, and notes when each creation was begun.
func (b *bench) createAll(ctx context.Context, n int, create func(int) client.Object) error {
	return atOnce(ctx, n, func(ctx context.Context, i int) error {
		b.rec.note(guestCreated, guestName(i), time.Now())
		return b.client.Create(ctx, create(i))
	})
}

// createMoves creates migrations of the first n guests and notes when each creation was begun.
func (b *bench) createMoves(ctx context.Context, n int, prefix string) error {
	return atOnce(ctx, n, func(ctx context.Context, i int) error {
		m := &v1.VirtualMachineInstanceMigration{}
		m.Namespace, m.Name, m.Spec.VMIName = namespace, prefix+guestName(i), guestName(i)
		begun := time.Now()
		if err := b.client.Create(ctx, m); err != nil {
			return err
		}
		b.rec.note(moveCreated, string(m.UID), begun)
		return nil
	})
}

// createWithPod creates a VMI, and with c its Pod, on the VMI's node if it has one.
func (b *bench) createWithPod(ctx context.Context, c client.Client, g *v1.VirtualMachineInstance) (*corev1.Pod, error) {
	if err := b.client.Create(ctx, g); err != nil {
		return nil, err
	}
	pod, err := template.Default().Launcher(template.Input{VMI: g, Config: template.Config{LauncherImage: launcherImage}})
	if err != nil {
		return nil, err
	}
	pod.Spec.NodeName = g.Status.NodeName
	return pod, c.Create(ctx, pod)
}

// createResting creates a VMI that runs on the node, at rest: no component has anything to do for it.
func (b *bench) createResting(ctx context.Context, i int, node string) error {
	g := newGuest(i)
	g.Labels[v1.NodeNameLabel] = node
	g.Status.Phase, g.Status.NodeName, g.Status.SelinuxContext = v1.Running, node, "none"
	g.Status.Conditions = []v1.VirtualMachineInstanceCondition{
		{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
		{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}
	if err := handoff.Put(g, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: node}); err != nil {
		return err
	}
	pod, err := b.createWithPod(ctx, b.client, g)
	if err != nil {
		return err
	}
	// The gate is open, as it is once a guest has been seen to run.
	was := pod.DeepCopy()
	for _, gate := range pod.Spec.ReadinessGates {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: gate.ConditionType, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		})
	}
	return b.client.Status().Patch(ctx, pod, client.StrategicMergeFrom(was))
}

// limitMoves says how many migrations may act in the cluster, and how many may leave one node.
func (b *bench) limitMoves(ctx context.Context, inCluster, fromNode uint32) error {
	kv := &v1.KubeVirt{}
	kv.Namespace, kv.Name = namespace, "kubevirt"
	err := b.client.Get(ctx, client.ObjectKeyFromObject(kv), kv)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{
		ParallelMigrationsPerCluster: &inCluster, ParallelOutboundMigrationsPerNode: &fromNode,
	}
	if err != nil {
		return b.client.Create(ctx, kv)
	}
	return b.client.Update(ctx, kv)
}
