// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// Images gives access to the content of container images, which on a node with a kubelet its
// container runtime would have pulled.
type Images interface {
	// Extract writes the file at path inside the image to the file dst, which does not exist yet or
	// is replaced as a whole. The error wraps fs.ErrNotExist if the image, or the path in it, does
	// not exist.
	Extract(ctx context.Context, image, path, dst string) error
	// List returns the files directly in a directory of the image, as paths in the image.
	List(ctx context.Context, image, dir string) ([]string, error)
}

// Claim is the location of a PersistentVolumeClaim's data on the node.
type Claim struct {
	// Path is a directory (Filesystem mode) or a device (Block mode).
	Path string
	// Block is the claim's volume mode.
	Block bool
	// Shared reports that every node has the same data (ReadWriteMany).
	Shared bool
	// Bytes is the capacity.
	Bytes int64
}

// Claims locates the data of PersistentVolumeClaims, which a kubelet would have mounted.
type Claims interface {
	// Locate returns the location of the claim's data. The error names the claim and what is
	// missing.
	Locate(ctx context.Context, namespace, name string) (Claim, error)
}

// Emulation reports whether the cluster allows software emulation (KubeVirt:
// configuration.developerConfiguration.useEmulation).
type Emulation func(ctx context.Context) (bool, error)

// Settings returns the KubeVirt object of the cluster; nil if there is none, which means KubeVirt's
// defaults.
type Settings func(ctx context.Context) (*v1.KubeVirt, error)

// Workspace prepares the files of VMIs on one node. Every VMI has a directory of its own, named by
// its UID, under Root. Preparing is idempotent. Safe for concurrent use for different VMIs.
type Workspace struct {
	// Root is the directory of the VMIs' files. It must have the same path on every node of the
	// cluster, and be private to the node.
	Root string
	// Images and Claims give access to the sources of disks.
	Images Images
	Claims Claims
	// Objects gives access to ConfigMaps and Secrets; nil refuses VMIs that need them.
	Objects Objects
	// Bridge is the host bridge to which VMI interfaces are connected.
	Bridge string
	// AllowEmulation is called when KVM is not usable; nil means not allowed.
	AllowEmulation Emulation
	// Settings returns the cluster's KubeVirt object, for the settings of all VMIs; nil means
	// KubeVirt's defaults. It is called in every pass.
	Settings Settings
	// FirmwareDirs are the directories searched for UEFI images, in order of preference. Nil means
	// the directories of KubeVirt's launcher, Fedora and Debian.
	FirmwareDirs []string
	// DedicatedCPUs is called for VMIs with dedicated CPUs; nil means that the node has none.
	DedicatedCPUs DedicatedCPUs
	// HostDevices is called for every VMI; nil means that the node has none for them.
	HostDevices HostDevices
	// Volumes gives access to disks that Pods hold for VMIs: hotplugged volumes, and, without
	// Images, images. Nil means that images come from Images and hotplugged volumes from Claims.
	Volumes Volumes
	// Pods reaches launcher Pods, each with the hypervisor of one VMI: its files are put there, and
	// claims and images are those of the Pod. Nil means that the hypervisor sees Root, and the
	// node's other files, at the same paths.
	Pods Pods
	// Devices lets guests open their devices; nil means that access is not restricted.
	Devices Devices
	// Networks prepares VMI networks; nil means that the hypervisor connects all of them to Bridge,
	// which exists.
	Networks Networks

	owners owners
}

// guestsDir is the folder of all VMIs below Root.
const guestsDir = "guests"

// Dir returns the directory of a VMI.
func (w *Workspace) Dir(uid types.UID) string {
	return filepath.Join(w.Root, guestsDir, string(uid))
}

// fitUID matches UIDs that are safe as a file name: they contain no path.
var fitUID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

func checkUID(uid types.UID) error {
	if fitUID.MatchString(string(uid)) {
		return nil
	}
	return fmt.Errorf("workspace: metadata.uid: Invalid value: %q cannot name a directory; store the object in the API server first", uid)
}

// Prepare prepares the VMI's files and returns the node's facts. The error is a *convert.Error if
// the object, not the node, is the cause.
func (w *Workspace) Prepare(ctx context.Context, vmi *v1.VirtualMachineInstance, host domain.Host) (convert.Facts, error) {
	f := convert.Facts{
		Arch: host.Arch, Emulator: host.Emulator,
		Bridges: map[string]string{}, Disks: map[string]convert.DiskSource{},
	}
	err := checkUID(vmi.UID)
	if err != nil {
		return f, err
	}
	if f.Emulation, err = w.emulation(ctx, host); err != nil {
		return f, err
	}
	if err := (nodeFacts{w}).describe(ctx, vmi, host, &f); err != nil {
		return f, err
	}
	// Before any path that the VMI's author chose is opened.
	if err := convert.Allowed(vmi, f.Cluster); err != nil {
		return f, err
	}
	if err := w.owners.note(w.Root, vmi); err != nil {
		return f, err
	}
	if f.Dir, err = (visibleDir{w.Pods, w.Dir(vmi.UID), vmi}).create(ctx); err != nil {
		return f, err
	}
	if err := (attached{w}).networks(ctx, vmi, &f); err != nil {
		return f, err
	}
	if err := (attached{w}).hostDevices(vmi, &f); err != nil {
		return f, err
	}
	if f.Kernel, f.Initrd, err = w.bootFiles(vmi).kernel(ctx); err != nil {
		return f, err
	}
	err = w.volumes(ctx, vmi, &f)
	return f, err
}

// Remove deletes the VMI's files. A VMI without files is a success.
func (w *Workspace) Remove(uid types.UID) error {
	if uid == "" {
		return nil
	}
	if err := checkUID(uid); err != nil {
		return err
	}
	if err := os.RemoveAll(w.Dir(uid)); err != nil {
		return fmt.Errorf("workspace: remove the files of VMI %s: %w", uid, err)
	}
	return w.owners.forget(w.Root, uid)
}

// Clear releases what other parts of the node hold for the VMI, and deletes its files. A VMI
// without any is a success.
func (w *Workspace) Clear(ctx context.Context, uid types.UID) error {
	if uid == "" {
		return nil
	}
	if err := checkUID(uid); err != nil {
		return err
	}
	if err := (attached{w}).release(ctx, uid); err != nil {
		return err
	}
	return w.Remove(uid)
}

// Owners returns the VMIs that have files on the node, those of earlier processes included: by UID,
// the name of the object.
func (w *Workspace) Owners() (map[types.UID]types.NamespacedName, error) {
	return w.owners.all(w.Root)
}

func (w *Workspace) emulation(ctx context.Context, host domain.Host) (bool, error) {
	allowed := false
	if !host.KVM && w.AllowEmulation != nil {
		var err error
		if allowed, err = w.AllowEmulation(ctx); err != nil {
			return false, err
		}
	}
	return convert.EmulationFor(host, allowed)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func objectName(vmi *v1.VirtualMachineInstance) string {
	return "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name
}
