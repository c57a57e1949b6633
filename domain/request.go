// SPDX-License-Identifier: Apache-2.0

package domain

// Request is something a user asks of a running guest, now and not by its spec
// (KubeVirt: the subresources of a VirtualMachineInstance).
type Request string

// The requests, by the names of KubeVirt's subresources.
const (
	// RequestPause stops the guest's CPUs until RequestUnpause lets them go on.
	RequestPause   Request = "pause"
	RequestUnpause Request = "unpause"
	// RequestReset restarts the guest at once, RequestSoftReboot asks it to.
	RequestReset      Request = "reset"
	RequestSoftReboot Request = "softreboot"
	// RequestFreeze holds writes to the guest's file systems until
	// RequestUnfreeze.
	RequestFreeze   Request = "freeze"
	RequestUnfreeze Request = "unfreeze"
)
