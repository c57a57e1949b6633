// SPDX-License-Identifier: Apache-2.0

package convert

// controllers adds USB, SCSI and serial controllers. PCI controllers are added with the addresses,
// see pciAddresses.
func controllers(c *Conversion) error {
	buses(c)
	return nil
}
