// SPDX-License-Identifier: Apache-2.0

package domain

// controllers adds the buses that devices are on: USB, SCSI, serial. Those of PCI
// come with the addresses, see pciAddresses.
func controllers(c *Conversion) error {
	buses(c)
	return nil
}
