// SPDX-License-Identifier: Apache-2.0

// Package rig starts a real Kubernetes control plane on loopback, and nodes to go with it, for the
// demo, the tests and the benchmarks of this module. It is no part of the SDK.
//
// The control plane is etcd, kube-apiserver (with an audit log), the controllers of
// kube-controller-manager that virtual machines depend on, kube-scheduler, and kwok. There are three kinds of nodes:
//
//   - Simulated ones, of [Rig.AddNode]: kwok plays the kubelet, so a Pod becomes Running and is terminated as a kubelet would report
//     it, but none of its containers exists. There can be thousands of them.
//   - Hypervisor nodes, of [Rig.AddHypervisorNode]: simulated ones with a real libvirt and QEMU, in which guests run beside their Pods.
//   - Nodes with a kubelet, of [Rig.StartKubeletNode], on which everything is real: containerd runs the Pods, which have addresses, and
//     kube-proxy makes Services of them. See Options.Kubelets.
//
// Everything a rig makes lives in one temporary folder, listens on loopback or in network namespaces of its own only, and goes away with
// the process that started it: by Stop, and when that process ends in any other way (a crash, an
// interrupt, kill -9) by a watchdog that holds the other end of a pipe. See watchdog. When both are killed, the next rig or
// "make undo" does it, by the watchdog's journal. See reap.
//
// The programs come from the bin folder of the module (made by "make setup"), or from the folder
// named by the environment variable VIRTLOOM_BIN.
package rig
