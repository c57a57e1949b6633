// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is a node, with its devices.
type Host struct {
	// Sys is where its sysfs is. Defaults to /sys.
	Sys string
}

// Limits for what is read: attributes of sysfs are smaller, and no node has as many devices.
const (
	maxAttribute = 4096
	maxEntries   = 16384
)

// folder is a directory of sysfs with one entry for each device of a bus.
type folder string

// bus returns the devices of a bus.
func (h Host) bus(name string) folder {
	sys := h.Sys
	if sys == "" {
		sys = "/sys"
	}
	return folder(filepath.Join(sys, "bus", name, "devices"))
}

// names returns the names of the devices that have the form, in order; none if there is no such bus.
func (f folder) names(form *regexp.Regexp) ([]string, error) {
	dir, err := os.Open(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	all, err := dir.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(name string) bool { return !form.MatchString(name) })
	slices.Sort(all)
	return all, nil
}

// attribute returns the content of a regular file of a device, without spaces around it.
func (f folder) attribute(device, name string) (string, error) {
	path := filepath.Join(string(f), device, name)
	// Whatever is there instead, opening it does not wait.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", errors.Join(fmt.Errorf("%s is no regular file", path), err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxAttribute+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxAttribute {
		return "", fmt.Errorf("%s has more than %d bytes", path, maxAttribute)
	}
	return strings.TrimSpace(string(text)), nil
}

// number returns an attribute that is a number.
func (f folder) number(device, name string, base, bits int) (uint64, error) {
	text, err := f.attribute(device, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, base, bits)
	if err != nil {
		return 0, fmt.Errorf("%s of %s: Invalid value: %.40q is no number: %w", name, device, text, err)
	}
	return n, nil
}

// target returns the name of what a link of a device leads to; empty if there is no link.
func (f folder) target(device, name string) (string, error) {
	to, err := os.Readlink(filepath.Join(string(f), device, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Base(to), err
}

// groupForm matches the number of an IOMMU group, which becomes a part of a path.
var groupForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,9})$`)

// group returns the IOMMU group of a device.
func (f folder) group(device string) (string, error) {
	group, err := f.target(device, "iommu_group")
	switch {
	case err != nil:
		return "", err
	case group == "":
		return "", errors.New("it has no IOMMU group: switch the IOMMU of the node on")
	case !groupForm.MatchString(group):
		return "", fmt.Errorf("its IOMMU group %.40q is no number", group)
	}
	return group, nil
}

// cell returns the NUMA node of a device, nil if it has none.
func (f folder) cell(device string) *int64 {
	n, err := f.number(device, "numa_node", 10, 16)
	if err != nil {
		return nil // -1, or not said
	}
	cell := int64(n) //nolint:gosec // it has 16 bits
	return &cell
}
