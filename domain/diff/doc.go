// SPDX-License-Identifier: Apache-2.0

// Package diff answers how a running libvirt domain differs from the desired one, and when each
// difference can be resolved.
//
// [Compare] is a three-way diff of the desired domain, the one that was last applied, and the
// running one. Each [Difference] has the field of the VirtualMachineInstance, a [Class] from Live to
// NeedsRecreation with the reason, and, if a single operation resolves it, the [domain.Operation].
// The package never applies an operation, never converts objects (see package convert), and keeps
// no state: the last applied domain is in the metadata of the running one, where [Stamp] stores it
// and [LastApplied] reads it.
//
//	last, err := diff.LastApplied(state.Metadata)
//	...
//	differences, err := diff.Compare(desired, last, state.Domain)
//	for _, d := range differences {
//		if d.Class == diff.Live && d.Operation != nil {
//			err = hypervisor.Apply(ctx, *d.Operation)
//		}
//	}
//
// A table of rules, by path in libvirtxml.Domain, decides for each part whether it is compared with
// the running or with the last applied domain, and what a difference means. A hypervisor that
// rewrites a domain, or adds devices and defaults, must not cause differences: with a correct
// readback, comparing again after all operations finds none.
//
// # Differences from KubeVirt
//
// All are on purpose; any other difference is a bug.
//
//   - Devices are matched by alias and serial number, and every setting is compared, with the last
//     applied domain as the third side, where KubeVirt compares target names only. A change that
//     cannot be made now is reported with its class instead of ignored.
//   - Sockets and memory that a running domain can take are of class Live: the limits of its Pod are not
//     known here, and whoever applies the change has to raise them first, as package plan does.
//   - Devices are passed to the hypervisor with their case unchanged: serial numbers and paths may
//     contain capitals.
package diff
