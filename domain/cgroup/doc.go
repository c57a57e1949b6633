// SPDX-License-Identifier: Apache-2.0

// Package cgroup restricts the devices that the processes of a guest may open, by a filter on their
// cgroup (cgroup v2, BPF_PROG_TYPE_CGROUP_DEVICE).
//
//	dir, err := cgroup.Hierarchy{}.Of(pid) // the container of QEMU
//	rules, err := cgroup.Rules(cgroup.Root{PID: pid}, live, desired)
//	changed, err := cgroup.Set(dir, rules)
//
// No state is kept between calls, and rules are never added or removed one by one: the list is
// computed from the running and the desired domain each time, and it is complete or there is an
// error. So a device cannot be locked out by an omission, and if another process has replaced the
// filter (systemd does on reload), the next call restores it. A new filter replaces the old one
// atomically: what both allow is always allowed, what neither allows never is.
//
// Only cgroup v2 is supported. The kubelet rejects nodes with cgroup v1 by default since Kubernetes
// 1.35; on such a node every call returns an error that wraps [domain.ErrUnsupported], and
// [Hierarchy.Supported] is false.
package cgroup
