// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/mounts"
)

// exampleGuest is a VMI whose launcher Pod is on the node.
var exampleGuest = mounts.Guest{UID: "5b6c1a2e", Pod: "8d0e6f31", User: 107, Group: 107}

// newMounter makes the Mounter of a node with the directories of the launcher Pod, below a temporary one, and the
// function that removes that.
func newMounter() (_ *mounts.Mounter, remove func(), err error) {
	dir, err := os.MkdirTemp("", "mounts")
	if err != nil {
		return nil, nil, err
	}
	m := &mounts.Mounter{Pods: filepath.Join(dir, "pods"), Records: filepath.Join(dir, "records")}
	shared := filepath.Join(m.Pods, string(exampleGuest.Pod), "volumes/kubernetes.io~empty-dir")
	return m, func() { _ = os.RemoveAll(dir) }, errors.Join(os.MkdirAll(filepath.Join(shared, "hotplug-disks"), 0o755), os.MkdirAll(filepath.Join(shared, "container-disks"), 0o755))
}

// A volume is hotplugged. Its attachment Pod has not reached the node yet, so the caller retries.
func ExampleMounter_Plug() {
	m, remove, err := newMounter()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	attach := func(disk mounts.Plugged) {
		fmt.Println("attach", disk.Path)
		if disk.Major != 0 || disk.Minor != 0 {
			fmt.Println("allow device", disk.Major, disk.Minor)
		}
	}
	disk, err := m.Plug(exampleGuest, mounts.Volume{Name: "data", Carrier: "1f0a77c4", PersistentVolume: "pvc-9b1d", Block: true})
	switch {
	case err == nil:
		attach(disk)
	case errors.Is(err, domain.ErrNotReady):
		fmt.Println("retry later")
	default:
		fmt.Println(err)
	}
	// The volume is removed from the spec:
	fmt.Println(m.Unplug(exampleGuest, mounts.Volume{Name: "data"}))
	// After a restart of the agent, nothing remains mounted that the spec does not name:
	fmt.Println(m.Retain(exampleGuest.UID, []string{"logs"}))
	// When the VMI has ended:
	fmt.Println(m.Release(exampleGuest.UID, 0))
	// Output:
	// retry later
	// <nil>
	// <nil>
	// <nil>
}

// The image of spec.volumes[0] is mounted once its container runs.
func ExampleMounter_ContainerDisk() {
	m, remove, err := newMounter()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	_, err = m.ContainerDisk(exampleGuest, mounts.ContainerDisk{Index: 0})
	fmt.Println(errors.Is(err, domain.ErrNotReady))

	_, err = m.ContainerDisk(exampleGuest, mounts.ContainerDisk{Index: 0, Path: "../etc/shadow"})
	fmt.Println(errors.Is(err, domain.ErrInvalid))
	// Output:
	// true
	// true
}
