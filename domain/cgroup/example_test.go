// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/cgroup"
)

// hostNodes are the device nodes of an imaginary host; [cgroup.Root] looks up those of a process.
type hostNodes map[string]cgroup.Node

func (n hostNodes) Node(path string) (cgroup.Node, error) {
	node, found := n[path]
	if !found {
		return node, fmt.Errorf("no device node %s", path)
	}
	return node, nil
}

func (hostNodes) List(string) ([]string, error) { return nil, nil }

// A block volume is hotplugged: while the running domain differs from the desired one, the disks of
// both are allowed.
func ExampleRules() {
	var devices cgroup.Devices = hostNodes{
		"/dev/sda": {Kind: cgroup.Block, Major: 8, Minor: 0}, "/dev/sdb": {Kind: cgroup.Block, Major: 8, Minor: 16},
		"/dev/vhost-vsock": {Kind: cgroup.Char, Major: 10, Minor: 241},
	}
	disk := func(dev string) libvirtxml.DomainDisk {
		return libvirtxml.DomainDisk{Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: dev}}}
	}
	live := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{
		Disks: []libvirtxml.DomainDisk{disk("/dev/sda")}, VSock: &libvirtxml.DomainVSock{},
	}}
	desired := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{disk("/dev/sdb")}}}

	rules, err := cgroup.Rules(devices, live, desired)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range rules {
		if !slices.Contains(cgroup.Default(), r) {
			fmt.Println(r)
		}
	}
	// Output:
	// b 8:0 rwm
	// b 8:16 rwm
	// c 10:241 rwm
}

// Devices that no domain names, such as those that QEMU itself opens for a guest's graphics, need
// rules beside those of [cgroup.Rules].
func ExampleRule() {
	render := cgroup.Rule{Kind: cgroup.Char, Major: 226, Minor: cgroup.Any, Access: cgroup.All &^ cgroup.Mknod}
	random := cgroup.Rule{Kind: cgroup.Char, Major: 10, Minor: 183, Access: cgroup.Read}
	disk := cgroup.Rule{Kind: cgroup.Block, Major: 8, Minor: 0, Access: cgroup.Read | cgroup.Write}
	for _, r := range []cgroup.Rule{render, random, disk} {
		fmt.Println(r)
	}
	// Output:
	// c 226:* rw
	// c 10:183 r
	// b 8:0 rw
}

// A node agent that looks up launchers itself, without a [cgroup.Filter], sets the filter of a
// container. Without a process of the launcher, there is no container yet.
func ExampleSet() {
	allow := func(pid int, live, desired *libvirtxml.Domain) (changed bool, err error) {
		dir, err := cgroup.Hierarchy{Mount: "/proc/1/root/sys/fs/cgroup", Namespace: "/proc/1/ns/cgroup"}.Of(pid)
		if err != nil {
			return false, err
		}
		rules, err := cgroup.Rules(cgroup.Root{PID: pid}, live, desired)
		if err != nil {
			return false, err
		}
		return cgroup.Set(dir, rules)
	}
	_, err := allow(0, nil, nil)
	fmt.Println(err)
	// Output: cgroup: looking up the cgroup of process 0: invalid process ID: invalid request
}
