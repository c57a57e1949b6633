// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// Volumes determines from a VMI what has to be mounted for it, and where. It implements what
// workspace.Workspace needs on nodes where a kubelet runs a Pod for each VMI.
type Volumes struct {
	// Mounter makes the mounts.
	Mounter *Mounter
	// Node is the name of this node.
	Node string
	// PersistentVolume returns the name of the volume to which a claim is bound, which the kubelet
	// uses as directory name. If nil, a Pod can have only one volume of each mode.
	PersistentVolume func(ctx context.Context, namespace, claim string) (string, error)
	// HostPath returns the folder on the node of a PersistentVolume of type hostPath, empty for
	// others. If nil, such volumes are not found.
	HostPath func(ctx context.Context, volume string) (string, error)
	// PID returns a process of the launcher, whose mount namespace receives the mounts. If nil, the
	// volumes of its Pod must propagate them, see [Guest].
	PID func(vmi *v1.VirtualMachineInstance) (int, error)
	// Pod returns the UID of the launcher Pod. If nil, it is the only one on this node in
	// status.activePods.
	Pod func(vmi *v1.VirtualMachineInstance) (types.UID, error)
	// Witness also returns a process of the launcher, to verify that mounts have propagated to it.
	// If nil, that is not verified.
	Witness func(vmi *v1.VirtualMachineInstance) (int, error)
	// User and Group own the device nodes (KubeVirt: 107, qemu).
	User, Group int
}

// ContainerDisk mounts the image of the containerDisk volume with the given index.
func (s Volumes) ContainerDisk(_ context.Context, vmi *v1.VirtualMachineInstance, index int) (convert.DiskSource, error) {
	if index < 0 || index >= len(vmi.Spec.Volumes) || vmi.Spec.Volumes[index].ContainerDisk == nil {
		return convert.DiskSource{}, fmt.Errorf("mounts: spec.volumes[%d] is not a containerDisk: %w", index, domain.ErrInvalid)
	}
	g, err := s.guest(vmi)
	if err != nil {
		return convert.DiskSource{}, err
	}
	path, err := s.Mounter.ContainerDisk(g, ContainerDisk{Index: index, Path: vmi.Spec.Volumes[index].ContainerDisk.Path})
	if err == nil {
		err = s.arrived(vmi, path)
	}
	return convert.DiskSource{Path: path, Inside: inside(path)}, err
}

// Hotplugged makes a volume available to the guest that an attachment Pod carries to the node.
func (s Volumes) Hotplugged(ctx context.Context, vmi *v1.VirtualMachineInstance, volume *v1.Volume) (convert.DiskSource, error) {
	g, err := s.guest(vmi)
	if err != nil {
		return convert.DiskSource{}, err
	}
	v := Volume{Name: volume.Name, Carrier: s.carrier(vmi, volume.Name)}
	if v.Carrier == "" {
		return convert.DiskSource{}, fmt.Errorf("mounts: no Pod carries volume %q to node %s yet: %w", v.Name, s.Node, domain.ErrNotReady)
	}
	out := convert.DiskSource{Format: "raw"}
	for _, st := range vmi.Status.VolumeStatus {
		if info := st.PersistentVolumeClaimInfo; st.Name == v.Name && info != nil {
			v.Block = info.VolumeMode != nil && *info.VolumeMode == corev1.PersistentVolumeBlock
			out.Shared = slices.Contains(info.AccessModes, corev1.ReadWriteMany)
		}
	}
	if claim := volumeclaim.Of(volume); claim != "" && s.PersistentVolume != nil {
		if v.PersistentVolume, err = s.PersistentVolume(ctx, vmi.Namespace, claim); err != nil {
			return convert.DiskSource{}, fmt.Errorf("mounts: looking up the PersistentVolume of volume %q: %w", v.Name, err)
		}
	}
	p, err := s.plug(ctx, g, v)
	if err == nil {
		err = s.arrived(vmi, p.Path)
	}
	out.Path, out.Inside, out.Block = p.Path, inside(p.Path), v.Block
	return out, err
}

// plug makes the volume available, wherever the kubelet has it.
func (s Volumes) plug(ctx context.Context, g Guest, v Volume) (Plugged, error) {
	p, err := s.Mounter.Plug(g, v)
	if !errors.Is(err, domain.ErrNotReady) || v.Block || v.PersistentVolume == "" || s.HostPath == nil {
		return p, err
	}
	folder, readErr := s.HostPath(ctx, v.PersistentVolume)
	if readErr != nil {
		return p, fmt.Errorf("mounts: looking up PersistentVolume %s: %w", v.PersistentVolume, readErr)
	}
	if folder == "" {
		return p, err
	}
	v.HostPath = folder
	return s.Mounter.Plug(g, v)
}

// Retain removes the volumes that [Volumes.Hotplugged] made available in this process's mount
// namespace, except those with the given names.
func (s Volumes) Retain(_ context.Context, uid types.UID, names []string) error {
	return s.Mounter.Retain(uid, names)
}

// Release removes everything that was mounted and created for the VMI in this process's mount
// namespace; the namespace of a launcher ends with the launcher.
func (s Volumes) Release(_ context.Context, uid types.UID) error {
	return s.Mounter.Release(uid, 0)
}

// guest returns the VMI with its Pod on this node.
func (s Volumes) guest(vmi *v1.VirtualMachineInstance) (Guest, error) {
	g := Guest{UID: vmi.UID, User: s.User, Group: s.Group}
	find := s.onlyPod
	if s.Pod != nil {
		find = s.Pod
	}
	var err error
	if g.Pod, err = find(vmi); err != nil {
		return g, fmt.Errorf("mounts: Pod of VMI %s: %w", vmi.UID, err)
	}
	if s.PID == nil {
		return g, nil
	}
	g.PID, err = process(vmi, s.PID)
	return g, err
}

// onlyPod returns the single Pod of the VMI on this node.
func (s Volumes) onlyPod(vmi *v1.VirtualMachineInstance) (types.UID, error) {
	var pods []types.UID
	for pod, node := range vmi.Status.ActivePods {
		if node == s.Node {
			pods = append(pods, pod)
		}
	}
	if len(pods) != 1 {
		return "", fmt.Errorf("%d Pods on node %s, want one: %w", len(pods), s.Node, domain.ErrNotReady)
	}
	return pods[0], nil
}

// process returns a process of the launcher.
func process(vmi *v1.VirtualMachineInstance, find func(*v1.VirtualMachineInstance) (int, error)) (int, error) {
	pid, err := find(vmi)
	if err == nil && pid < 1 {
		err = errors.New("no process is visible in this PID namespace")
	}
	if err != nil {
		return 0, fmt.Errorf("mounts: launcher of VMI %s: %w: %w", vmi.UID, domain.ErrNotReady, err)
	}
	return pid, nil
}

// arrived verifies that the launcher sees the mount or device node at path: the empty file below a
// mount would be a valid disk as well.
func (s Volumes) arrived(vmi *v1.VirtualMachineInstance, path string) error {
	if s.Witness == nil || s.PID != nil {
		return nil
	}
	pid, err := process(vmi, s.Witness)
	if err != nil {
		return err
	}
	if err := reaches(pid, path); err != nil {
		return fmt.Errorf("mounts: VMI %s: %w", vmi.UID, err)
	}
	return nil
}

// inside returns the path in the launcher of a path in its Pod's directories.
func inside(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Join(launcherFolders, filepath.Base(filepath.Dir(path)), filepath.Base(path))
}

// carrier returns the UID of the attachment Pod of a volume on this node. The target of a migration
// has its own.
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
