// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Before it starts its first guest, libvirt asks QEMU what it can do, for up to 8 s, and notes the
// answer in a cache. The rig keeps that cache from one node to the next, beside the guest image. What is
// kept cannot do harm: libvirt checks each entry against the QEMU, the kernel and the libvirt
// that made it, and asks again if any has changed.

const capabilitiesPattern = "cache/qemu/capabilities/*.xml"

// capabilitiesDir is where the cache is kept, "" if there is no such place.
func capabilitiesDir() string {
	bin, err := BinDir()
	if err != nil {
		return ""
	}
	return filepath.Join(bin, "guest", "capabilities")
}

// seedCapabilities gives a node, or a Pod, the cache of an earlier one.
func seedCapabilities(dir string) error {
	kept, err := filepath.Glob(filepath.Join(capabilitiesDir(), "*.xml"))
	if err != nil {
		return err
	}
	for _, file := range kept {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		target := filepath.Join(dir, filepath.Dir(capabilitiesPattern), filepath.Base(file))
		if err := os.WriteFile(target, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// keepCapabilities keeps the cache of the node with this folder for later ones, if it differs. Several rigs may do so
// at once, so that each file is replaced as a whole.
func keepCapabilities(node string) error {
	dir := capabilitiesDir()
	files, err := filepath.Glob(filepath.Join(node, capabilitiesPattern))
	if dir == "" || err != nil || len(files) == 0 {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		target := filepath.Join(dir, filepath.Base(file))
		if known, err := os.ReadFile(target); err == nil && bytes.Equal(known, content) {
			continue
		}
		if err := replaceFile(target, content); err != nil {
			return err
		}
	}
	return nil
}

func replaceFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
