// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// diskImage is the name of a disk inside a claim in Filesystem mode.
const diskImage = "disk.img"

// containerDiskDir is the directory of the one disk in a containerDisk image.
const containerDiskDir = "/disk"

// volume is one volume of a VMI while its data is located.
type volume struct {
	*v1.Volume
	vmi   *v1.VirtualMachineInstance
	index int
	dir   string
	pods  Pods // nil unless the disks are in launcher Pods
}

// fault builds the error for a field below this volume.
func (v volume) fault(field, reason, remedy string, err error) error {
	return &convert.Error{
		Object: objectName(v.vmi), Field: fmt.Sprintf("spec.volumes[%d].%s", v.index, field),
		Reason: reason, Remedy: remedy, Err: err,
	}
}

// file is a file of the volume in the VMI's directory. It is named by the volume's name, because
// the index changes when a volume is added or removed.
func (v volume) file(suffix string) string {
	return filepath.Join(v.dir, "volume-"+v.Name+suffix)
}

// blame builds errors for one field below this volume.
func (v volume) blame(field string) blame {
	return func(reason, remedy string, err error) error { return v.fault(field, reason, remedy, err) }
}

// isDisk reports whether the VMI has a disk on the volume.
func (v volume) isDisk() bool {
	return slices.ContainsFunc(v.vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == v.Name })
}

// isDirectory reports whether the VMI shares the volume as a directory and has no disk on it.
func (v volume) isDirectory() bool {
	return !v.isDisk() && slices.ContainsFunc(v.vmi.Spec.Domain.Devices.Filesystems, func(f v1.Filesystem) bool { return f.Name == v.Name })
}

// check refuses a name that cannot be part of a file name.
func (v volume) check() error {
	if errs := validation.IsDNS1123Label(v.Name); len(errs) > 0 {
		return v.fault("name", fmt.Sprintf("Invalid value: %q: %s", v.Name, errs[0]), "choose another name", domain.ErrInvalid)
	}
	return nil
}

// ran reports whether the VMI has been started on the volume: data it shares with other nodes is
// then there, or is not shared.
func (v volume) ran() bool {
	return v.vmi.Status.Phase == v1.Running && !v.replacement()
}

// image makes sure that the disk of the volume is a regular file of its hypervisor, and creates one
// of that size if there is none yet. A link is not followed: a tenant with write access to the
// folder could point it to any file of the node.
func (v volume) image(ctx context.Context, field string, src *convert.DiskSource, bytes int64) error {
	f, err := v.open(ctx, src)
	switch {
	case errors.Is(err, errNotRegular):
		return v.fault(field, fmt.Sprintf("%q is not a regular file", src.Path), "replace it with the disk itself", nil)
	case err == nil:
		if err := errors.Join(v.give(src, f), f.Close()); err != nil {
			return v.fault(field, "cannot give the disk to the launcher", "check the owner of the disk, and its storage", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return v.fault(field, "cannot inspect the disk", "check its directory on the node", err)
	case src.Shared && v.ran():
		return v.fault(field, fmt.Sprintf("%q is declared as shared by all nodes, but does not exist on this node", src.Path),
			"mount the same file system on every node", nil)
	}
	if err := v.sparse(ctx, src, bytes); err != nil {
		return v.fault(field, "cannot create the disk", "check capacity and directory", err)
	}
	return nil
}

// kinds are the kinds of volumes and the functions that locate, or make, their data: the first that
// applies counts. Others need no file here; conversion names the field if the VMI has a disk on
// one.
var kinds = []struct {
	applies func(*v1.Volume) bool
	locate  func(context.Context, *Workspace, volume) (convert.DiskSource, error)
}{
	{func(v *v1.Volume) bool { return v.HostDisk != nil }, alone(hostDisk)},
	{func(v *v1.Volume) bool { return v.PersistentVolumeClaim != nil }, func(ctx context.Context, w *Workspace, v volume) (convert.DiskSource, error) {
		return claimDisks{w.Claims}.writable(ctx, v, "persistentVolumeClaim.claimName", v.PersistentVolumeClaim.ClaimName)
	}},
	{func(v *v1.Volume) bool { return v.DataVolume != nil }, func(ctx context.Context, w *Workspace, v volume) (convert.DiskSource, error) {
		return claimDisks{w.Claims}.writable(ctx, v, "dataVolume.name", v.DataVolume.Name)
	}},
	{func(v *v1.Volume) bool { return v.Ephemeral != nil }, func(ctx context.Context, w *Workspace, v volume) (convert.DiskSource, error) {
		return claimDisks{w.Claims}.ephemeral(ctx, v)
	}},
	{func(v *v1.Volume) bool { return v.ContainerDisk != nil }, func(ctx context.Context, w *Workspace, v volume) (convert.DiskSource, error) {
		return imageDisks{w.Images, w.Volumes, w.Pods}.containerDisk(ctx, v)
	}},
	{func(v *v1.Volume) bool { return v.EmptyDisk != nil }, alone(emptyDisk)},
	{func(v *v1.Volume) bool { return v.CloudInitNoCloud != nil }, generates(generated.noCloud)},
	{func(v *v1.Volume) bool { return v.CloudInitConfigDrive != nil }, generates(generated.configDrive)},
	{func(v *v1.Volume) bool { return v.ConfigMap != nil }, generates(generated.configMap)},
	{func(v *v1.Volume) bool { return v.Secret != nil }, generates(generated.secret)},
	{func(v *v1.Volume) bool { return v.DownwardAPI != nil }, generates(generated.downwardAPI)},
	{func(v *v1.Volume) bool { return v.Sysprep != nil }, generates(generated.sysprep)},
	{func(v *v1.Volume) bool { return v.ServiceAccount != nil }, generates(generated.serviceAccount)},
	{func(v *v1.Volume) bool { return v.DownwardMetrics != nil }, generates(generated.downwardMetrics)},
}

// alone is for volumes that need nothing of the workspace.
func alone(by func(context.Context, volume) (convert.DiskSource, error)) func(context.Context, *Workspace, volume) (convert.DiskSource, error) {
	return func(ctx context.Context, _ *Workspace, v volume) (convert.DiskSource, error) { return by(ctx, v) }
}

func generates(by func(generated, context.Context, volume) (convert.DiskSource, error)) func(context.Context, *Workspace, volume) (convert.DiskSource, error) {
	return func(ctx context.Context, w *Workspace, v volume) (convert.DiskSource, error) {
		return by(generated{w}, ctx, v)
	}
}

// volumes prepares the data of all volumes, and the other files the guest reads when it boots, and
// adds their paths to the facts.
func (w *Workspace) volumes(ctx context.Context, vmi *v1.VirtualMachineInstance, f *convert.Facts) error {
	for i := range vmi.Spec.Volumes {
		v := volume{vmi: vmi, index: i, Volume: &vmi.Spec.Volumes[i], dir: w.Dir(vmi.UID), pods: w.Pods}
		src, err := w.volume(ctx, v, f)
		if err != nil {
			return err
		}
		if src.Path != "" {
			f.Disks[v.Name] = src
		}
		dir, err := generated{w}.tables(ctx, v)
		if err != nil {
			return err
		}
		if dir != "" {
			if f.SecretDirs == nil {
				f.SecretDirs = map[string]string{}
			}
			f.SecretDirs[v.Name] = dir
		}
	}
	data, err := ignition(vmi, w.Dir(vmi.UID))
	if err != nil || data == "" {
		return err
	}
	if f.Ignition, err = (visibleDir{w.Pods, w.Dir(vmi.UID), vmi}).publish(ctx, data); err != nil {
		return fmt.Errorf("workspace: data for Ignition: %w", err)
	}
	return nil
}

// volume locates, or makes, the data of a volume and examines its capabilities. A volume that needs
// no file here, or not yet, has no path.
func (w *Workspace) volume(ctx context.Context, v volume, f *convert.Facts) (convert.DiskSource, error) {
	if err := v.check(); err != nil || v.isDirectory() {
		return convert.DiskSource{}, err
	}
	if !convert.Plugged(v.vmi, v.Volume) {
		return w.carried(ctx, v, f), nil
	}
	if w.Volumes != nil && v.attached() {
		return attached{w}.hotplugged(ctx, v)
	}
	for _, k := range kinds {
		if !k.applies(v.Volume) {
			continue
		}
		src, err := k.locate(ctx, w, v)
		if err == nil && src.Path != "" {
			err = published(ctx, v, &src)
		}
		if err == nil && src.Path != "" {
			err = v.examine(ctx, &src)
		}
		return src, err
	}
	return convert.DiskSource{}, nil
}

// carried locates a hotplugged volume that is not attached to the domain yet. That it is missing
// although a Pod carries it becomes a fact: the kubelet has mounted volumes before their Pod runs.
func (w *Workspace) carried(ctx context.Context, v volume, f *convert.Facts) convert.DiskSource {
	src, err := w.arrived(ctx, v)
	if err == nil {
		return src
	}
	if slices.ContainsFunc(v.vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == v.Name && s.HotplugVolume != nil && s.HotplugVolume.AttachPodUID != ""
	}) {
		if f.Missing == nil {
			f.Missing = map[string]string{}
		}
		f.Missing[v.Name] = err.Error()
	}
	return convert.DiskSource{}
}

// arrived locates a hotplugged volume that is on the node and not attached to the domain yet. It
// changes nothing. A volume that is not on the node has no path.
func (w *Workspace) arrived(ctx context.Context, v volume) (convert.DiskSource, error) {
	name := volumeclaim.Of(v.Volume)
	if name == "" || !v.attached() {
		return convert.DiskSource{}, nil
	}
	if w.Volumes != nil {
		return attached{w}.hotplugged(ctx, v)
	}
	c, err := claimDisks{w.Claims}.locate(ctx, v, "", name)
	src := v.claimAt(c, diskImage)
	if err == nil {
		_, err = v.present(ctx, "", &src)
	}
	return src, err
}

// attached reports whether a Pod on the node carries the hotplugged volume.
func (v volume) attached() bool {
	return slices.ContainsFunc(v.vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == v.Name && s.HotplugVolume != nil &&
			(s.Phase == v1.HotplugVolumeAttachedToNode || s.HotplugVolume.AttachPodUID != "")
	})
}

// hostDisk returns the file of the node, and creates it where the VMI lets it.
func hostDisk(ctx context.Context, v volume) (convert.DiskSource, error) {
	h := v.HostDisk
	if !filepath.IsAbs(h.Path) || filepath.Clean(h.Path) != h.Path {
		return convert.DiskSource{}, v.fault("hostDisk.path", fmt.Sprintf("Invalid value: %q is not an absolute, clean path", h.Path),
			"set the full path of the disk file on the node", nil)
	}
	src := v.claimAt(Claim{Path: filepath.Dir(h.Path), Shared: isSet(h.Shared)}, filepath.Base(h.Path))
	if h.Type != v1.HostDiskExistsOrCreate {
		f, err := v.open(ctx, &src)
		if errors.Is(err, fs.ErrNotExist) {
			return src, v.fault("hostDisk.path", fmt.Sprintf("%q does not exist on the node", h.Path),
				"create it, or use type DiskOrCreate with a capacity", nil)
		}
		if err == nil {
			_ = f.Close() // nothing was written
		}
	}
	return src, v.image(ctx, "hostDisk.path", &src, h.Capacity.Value())
}

// present makes sure that there is a disk, or a device, and returns its size in bytes.
func (v volume) present(ctx context.Context, field string, src *convert.DiskSource) (int64, error) {
	f, err := v.open(ctx, src)
	switch {
	case err != nil && src.Block:
		return 0, v.fault(field, fmt.Sprintf("%q is not a block device", src.Path), "attach the volume to the node", err)
	case errors.Is(err, errNotRegular):
		return 0, v.fault(field, fmt.Sprintf("%q is not a regular file", src.Path), "replace it with the disk itself", nil)
	case err != nil:
		return 0, v.fault(field, fmt.Sprintf("cannot inspect %q", src.Path), "write a disk to the claim first", err)
	}
	defer f.Close()
	if !src.Block {
		if err := v.give(src, f); err != nil {
			return 0, v.fault(field, "cannot give the disk to the launcher", "check the owner of the disk, and its storage", err)
		}
	}
	return lengthOf(f)
}

// emptyDisk makes a disk that is lost when the VMI ends.
func emptyDisk(ctx context.Context, v volume) (convert.DiskSource, error) {
	path := v.file(".qcow2")
	bytes := v.EmptyDisk.Capacity.Value()
	if bytes <= 0 {
		return convert.DiskSource{}, v.fault("emptyDisk.capacity", "Invalid value: must be greater than zero", "set the size of the disk", nil)
	}
	if err := qemuImgCreate(ctx, path, "-f", "qcow2", "", strconv.FormatInt(bytes, 10)); err != nil {
		return convert.DiskSource{}, v.fault("emptyDisk", "cannot create the disk", "check the space on the node", err)
	}
	return convert.DiskSource{Path: path, Format: "qcow2"}, nil
}

// sparse makes a raw disk of that size where there is none yet. It appears under its name as a
// whole, so that a crash leaves no partial disk.
func (v volume) sparse(ctx context.Context, src *convert.DiskSource, bytes int64) error {
	if bytes <= 0 {
		return errors.New("the size of the disk is unknown")
	}
	folder, err := v.folder(ctx, src)
	if err != nil {
		return err
	}
	defer folder.Close()
	return appear(folder, filepath.Base(src.Path), ".new-disk-"+string(v.vmi.UID), func(f *os.File) error {
		if err := f.Truncate(bytes); err != nil {
			return err
		}
		return v.give(src, f)
	})
}

// give makes a disk that is in the launcher Pod its hypervisor's.
func (v volume) give(src *convert.DiskSource, f *os.File) error {
	if !v.inPod(src) {
		return nil
	}
	return v.pods.Give(f)
}
