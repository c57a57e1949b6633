// SPDX-License-Identifier: Apache-2.0

package migration

import "slices"

// Full returns the nodes that no further guest could enter now: all slots there are taken or
// waited for. A guest on its way to another node need not wait; see [Avoid].
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
