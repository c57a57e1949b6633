// SPDX-License-Identifier: Apache-2.0

package domain

// Name returns the name of the domain of a VirtualMachineInstance.
func Name(namespace, name string) string { return namespace + "_" + name }
