// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strings"
)

// cpuSet formats numbers of CPUs or NUMA nodes as libvirt does: ascending, with ranges, as in
// 0-3,8.
func cpuSet(ids []uint) string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var parts []string
	for i := 0; i < len(ids); {
		last := i
		for last+1 < len(ids) && ids[last+1] == ids[last]+1 {
			last++
		}
		if last == i {
			parts = append(parts, fmt.Sprint(ids[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ids[i], ids[last]))
		}
		i = last + 1
	}
	return strings.Join(parts, ",")
}

// numbersBelow returns 0, 1, … n-1.
func numbersBelow(n uint) []uint {
	out := make([]uint, n)
	for i := range out {
		out[i] = uint(i)
	}
	return out
}
