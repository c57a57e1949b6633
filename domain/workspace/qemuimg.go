// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
)

// qcow2Magic begins every qcow2 image (QEMU docs/interop/qcow2.txt).
var qcow2Magic = []byte{'Q', 'F', 'I', 0xfb}

// Offsets in a qcow2 header of the references to other files, and the length it has to have for
// them (all numbers big endian).
const (
	qcow2Version      = 4
	qcow2BackingFile  = 8
	qcow2VirtualSize  = 24
	qcow2Incompatible = 72
	qcow2Header       = 80
	// qcow2ExternalData is the incompatible feature bit of data in another file.
	qcow2ExternalData = 1 << 2
)

// errOtherFiles refuses an image that names other files, which would be opened wherever on the node
// they are.
var errOtherFiles = errors.New("the image refers to another file (backing file or external data file); flatten it")

// imageFormat distinguishes qcow2 from raw by the header alone. It never lets a tool guess: a raw
// disk's content is the guest's. A qcow2 image that refers to other files is an error. size is that
// of the disk as the guest sees it, in bytes.
func imageFormat(f *os.File) (format string, size int64, err error) {
	head := make([]byte, qcow2Header)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", 0, err
	}
	if !bytes.HasPrefix(head[:n], qcow2Magic) {
		size, err = lengthOf(f)
		return "raw", size, err
	}
	if n < len(head) {
		return "", 0, errors.New("the qcow2 header is truncated")
	}
	if binary.BigEndian.Uint64(head[qcow2BackingFile:]) != 0 {
		return "", 0, errOtherFiles
	}
	if binary.BigEndian.Uint32(head[qcow2Version:]) > 2 && binary.BigEndian.Uint64(head[qcow2Incompatible:])&qcow2ExternalData != 0 {
		return "", 0, errOtherFiles
	}
	virtual := binary.BigEndian.Uint64(head[qcow2VirtualSize:])
	if virtual > math.MaxInt64 {
		return "", 0, fmt.Errorf("invalid virtual size %d in the qcow2 header", virtual)
	}
	return "qcow2", int64(virtual), nil
}

// overlayOf makes a writable overlay of another image where there is none yet. The base image,
// which a tenant may replace, is not opened for that: its size is given.
func overlayOf(ctx context.Context, overlay string, base convert.DiskSource, length int64) error {
	return qemuImgCreate(ctx, overlay, "-f", "qcow2", "-u", "-F", base.Format, "-b", cmp.Or(base.Inside, base.Path), "", strconv.FormatInt(length, 10))
}

// qemuImgCreate makes an image where there is none yet, whole or not at all. An empty argument
// stands for the image's path, which otherwise comes last.
func qemuImgCreate(ctx context.Context, path string, args ...string) error {
	if exists(path) {
		return nil
	}
	tmp := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	defer func() { _ = os.Remove(tmp) }()
	argv, placed := []string{"create", "-q"}, false
	for _, a := range args {
		if a == "" {
			a, placed = tmp, true
		}
		argv = append(argv, a)
	}
	if !placed {
		argv = append(argv, tmp)
	}
	if _, err := qemuImg(ctx, nil, argv...); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// inherited is the path of the open file in the arguments of qemu-img.
const inherited = "/proc/self/fd/3"

// qemuImg runs qemu-img, on an open file if one is given, and returns its output; the error
// contains its error output.
func qemuImg(ctx context.Context, on *os.File, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "qemu-img", args...)
	if on != nil {
		cmd.ExtraFiles = []*os.File{on}
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("qemu-img %s: %w: %s", args[0], err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out, nil
}

// imageInfo is the output of qemu-img info.
type imageInfo struct {
	// VirtualSize is the size the guest sees, ActualSize that allocated in the storage, in bytes.
	VirtualSize int64 `json:"virtual-size"`
	ActualSize  int64 `json:"actual-size"`
}

// qemuImgInfo inspects an image of that format, in use or not.
func qemuImgInfo(ctx context.Context, f *os.File, format string) (imageInfo, error) {
	var info imageInfo
	out, err := qemuImg(ctx, f, "info", "--output=json", "--force-share", "-f", format, inherited)
	if err == nil {
		err = json.Unmarshal(out, &info)
	}
	return info, err
}

// Size returns the bytes that the images of a VMI hold together with their backing images, zero if
// one is no file, or cannot be inspected. A file is as long as the data written to it.
func (w *Workspace) Size(ctx context.Context, vmi *v1.VirtualMachineInstance, images []convert.DiskSource) int64 {
	v := volume{vmi: vmi, pods: w.Pods}
	var sum int64
	for i := range images {
		for at := &images[i]; at != nil; at = at.Backing {
			if at.Block {
				return 0
			}
			f, err := v.open(ctx, at)
			if err != nil {
				return 0
			}
			n, err := lengthOf(f)
			if err = errors.Join(err, f.Close()); err != nil {
				return 0
			}
			sum += n
		}
	}
	return sum
}
