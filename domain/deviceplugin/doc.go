// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin offers devices of a node to its kubelet, so that a Pod that requests
// devices.kubevirt.io/kvm is scheduled to a node with KVM and gets the device in its container
// (Kubernetes: device plugin API, v1beta1).
//
// A [Plugin] serves one [Device]. [Plugins] are all plugins of a node; their Ready method is what a
// heartbeat checks before it reports that VMIs can start here. A Plugin runs until its context
// ends: it registers again when the kubelet restarts, reports when the device node disappears and
// reappears, and restarts after any failure, with a growing backoff. When it ends, it reports an
// empty list to the kubelet, so that no further Pod is scheduled here.
//
// A device with [Device.Nodes] is shared: any number of containers can use /dev/kvm at once. The
// number of slots only limits how many Pods the scheduler assigns to the node. A device with
// [Device.Units] stands for devices of which each container gets some alone, such as PCI devices. Each
// has its own health, and their list may change while the plugin runs ([Plugin.Update]).
package deviceplugin
