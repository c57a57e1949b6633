// SPDX-License-Identifier: Apache-2.0

// Package cgroup says which devices the processes of a guest may open: a filter on
// their cgroup (cgroup v2, BPF_PROG_TYPE_CGROUP_DEVICE).
//
//	dir, err := cgroup.Hierarchy{}.Of(pid)                  // the container of QEMU
//	rules, err := cgroup.Rules(cgroup.Root{PID: pid}, live, desired)
//	changed, err := cgroup.Set(dir, rules)
//
// There is no state between two calls and nothing to add to or to remove from: the
// list is made anew from what the guest has and shall have, and it is complete or
// there is an error. So a device cannot be locked out because somebody forgot it,
// and whoever replaced the filter (systemd does, when it is reloaded) is put right
// by the next call. A new filter takes the place of the old one in one step: what
// both allow works all the time, what neither allows never does.
//
// Only cgroup v2 is supported. The kubelet refuses nodes with cgroup v1 by default
// since Kubernetes 1.35; on such a node everything here is an error that wraps
// [domain.ErrUnsupported].
package cgroup
