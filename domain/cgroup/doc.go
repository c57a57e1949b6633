// SPDX-License-Identifier: Apache-2.0

// Package cgroup restricts the devices that the processes of a guest may open, by a filter on their
// cgroup: a program on cgroup v2 (BPF_PROG_TYPE_CGROUP_DEVICE), the lists of the devices controller on
// cgroup v1, as the node has it.
//
//	dir, err := cgroup.Hierarchy{}.Of(pid) // the container of QEMU
//	rules, err := cgroup.Rules(cgroup.Root{PID: pid}, live, desired)
//	changed, err := cgroup.Set(dir, rules)
//
// No state is kept between calls: the list is computed from the running and the desired domain each
// time, and it is complete or there is an error. So a device cannot be locked out by an omission, and
// if another process has replaced the filter (systemd does on reload), the next call restores it. What
// both the old and the new filter allow is always allowed. On cgroup v2 one replaces the other
// atomically; on v1, whose lists are changed rule by rule, new devices are allowed before old ones are
// denied.
//
// On cgroup v1 a cgroup cannot have more than the one above it: a device that is denied there is an
// error. On a node with neither, every call returns an error that wraps [domain.ErrUnsupported], and
// [Hierarchy.Supported] is false.
package cgroup
