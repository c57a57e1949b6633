// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// Volumes finds out of a guest's object what is to be mounted for it, and where. It is
// what domainctrl.Workspace asks where the kubelet runs a Pod for each guest.
type Volumes struct {
	// Mounter mounts.
	Mounter *Mounter
	// Node is the name of this node.
	Node string
	// PersistentVolume names the volume a claim is bound to, by which the kubelet names
	// its folder. Nil allows one volume of each mode in a Pod only.
	PersistentVolume func(ctx context.Context, namespace, claim string) (string, error)
	// PID is a process of the guest's launcher, in whose mount namespace to mount; nil
	// relies on the propagation of its volumes, see [Guest].
	PID func(vmi *v1.VirtualMachineInstance) (int, error)
	// User and Group are who shall own device nodes (KubeVirt: 107, qemu).
	User, Group int
}

// ContainerDisk mounts the image of the containerDisk that is the volume of that index.
func (s Volumes) ContainerDisk(_ context.Context, vmi *v1.VirtualMachineInstance, index int) (string, error) {
	if index < 0 || index >= len(vmi.Spec.Volumes) || vmi.Spec.Volumes[index].ContainerDisk == nil {
		return "", fmt.Errorf("mounts: spec.volumes[%d] is no containerDisk: %w", index, domain.ErrInvalid)
	}
	g, err := s.guest(vmi)
	if err != nil {
		return "", err
	}
	return s.Mounter.ContainerDisk(g, ContainerDisk{Index: index, Path: vmi.Spec.Volumes[index].ContainerDisk.Path})
}

// Hotplugged brings a volume to the guest that another Pod carries to the node.
func (s Volumes) Hotplugged(ctx context.Context, vmi *v1.VirtualMachineInstance, volume *v1.Volume) (domain.DiskSource, error) {
	g, err := s.guest(vmi)
	if err != nil {
		return domain.DiskSource{}, err
	}
	v := Volume{Name: volume.Name, Carrier: s.carrier(vmi, volume.Name)}
	if v.Carrier == "" {
		return domain.DiskSource{}, fmt.Errorf("mounts: no Pod carries volume %q to node %s yet: %w", v.Name, s.Node, domain.ErrNotReady)
	}
	out := domain.DiskSource{Format: "raw"}
	for _, st := range vmi.Status.VolumeStatus {
		if info := st.PersistentVolumeClaimInfo; st.Name == v.Name && info != nil {
			v.Block = info.VolumeMode != nil && *info.VolumeMode == corev1.PersistentVolumeBlock
			out.Shared = slices.Contains(info.AccessModes, corev1.ReadWriteMany)
		}
	}
	if claim := claimOf(volume); claim != "" && s.PersistentVolume != nil {
		if v.PersistentVolume, err = s.PersistentVolume(ctx, vmi.Namespace, claim); err != nil {
			return domain.DiskSource{}, fmt.Errorf("mounts: claim of volume %q: %w", v.Name, err)
		}
	}
	p, err := s.Mounter.Plug(g, v)
	out.Path, out.Block = p.Path, v.Block
	return out, err
}

// Release takes away what was mounted and made for the guest where this process is; a
// launcher's namespace goes with the launcher.
func (s Volumes) Release(_ context.Context, uid types.UID) error {
	return s.Mounter.Release(uid, 0)
}

// guest is the guest with its Pod on this node.
func (s Volumes) guest(vmi *v1.VirtualMachineInstance) (Guest, error) {
	g := Guest{UID: vmi.UID, User: s.User, Group: s.Group}
	var pods []types.UID
	for pod, node := range vmi.Status.ActivePods {
		if node == s.Node {
			pods = append(pods, pod)
		}
	}
	if len(pods) != 1 {
		return g, fmt.Errorf("mounts: guest %s has %d Pods on node %s, not one: %w", vmi.UID, len(pods), s.Node, domain.ErrNotReady)
	}
	g.Pod = pods[0]
	if s.PID == nil {
		return g, nil
	}
	pid, err := s.PID(vmi)
	if err == nil && pid < 1 {
		err = errors.New("it has no process")
	}
	if err != nil {
		return g, fmt.Errorf("mounts: launcher of guest %s: %w: %w", vmi.UID, domain.ErrNotReady, err)
	}
	g.PID = pid
	return g, nil
}

// carrier is the Pod that carries a volume to this node. The target of a migration has
// one of its own.
func (s Volumes) carrier(vmi *v1.VirtualMachineInstance, volume string) types.UID {
	m := vmi.Status.MigrationState
	if m != nil && m.TargetNode == s.Node && vmi.Status.NodeName != s.Node && m.TargetAttachmentPodUID != "" {
		return m.TargetAttachmentPodUID
	}
	for _, st := range vmi.Status.VolumeStatus {
		if st.Name == volume && st.HotplugVolume != nil {
			return st.HotplugVolume.AttachPodUID
		}
	}
	return ""
}

func claimOf(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	}
	return ""
}
