// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// qcow2Magic begins every qcow2 image (QEMU docs/interop/qcow2.txt).
var qcow2Magic = []byte{'Q', 'F', 'I', 0xfb}

// imageFormat tells qcow2 from raw by the header alone. It never asks a tool
// to guess: a raw disk's content is the guest's.
func imageFormat(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, len(qcow2Magic))
	if _, err := io.ReadFull(f, head); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return "", err
	}
	if bytes.Equal(head, qcow2Magic) {
		return "qcow2", nil
	}
	return "raw", nil
}

// qemuImgCreate makes an image where there is none yet, whole or not at all.
// An empty argument stands for the image's path, which otherwise comes last.
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
	out, err := exec.CommandContext(ctx, "qemu-img", argv...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("qemu-img create: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.Rename(tmp, path)
}
