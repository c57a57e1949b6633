// SPDX-License-Identifier: Apache-2.0

// Package migrate answers how a live migration in progress is doing, and when to intervene: whether
// to switch to post-copy, to pause the domain, to allow a longer downtime, or to abort.
//
// [MigrationSettingsOf] resolves the options of a migration from the VirtualMachineInstance (VMI) and
// the configuration of the cluster, with KubeVirt's defaults. A [Monitor] with these settings observes
// the [domain.Progress] of one migration, every [MonitorEvery], and returns an [Advice] by KubeVirt's
// rules: the completion timeout for its size, the progress timeout, and, if enabled, the detection of
// stalls. The caller carries out the advice, and reports a refusal of the hypervisor:
//
//	m := migrate.Monitor{Settings: migrate.MigrationSettingsOf(vmi, cluster), Bytes: migrate.MovingBytes(vmi, copied)}
//	...
//	advice := m.Observe(progress, paused, now)
//	if advice.Action == migrate.SwitchToPostCopy && hypervisor.SwitchToPostCopy(ctx, name) != nil {
//		m.Refuse(advice.Action)
//	}
//
// The package never calls a hypervisor, reads a clock, or starts a migration: package domain/plan
// decides that. A monitor survives no restart; a new one keeps to the same budget, which the
// hypervisor counts from the start of the job. [Monitor.Follow] applies changed settings, and
// [Monitor.Tuning] returns those that the hypervisor needs.
package migrate
