// SPDX-License-Identifier: Apache-2.0

package domain

// filesystems adds directories shared with the host.
func filesystems(*Conversion) error { return nil }
