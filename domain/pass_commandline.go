// SPDX-License-Identifier: Apache-2.0

package domain

// commandLine adds arguments of QEMU that libvirt has no element for.
func commandLine(*Conversion) error { return nil }
