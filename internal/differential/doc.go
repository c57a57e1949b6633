// SPDX-License-Identifier: Apache-2.0

// Package differential compares virtloom's output for a VirtualMachineInstance with the output of KubeVirt's own code:
// defaults, launcher Pod and domain, field by field, and the PCI addresses of devices. docs/with-kubevirt.md lists every
// difference with its reason.
package differential
