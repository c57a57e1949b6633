// SPDX-License-Identifier: Apache-2.0

package domain

// memoryBacking sets what the guest's memory is made of.
func memoryBacking(*Conversion) error { return nil }
