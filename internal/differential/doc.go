// SPDX-License-Identifier: Apache-2.0

// Package differential compares what virtloom makes of a VirtualMachineInstance with what KubeVirt's own code makes of the
// same one: its defaults, the launcher Pod and the domain, field by field, and the PCI addresses of devices. What differs is in
// docs/with-kubevirt.md, each with its reason.
package differential
