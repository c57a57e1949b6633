// SPDX-License-Identifier: Apache-2.0

// Package health is what refdaemon tells of itself at /healthz and /readyz.
//
// Ready is a daemon that can do its work: its caches show the cluster ([Caches]), the lease of its
// leader election is within reach, so that it leads or would take over ([Contact]), its hypervisor
// answers ([Pulse.Ready]). Alive is one whom a restart would not help: a hypervisor that is down or
// a cluster that is out of reach comes back by itself, a question that never returns does not
// ([Pulse.Alive]), nor does a pass of a controller ([Workers.Alive]). Guests run on without their agent.
package health
