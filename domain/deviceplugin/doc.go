// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin offers devices of a node to its kubelet, so that a Pod
// that asks for devices.kubevirt.io/kvm is scheduled to a node that has it and
// finds the device in its container (Kubernetes: device plugin API, v1beta1).
//
// A [Plugin] serves one [Device]; [Plugins] are all of a node, in the form a
// heartbeat asks whether guests can be started here. A Plugin lives for as long
// as its context: it registers again when the kubelet has been restarted, tells
// the kubelet when the device node goes and comes back, and begins anew, after a
// pause that grows, when anything fails. When it ends, the kubelet is told that
// there is none of the device left, so that no Pod is sent here in vain.
//
// A device is virtual: any number of containers may use /dev/kvm at once. The
// number of slots only bounds how many Pods the scheduler sends.
package deviceplugin
