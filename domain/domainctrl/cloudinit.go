// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

const (
	// noCloudLabel is the volume label by which cloud-init's NoCloud data
	// source finds its disk, filled up with spaces as ECMA-119 has it (8.4.8).
	noCloudLabel = "cidata                          "
	// isoBlock is the logical block size of an ISO 9660 file system.
	isoBlock = 2048
	// isoOverhead is more than the descriptors and tables of such a disk take.
	isoOverhead = 1 << 20
)

// cloudInit makes the NoCloud disk: the same size for the same data on every
// node, so that a migration can copy it.
func (w *Workspace) cloudInit(v volume) (domain.DiskSource, error) {
	src := domain.DiskSource{Path: v.file(".iso"), Format: "raw"}
	if exists(src.Path) {
		return src, nil
	}
	files, err := noCloudFiles(v)
	if err != nil {
		return src, err
	}
	if err := writeISO(src.Path, files); err != nil {
		return src, v.fault("cloudInitNoCloud", "the disk cannot be made", "check the space on the node", err)
	}
	return src, nil
}

// seed is one file of a NoCloud disk.
type seed struct {
	name string
	data []byte
}

func noCloudFiles(v volume) ([]seed, error) {
	c := v.CloudInitNoCloud
	switch {
	case c.UserDataSecretRef != nil:
		return nil, v.fault("cloudInitNoCloud.secretRef", "secrets are not supported yet", "put the data into userData", domain.ErrUnsupported)
	case c.NetworkDataSecretRef != nil:
		return nil, v.fault("cloudInitNoCloud.networkDataSecretRef", "secrets are not supported yet", "put the data into networkData", domain.ErrUnsupported)
	}
	user, err := inline(v, "cloudInitNoCloud.userDataBase64", c.UserData, c.UserDataBase64)
	if err != nil {
		return nil, err
	}
	network, err := inline(v, "cloudInitNoCloud.networkDataBase64", c.NetworkData, c.NetworkDataBase64)
	if err != nil {
		return nil, err
	}
	meta, err := noCloudMeta(v.vmi)
	if err != nil {
		return nil, err
	}
	files := []seed{{"meta-data", meta}, {"user-data", user}}
	if len(network) > 0 {
		files = append(files, seed{"network-config", network})
	}
	return files, nil
}

func inline(v volume, field, plain, encoded string) ([]byte, error) {
	if plain != "" {
		return []byte(plain), nil
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, v.fault(field, "is not base64", "encode the data, or give it as plain text", err)
	}
	return data, nil
}

// noCloudMeta identifies the instance by the guest's UID: cloud-init runs its
// once-per-instance parts again for a new guest only. JSON is valid YAML.
func noCloudMeta(vmi *v1.VirtualMachineInstance) ([]byte, error) {
	hostname := vmi.Spec.Hostname
	if hostname == "" {
		hostname = vmi.Name
	}
	meta, err := json.Marshal(map[string]string{"instance-id": string(vmi.UID), "local-hostname": hostname})
	if err != nil {
		return nil, fmt.Errorf("domainctrl: cloud-init meta-data: %w", err)
	}
	return append(meta, '\n'), nil
}

// writeISO makes an ISO 9660 disk under a temporary name and gives it its own
// when it is complete.
func writeISO(path string, files []seed) (err error) {
	size := int64(isoOverhead)
	for _, f := range files {
		size += (int64(len(f.data))/isoBlock + 1) * isoBlock
	}
	// The names are the same at every attempt: what a crash left is replaced,
	// and an error that is met again reads the same.
	tmp, work := path+".new", path+".d"
	if err := errors.Join(os.RemoveAll(tmp), os.RemoveAll(work), os.Mkdir(work, 0o700)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	disk, err := file.CreateFromPath(tmp, size)
	if err != nil {
		return err
	}
	err = fillISO(disk, size, work, files)
	if err = errors.Join(err, disk.Close()); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return errors.Join(os.Truncate(tmp, size), os.Rename(tmp, path))
}

func fillISO(disk backend.Storage, size int64, work string, files []seed) error {
	iso, err := iso9660.Create(disk, size, 0, isoBlock, work)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := writeFile(iso, f); err != nil {
			return err
		}
	}
	return iso.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: noCloudLabel})
}

func writeFile(iso *iso9660.FileSystem, s seed) error {
	f, err := iso.OpenFile(s.name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}
	_, err = f.Write(s.data)
	return errors.Join(err, f.Close())
}
