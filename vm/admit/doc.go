// SPDX-License-Identifier: Apache-2.0

// Package admit defaults and validates VirtualMachines (VMs) on creation and change, in clusters without KubeVirt's
// webhooks: Default, Validate and ValidateUpdate. They are pure functions of an Input. What has to be read (instance
// types, preferences, and the volumes they are inferred from) is returned as a list of refs, and what was read comes back
// in the Input, so each question is asked again until nothing is missing.
//
// # Defaults
//
// In this order, each only if the field is unset: the names of instance type and preference, inferred from a volume;
// architecture, machine type and the storage class of DataVolume templates as the preference has them; of a new VM, the
// finalizer and the annotations that its controller would store first, firmware UUID and serial number; architecture and
// machine type of the cluster; and the PCI topology of a new VM on q35 or virt.
// Everything else is defaulted when the VMI is created, so that it follows the cluster.
//
// # Validation
//
// The VMI that would be created now, with instance type and preference applied, must be valid by the rules of vmi/admit, for
// the same user: reserved labels and annotations are refused in the template. In addition there are the rules of
// the VM itself: its run strategy, DataVolume templates, volume requests, the requirements of its preference, and what must
// not change during a snapshot or a restore. Errors have the field, the value, a reason and a remedy in parentheses; texts are
// KubeVirt's where it has one.
package admit
