// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

const (
	// isoBlock is the logical block size of an ISO 9660 file system.
	isoBlock = 2048
	// isoOverhead is more than the size of the descriptors and tables of such a disk.
	isoOverhead = 1 << 20
	// maxSeeds bounds the content of one disk: no object of the API is much larger than 1 MiB, and
	// a disk is made of three at most.
	maxSeeds = 4 << 20
	// maxName is the longest file name that surely fits one record of Rock Ridge.
	maxName = 100
)

// seed is one file of a generated disk.
type seed struct {
	// name is the path in the disk, with slashes.
	name string
	data []byte
}

// labelForm matches the labels an ISO 9660 disk may have (ECMA-119, 8.4.8), lower case included,
// which every system reads.
var labelForm = regexp.MustCompile(`^[ -~]{1,32}$`)

// seeded makes the disk of a volume from contents, unless it exists: a VMI keeps the disk it was
// started with. The disk has the same size for the same data on every node, so that a migration can
// copy it.
func (v volume) seeded(field string, contents func() (label string, files []seed, err error)) (convert.DiskSource, error) {
	src := convert.DiskSource{Path: v.file(".iso"), Format: "raw"}
	if exists(src.Path) {
		return src, nil
	}
	label, files, err := contents()
	if err != nil {
		return src, err
	}
	if !labelForm.MatchString(label) {
		return src, v.fault(field+".volumeLabel", fmt.Sprintf("Invalid value: %q", label), "use 1 to 32 ASCII characters", domain.ErrInvalid)
	}
	if err := v.checkSeeds(field, files); err != nil {
		return src, err
	}
	if err := writeISO(src.Path, label, files); err != nil {
		return src, v.fault(field, "cannot create the disk", "check the space on the node", err)
	}
	return src, nil
}

// checkSeeds refuses content that does not fit a disk.
func (v volume) checkSeeds(field string, files []seed) error {
	total := 0
	for _, f := range files {
		if total += len(f.data); total > maxSeeds {
			return v.fault(field, fmt.Sprintf("the files of the disk are larger than %d bytes", maxSeeds), "use a claim", domain.ErrInvalid)
		}
		for _, name := range strings.Split(f.name, "/") {
			if len(name) > maxName {
				return v.fault(field, fmt.Sprintf("the name %q is longer than %d characters", name, maxName), "choose a shorter name", domain.ErrInvalid)
			}
		}
	}
	return nil
}

// writeISO makes an ISO 9660 disk under a temporary name and renames it when it is complete.
func writeISO(path, label string, files []seed) (err error) {
	size := int64(isoOverhead)
	for _, f := range files {
		// The data, and more than the size of its directory entries, long names included.
		size += (int64(len(f.data))/isoBlock + 3) * isoBlock
	}
	// The names are the same at every attempt: leftovers of a crash are replaced, and a repeated
	// error has the same text.
	tmp, work := path+".new", path+".d"
	if err := errors.Join(os.RemoveAll(tmp), os.RemoveAll(work), os.Mkdir(work, 0o700)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	disk, err := file.CreateFromPath(tmp, size)
	if err != nil {
		return err
	}
	err = fillISO(disk, size, work, isoContent{label, files})
	if err = errors.Join(err, disk.Close(), fits(tmp, size)); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return errors.Join(os.Truncate(tmp, size), os.Rename(tmp, path))
}

// fits makes sure that a disk is not truncated.
func fits(path string, size int64) error {
	st, err := os.Stat(path)
	if err == nil && st.Size() > size {
		err = fmt.Errorf("the disk has %d bytes, want at most %d", st.Size(), size)
	}
	return err
}

type isoContent struct {
	label string
	files []seed
}

func fillISO(disk backend.Storage, size int64, work string, c isoContent) error {
	iso, err := iso9660.Create(disk, size, 0, isoBlock, work)
	if err != nil {
		return err
	}
	for _, f := range c.files {
		if dir := path.Dir(f.name); dir != "." {
			if err := iso.Mkdir(dir); err != nil {
				return err
			}
		}
		if err := writeFile(iso, f); err != nil {
			return err
		}
	}
	// Linux reads the names of Rock Ridge, Windows those of Joliet. Labels are padded with spaces.
	return iso.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: fmt.Sprintf("%-32s", c.label)})
}

func writeFile(iso *iso9660.FileSystem, s seed) error {
	f, err := iso.OpenFile(s.name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}
	_, err = f.Write(s.data)
	return errors.Join(err, f.Close())
}
