// SPDX-License-Identifier: Apache-2.0

package domain

// ioThreads adds the threads that serve disks.
func ioThreads(*Conversion) error { return nil }
