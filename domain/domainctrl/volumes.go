// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// diskImage is the name of a guest's disk inside a claim in Filesystem mode.
const diskImage = "disk.img"

// containerDiskDir is where a containerDisk image keeps its one disk.
const containerDiskDir = "/disk"

// volume is one volume of a guest while its data is located.
type volume struct {
	*v1.Volume
	vmi   *v1.VirtualMachineInstance
	index int
	dir   string
}

// fault builds the error for a field below this volume.
func (v volume) fault(field, reason, remedy string, err error) error {
	return &domain.Error{
		Object: objectName(v.vmi), Field: fmt.Sprintf("spec.volumes[%d].%s", v.index, field),
		Reason: reason, Remedy: remedy, Err: err,
	}
}

// file is a file of the volume in the guest's directory. It goes by the volume's
// name, for the place in the list changes when a volume is added or removed.
func (v volume) file(suffix string) string {
	return filepath.Join(v.dir, "volume-"+v.Name+suffix)
}

// blame builds errors for one field below this volume.
func (v volume) blame(field string) blame {
	return func(reason, remedy string, err error) error { return v.fault(field, reason, remedy, err) }
}

// isDisk tells whether the guest has a disk on the volume.
func (v volume) isDisk() bool {
	return slices.ContainsFunc(v.vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == v.Name })
}

// isDirectory tells whether the guest shares the volume as a directory and has no
// disk on it.
func (v volume) isDirectory() bool {
	return !v.isDisk() && slices.ContainsFunc(v.vmi.Spec.Domain.Devices.Filesystems, func(f v1.Filesystem) bool { return f.Name == v.Name })
}

// check refuses a name that could not be part of a file's.
func (v volume) check() error {
	if errs := validation.IsDNS1123Label(v.Name); len(errs) > 0 {
		return v.fault("name", fmt.Sprintf("%q is no volume name: %s", v.Name, errs[0]), "choose another", domain.ErrInvalid)
	}
	return nil
}

// ran tells whether the guest has been started on the volume: what it shares with other
// nodes is then there, or is not shared.
func (v volume) ran() bool {
	return v.vmi.Status.Phase == v1.Running && !v.replacement()
}

// image makes sure that the disk of the volume is a regular file, one of that
// size if there is none yet. A link is not followed: who may write beside the
// disk could let it lead to any file of the node.
func (v volume) image(field, path string, bytes int64, shared bool) error {
	f, err := openDisk(path)
	switch {
	case errors.Is(err, errNotRegular):
		return v.fault(field, fmt.Sprintf("%q is not a regular file", path), "put the disk itself there", nil)
	case err == nil:
		return f.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return v.fault(field, "the disk cannot be looked at", "check its directory on the node", err)
	case shared && v.ran():
		return v.fault(field, fmt.Sprintf("%q is said to be shared by all nodes and is not on this one", path),
			"mount the same file system on every node", nil)
	}
	if err := sparse(path, bytes, string(v.vmi.UID)); err != nil {
		return v.fault(field, "the disk cannot be created", "check capacity and directory", err)
	}
	return nil
}

// kinds are the kinds of volumes and who locates, or makes, their data: the first
// that applies counts. Others need no file here; conversion names the field if the
// guest has a disk on one.
var kinds = []struct {
	applies func(*v1.Volume) bool
	locate  func(context.Context, *Workspace, volume) (domain.DiskSource, error)
}{
	{func(v *v1.Volume) bool { return v.HostDisk != nil }, func(_ context.Context, w *Workspace, v volume) (domain.DiskSource, error) { return w.hostDisk(v) }},
	{func(v *v1.Volume) bool { return v.PersistentVolumeClaim != nil }, func(ctx context.Context, w *Workspace, v volume) (domain.DiskSource, error) {
		return w.claim(ctx, v, "persistentVolumeClaim.claimName", v.PersistentVolumeClaim.ClaimName)
	}},
	{func(v *v1.Volume) bool { return v.DataVolume != nil }, func(ctx context.Context, w *Workspace, v volume) (domain.DiskSource, error) {
		return w.claim(ctx, v, "dataVolume.name", v.DataVolume.Name)
	}},
	{func(v *v1.Volume) bool { return v.Ephemeral != nil }, located((*Workspace).ephemeral)},
	{func(v *v1.Volume) bool { return v.ContainerDisk != nil }, located((*Workspace).containerDisk)},
	{func(v *v1.Volume) bool { return v.EmptyDisk != nil }, located((*Workspace).emptyDisk)},
	{func(v *v1.Volume) bool { return v.CloudInitNoCloud != nil }, located((*Workspace).noCloud)},
	{func(v *v1.Volume) bool { return v.CloudInitConfigDrive != nil }, located((*Workspace).configDrive)},
	{func(v *v1.Volume) bool { return v.ConfigMap != nil }, located((*Workspace).configMap)},
	{func(v *v1.Volume) bool { return v.Secret != nil }, located((*Workspace).secret)},
	{func(v *v1.Volume) bool { return v.DownwardAPI != nil }, located((*Workspace).downwardAPI)},
	{func(v *v1.Volume) bool { return v.Sysprep != nil }, located((*Workspace).sysprep)},
	{func(v *v1.Volume) bool { return v.ServiceAccount != nil }, located((*Workspace).serviceAccount)},
	{func(v *v1.Volume) bool { return v.DownwardMetrics != nil }, located((*Workspace).downwardMetrics)},
}

func located(by func(*Workspace, context.Context, volume) (domain.DiskSource, error)) func(context.Context, *Workspace, volume) (domain.DiskSource, error) {
	return func(ctx context.Context, w *Workspace, v volume) (domain.DiskSource, error) { return by(w, ctx, v) }
}

// volumes puts the data of all volumes in place, and what else the guest reads when it
// boots, and adds where it is to the facts.
func (w *Workspace) volumes(ctx context.Context, vmi *v1.VirtualMachineInstance, f *domain.Facts) error {
	for i := range vmi.Spec.Volumes {
		v := volume{vmi: vmi, index: i, Volume: &vmi.Spec.Volumes[i], dir: f.Dir}
		src, err := w.volume(ctx, v)
		if err != nil {
			return err
		}
		if src.Path != "" {
			f.Disks[v.Name] = src
		}
		dir, err := w.tables(ctx, v)
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
	var err error
	f.Ignition, err = ignition(vmi, f.Dir)
	return err
}

// volume locates, or makes, the data of a volume and looks at what it can do. A
// volume that needs no file here, or not yet, has no path.
func (w *Workspace) volume(ctx context.Context, v volume) (domain.DiskSource, error) {
	if err := v.check(); err != nil || v.isDirectory() {
		return domain.DiskSource{}, err
	}
	if !domain.Plugged(v.vmi, v.Volume) {
		return w.arrived(ctx, v), nil
	}
	if w.Volumes != nil && v.attached() {
		return w.hotplugged(ctx, v)
	}
	for _, k := range kinds {
		if !k.applies(v.Volume) {
			continue
		}
		src, err := k.locate(ctx, w, v)
		if err == nil && src.Path != "" {
			err = v.examine(ctx, &src)
		}
		return src, err
	}
	return domain.DiskSource{}, nil
}

// arrived tells where a hotplugged volume lies that is on the node and not with the
// guest yet. Nothing is made or changed; what cannot be looked at has not arrived,
// and what is wrong with it is said when the guest is to have it.
func (w *Workspace) arrived(ctx context.Context, v volume) domain.DiskSource {
	name := ""
	switch {
	case !v.attached():
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		name = v.DataVolume.Name
	}
	if name == "" {
		return domain.DiskSource{}
	}
	if w.Volumes != nil {
		src, err := w.hotplugged(ctx, v)
		if err != nil {
			return domain.DiskSource{}
		}
		return src
	}
	c, err := w.locate(ctx, v, "", name)
	src := domain.DiskSource{Path: c.Path, Format: "raw", Block: c.Block, Shared: c.Shared}
	switch {
	case err != nil:
	case c.Block:
		_, err = v.device("", src.Path)
	default:
		src.Path = filepath.Join(c.Path, diskImage)
		_, err = v.present("", src.Path)
	}
	if err != nil {
		return domain.DiskSource{}
	}
	return src
}

// attached tells whether a Pod on the node carries the hotplugged volume.
func (v volume) attached() bool {
	return slices.ContainsFunc(v.vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == v.Name && s.HotplugVolume != nil &&
			(s.Phase == v1.HotplugVolumeAttachedToNode || s.HotplugVolume.AttachPodUID != "")
	})
}

func (w *Workspace) hostDisk(v volume) (domain.DiskSource, error) {
	h := v.HostDisk
	if !filepath.IsAbs(h.Path) || filepath.Clean(h.Path) != h.Path {
		return domain.DiskSource{}, v.fault("hostDisk.path", fmt.Sprintf("%q is not an absolute, clean path", h.Path),
			"give the full path of the disk file on the node", nil)
	}
	src := domain.DiskSource{Path: h.Path, Format: "raw", Shared: h.Shared != nil && *h.Shared}
	if h.Type != v1.HostDiskExistsOrCreate && !exists(h.Path) {
		return src, v.fault("hostDisk.path", fmt.Sprintf("%q does not exist on the node", h.Path),
			"create it, or use type DiskOrCreate with a capacity", nil)
	}
	return src, v.image("hostDisk.path", h.Path, h.Capacity.Value(), src.Shared)
}

// locate finds the data of a claim.
func (w *Workspace) locate(ctx context.Context, v volume, field, name string) (Claim, error) {
	if w.Claims == nil {
		return Claim{}, v.fault(field, "claims cannot be used on this node", "configure the node's claims", nil)
	}
	c, err := w.Claims.Locate(ctx, v.vmi.Namespace, name)
	if err != nil {
		return Claim{}, v.fault(field, fmt.Sprintf("the data of claim %q cannot be found on the node", name),
			"bind the claim to a volume this node can reach", err)
	}
	return c, nil
}

func (w *Workspace) claim(ctx context.Context, v volume, field, name string) (domain.DiskSource, error) {
	c, err := w.locate(ctx, v, field, name)
	if err != nil {
		return domain.DiskSource{}, err
	}
	src := domain.DiskSource{Path: c.Path, Format: "raw", Block: c.Block, Shared: c.Shared}
	if c.Block {
		src.Bytes, err = v.device(field, c.Path)
		return src, err
	}
	src.Path = filepath.Join(c.Path, diskImage)
	if err := v.image(field, src.Path, v.usable(c.Bytes), c.Shared); err != nil {
		return src, err
	}
	src.Bytes, err = v.grow(ctx, field, src.Path, c.Bytes)
	return src, err
}

// ephemeral puts a writable overlay over the disk of a claim, which stays as it is.
func (w *Workspace) ephemeral(ctx context.Context, v volume) (domain.DiskSource, error) {
	const field = "ephemeral.persistentVolumeClaim.claimName"
	if v.Ephemeral.PersistentVolumeClaim == nil {
		return domain.DiskSource{}, v.fault("ephemeral", "names no claim", "set persistentVolumeClaim", domain.ErrInvalid)
	}
	c, err := w.locate(ctx, v, field, v.Ephemeral.PersistentVolumeClaim.ClaimName)
	if err != nil {
		return domain.DiskSource{}, err
	}
	base := domain.DiskSource{Path: c.Path, Format: "raw", Block: c.Block, ReadOnly: true, Shared: c.Shared}
	var bytes int64
	if c.Block {
		bytes, err = v.device(field, base.Path)
	} else {
		base.Path = filepath.Join(c.Path, diskImage)
		bytes, err = v.present(field, base.Path)
	}
	if err != nil {
		return domain.DiskSource{}, err
	}
	overlay := v.file(".qcow2")
	if err := overlayOf(ctx, overlay, base, bytes); err != nil {
		return domain.DiskSource{}, v.fault(field, "no overlay can be made for the claim's disk", "check the space on the node", err)
	}
	return domain.DiskSource{Path: overlay, Format: "qcow2", Backing: &base}, nil
}

// present makes sure that there is a disk, and returns how large it is.
func (v volume) present(field, path string) (int64, error) {
	f, err := openDisk(path)
	switch {
	case errors.Is(err, errNotRegular):
		return 0, v.fault(field, fmt.Sprintf("%q is not a regular file", path), "put the disk itself there", nil)
	case err != nil:
		return 0, v.fault(field, fmt.Sprintf("%q cannot be looked at", path), "put a disk into the claim first", err)
	}
	defer f.Close()
	return lengthOf(f)
}

// device makes sure that there is a block device, and returns how large it is.
func (v volume) device(field, path string) (int64, error) {
	f, err := openDevice(path, false)
	if err != nil {
		return 0, v.fault(field, fmt.Sprintf("%q is not a block device", path), "attach the volume to the node", err)
	}
	defer f.Close()
	return lengthOf(f)
}

func (w *Workspace) emptyDisk(ctx context.Context, v volume) (domain.DiskSource, error) {
	path := v.file(".qcow2")
	bytes := v.EmptyDisk.Capacity.Value()
	if bytes <= 0 {
		return domain.DiskSource{}, v.fault("emptyDisk.capacity", "must be greater than zero", "give the size of the disk", nil)
	}
	if err := qemuImgCreate(ctx, path, "-f", "qcow2", "", strconv.FormatInt(bytes, 10)); err != nil {
		return domain.DiskSource{}, v.fault("emptyDisk", "the disk cannot be created", "check the space on the node", err)
	}
	return domain.DiskSource{Path: path, Format: "qcow2"}, nil
}

// sparse makes a raw disk of that size where there is none yet. It appears
// under its name as a whole, so that a crash leaves no half-made disk; what it
// leaves of the maker's is replaced. What others put in the place of either name
// meanwhile is neither written to nor linked.
func sparse(path string, bytes int64, maker string) error {
	if bytes <= 0 {
		return errors.New("the size of the disk is not known")
	}
	folder, err := openFolder(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	dir, tmp := int(folder.Fd()), ".new-disk-"+maker
	if err := unix.Unlinkat(dir, tmp, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := openIn(folder, tmp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(f.Close(), unix.Unlinkat(dir, tmp, 0)) }()
	if err := f.Truncate(bytes); err != nil {
		return err
	}
	// A link, unlike a rename, never replaces a disk somebody made meanwhile.
	err = unix.Linkat(unix.AT_FDCWD, itself(f), dir, filepath.Base(path), unix.AT_SYMLINK_FOLLOW)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
