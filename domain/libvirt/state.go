// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// statuses maps libvirt's states to names; its SHUTDOWN is a domain that is
// shutting down.
var statuses = map[virt.DomainState]domain.Status{
	virt.DOMAIN_NOSTATE:     domain.StatusNoState,
	virt.DOMAIN_RUNNING:     domain.StatusRunning,
	virt.DOMAIN_BLOCKED:     domain.StatusBlocked,
	virt.DOMAIN_PAUSED:      domain.StatusPaused,
	virt.DOMAIN_SHUTDOWN:    domain.StatusShuttingDown,
	virt.DOMAIN_SHUTOFF:     domain.StatusShutoff,
	virt.DOMAIN_CRASHED:     domain.StatusCrashed,
	virt.DOMAIN_PMSUSPENDED: domain.StatusPMSuspended,
}

// reasons maps the numbers, which have another meaning in each state.
var reasons = map[virt.DomainState]map[int]domain.Reason{
	virt.DOMAIN_RUNNING: {
		int(virt.DOMAIN_RUNNING_POSTCOPY):        domain.ReasonPostcopy,
		int(virt.DOMAIN_RUNNING_POSTCOPY_FAILED): domain.ReasonPostcopyFailed,
	},
	virt.DOMAIN_SHUTDOWN: {
		int(virt.DOMAIN_SHUTDOWN_USER): domain.ReasonUser,
	},
	virt.DOMAIN_SHUTOFF: {
		int(virt.DOMAIN_SHUTOFF_SHUTDOWN):      domain.ReasonShutdown,
		int(virt.DOMAIN_SHUTOFF_DESTROYED):     domain.ReasonDestroyed,
		int(virt.DOMAIN_SHUTOFF_CRASHED):       domain.ReasonCrashed,
		int(virt.DOMAIN_SHUTOFF_MIGRATED):      domain.ReasonMigrated,
		int(virt.DOMAIN_SHUTOFF_SAVED):         domain.ReasonSaved,
		int(virt.DOMAIN_SHUTOFF_FAILED):        domain.ReasonFailed,
		int(virt.DOMAIN_SHUTOFF_FROM_SNAPSHOT): domain.ReasonFromSnapshot,
	},
	virt.DOMAIN_CRASHED: {
		int(virt.DOMAIN_CRASHED_PANICKED): domain.ReasonPanicked,
	},
	virt.DOMAIN_PAUSED: {
		int(virt.DOMAIN_PAUSED_USER):            domain.ReasonUser,
		int(virt.DOMAIN_PAUSED_MIGRATION):       domain.ReasonMigration,
		int(virt.DOMAIN_PAUSED_SAVE):            domain.ReasonSave,
		int(virt.DOMAIN_PAUSED_DUMP):            domain.ReasonDump,
		int(virt.DOMAIN_PAUSED_IOERROR):         domain.ReasonIOError,
		int(virt.DOMAIN_PAUSED_WATCHDOG):        domain.ReasonWatchdog,
		int(virt.DOMAIN_PAUSED_FROM_SNAPSHOT):   domain.ReasonFromSnapshot,
		int(virt.DOMAIN_PAUSED_SHUTTING_DOWN):   domain.ReasonShuttingDown,
		int(virt.DOMAIN_PAUSED_SNAPSHOT):        domain.ReasonSnapshot,
		int(virt.DOMAIN_PAUSED_CRASHED):         domain.ReasonCrashed,
		int(virt.DOMAIN_PAUSED_STARTING_UP):     domain.ReasonStartingUp,
		int(virt.DOMAIN_PAUSED_POSTCOPY):        domain.ReasonPostcopy,
		int(virt.DOMAIN_PAUSED_POSTCOPY_FAILED): domain.ReasonPostcopyFailed,
	},
}

// nameState translates a state and its reason; others are Unknown.
func nameState(s virt.DomainState, reason int) (domain.Status, domain.Reason) {
	status, ok := statuses[s]
	if !ok {
		status = domain.StatusNoState
	}
	if r, ok := reasons[s][reason]; ok {
		return status, r
	}
	return status, domain.ReasonUnknown
}
