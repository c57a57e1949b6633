// SPDX-License-Identifier: Apache-2.0

// Package rig starts a real Kubernetes control plane on loopback, and nodes to go with it, for the
// demo, the tests and the benchmarks of this module. It is no part of the SDK.
//
// The control plane is etcd, kube-apiserver (with an audit log), the controllers of
// kube-controller-manager that virtual machines depend on, kube-scheduler, and kwok. There is no
// container runtime: kwok plays the kubelet, so a Pod becomes Running and is terminated as a
// kubelet would report it, but none of its containers exists. What runs for real is the guest, in
// the libvirt and QEMU of a hypervisor node.
//
// Everything a rig makes lives in one temporary folder, listens on loopback only, and goes away with
// the process that started it: by Stop, and when that process ends in any other way (a crash, an
// interrupt, kill -9) by a watchdog that holds the other end of a pipe. See watchdog.
//
// The programs come from the bin folder of the module (made by "make setup"), or from the folder
// named by the environment variable VIRTLOOM_BIN.
package rig
