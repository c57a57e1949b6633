// SPDX-License-Identifier: Apache-2.0

// Package health holds the probes of refdaemon at /healthz and /readyz.
//
// A daemon is ready if it can do its work: its caches are synced ([Caches]), the lease of its leader
// election is within reach, so that it leads or can take over ([Contact]), its hypervisor answers
// ([Pulse.Ready]). It is alive unless a restart would help: an unreachable hypervisor or cluster
// recovers by itself, a call that never returns does not ([Pulse.Alive]), nor does a reconcile
// ([Workers.Alive]). Guests keep running without their agent.
package health
