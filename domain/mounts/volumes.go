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
	// Pod is the Pod of the guest's launcher; nil means the only one that
	// status.activePods has on this node.
	Pod func(vmi *v1.VirtualMachineInstance) (types.UID, error)
	// Witness is a process of the guest's launcher as well, to make sure that it sees what
	// has propagated to it; nil believes that.
	Witness func(vmi *v1.VirtualMachineInstance) (int, error)
	// User and Group are who shall own device nodes (KubeVirt: 107, qemu).
	User, Group int
}

// ContainerDisk mounts the image of the containerDisk that is the volume of that index.
func (s Volumes) ContainerDisk(_ context.Context, vmi *v1.VirtualMachineInstance, index int) (domain.DiskSource, error) {
	if index < 0 || index >= len(vmi.Spec.Volumes) || vmi.Spec.Volumes[index].ContainerDisk == nil {
		return domain.DiskSource{}, fmt.Errorf("mounts: spec.volumes[%d] is no containerDisk: %w", index, domain.ErrInvalid)
	}
	g, err := s.guest(vmi)
	if err != nil {
		return domain.DiskSource{}, err
	}
	path, err := s.Mounter.ContainerDisk(g, ContainerDisk{Index: index, Path: vmi.Spec.Volumes[index].ContainerDisk.Path})
	if err == nil {
		err = s.arrived(vmi, path)
	}
	return domain.DiskSource{Path: path, Inside: inside(path)}, err
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
	if err == nil {
		err = s.arrived(vmi, p.Path)
	}
	out.Path, out.Inside, out.Block = p.Path, inside(p.Path), v.Block
	return out, err
}

// Retain takes away what [Volumes.Hotplugged] has brought to the guest where this process
// is, but for the volumes of those names.
func (s Volumes) Retain(_ context.Context, uid types.UID, names []string) error {
	return s.Mounter.Retain(uid, names)
}

// Release takes away what was mounted and made for the guest where this process is; a
// launcher's namespace goes with the launcher.
func (s Volumes) Release(_ context.Context, uid types.UID) error {
	return s.Mounter.Release(uid, 0)
}

// guest is the guest with its Pod on this node.
func (s Volumes) guest(vmi *v1.VirtualMachineInstance) (Guest, error) {
	g := Guest{UID: vmi.UID, User: s.User, Group: s.Group}
	find := s.onlyPod
	if s.Pod != nil {
		find = s.Pod
	}
	var err error
	if g.Pod, err = find(vmi); err != nil {
		return g, fmt.Errorf("mounts: Pod of guest %s: %w", vmi.UID, err)
	}
	if s.PID == nil {
		return g, nil
	}
	g.PID, err = process(vmi, s.PID)
	return g, err
}

// onlyPod is the one Pod that the guest has on this node.
func (s Volumes) onlyPod(vmi *v1.VirtualMachineInstance) (types.UID, error) {
	var pods []types.UID
	for pod, node := range vmi.Status.ActivePods {
		if node == s.Node {
			pods = append(pods, pod)
		}
	}
	if len(pods) != 1 {
		return "", fmt.Errorf("it has %d Pods on node %s, not one: %w", len(pods), s.Node, domain.ErrNotReady)
	}
	return pods[0], nil
}

// process is one of the guest's launcher.
func process(vmi *v1.VirtualMachineInstance, find func(*v1.VirtualMachineInstance) (int, error)) (int, error) {
	pid, err := find(vmi)
	if err == nil && pid < 1 {
		err = errors.New("it has no process that is seen here")
	}
	if err != nil {
		return 0, fmt.Errorf("mounts: launcher of guest %s: %w: %w", vmi.UID, domain.ErrNotReady, err)
	}
	return pid, nil
}

// arrived makes sure that the launcher sees what was mounted or made at that path: an
// empty file, which is what is below a mount, is a disk as well.
func (s Volumes) arrived(vmi *v1.VirtualMachineInstance, path string) error {
	if s.Witness == nil || s.PID != nil {
		return nil
	}
	pid, err := process(vmi, s.Witness)
	if err != nil {
		return err
	}
	if err := reaches(pid, path); err != nil {
		return fmt.Errorf("mounts: guest %s: %w", vmi.UID, err)
	}
	return nil
}

// inside is where a launcher sees what is at a path of its Pod's folders.
func inside(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Join(launcherFolders, filepath.Base(filepath.Dir(path)), filepath.Base(path))
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
