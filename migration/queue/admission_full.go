// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
)

// Full returns the nodes that no further VMI could enter now: all their slots are taken or
// waited for. A VMI bound for another node need not wait; see placement.Avoid.
func (a *Admission) Full() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	for name, u := range a.nodes {
		if n := len(u.in) + len(u.arrivals); n > 0 && n >= a.limits.Inbound {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
