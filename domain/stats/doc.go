// SPDX-License-Identifier: Apache-2.0

// Package stats has the counters of running domains, as a hypervisor reports them by its ability
// domain.StatsReader: CPU time, memory, disks and interfaces of each [Domain]. It is data alone; who exports them
// as metrics chooses names and labels.
package stats
