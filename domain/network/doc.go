// SPDX-License-Identifier: Apache-2.0

// Package network sets up the networks of VMIs on a node.
//
// [Pods] is for VMIs that run in their launcher Pods: in the network namespace of the Pod, it
// translates addresses between the Pod's and the guest's, as KubeVirt's binding masquerade does.
//
//	                 network namespace of the launcher Pod
//	cluster ──── eth0 10.244.1.7 ──▶ DNAT ──▶ k6t-eth0 10.0.2.1 ──── tap0 ──── guest 10.0.2.2
//	                             ◀── masquerade ◀──
//
// With binding bridge it gives the Pod's link itself to the guest, with its address.
//
// [Bridges] is for VMIs in the libvirt of the node: it checks that the bridges exist, and creates tap
// devices on them where the hypervisor cannot do so itself. Each setup is recorded when it begins
// and when it is done. A setup that was begun and not completed, because the agent ended in between,
// is in an unknown state: that is an error that wraps [domain.ErrBroken], and fails a VMI that was
// about to start.
//
// While a network is missing, the error of either wraps [domain.ErrNotReady] and begins with
// "waiting for network": the target of a live migration then does not become ready, and the guest
// stays on the source.
package network
