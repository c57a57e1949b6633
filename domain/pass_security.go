// SPDX-License-Identifier: Apache-2.0

package domain

// launchSecurity sets how the guest's memory is encrypted.
func launchSecurity(*Conversion) error { return nil }
