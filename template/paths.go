// SPDX-License-Identifier: Apache-2.0

package template

import "strconv"

// elementOf returns the path of an element of one of the VMI's lists, such as spec.volumes[2].
func elementOf(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

const (
	vmiVolumes    = "spec.volumes"
	vmiDisks      = "spec.domain.devices.disks"
	vmiInterfaces = "spec.domain.devices.interfaces"
)
