// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

// Options of a migration that has been handed off follow changes of its policy and of the
// cluster's configuration, as far as possible. KubeVirt resolves them once; here an
// administrator can unblock a migration that does not converge.
//
//	option                         until it begins   while it runs
//	bandwidthPerMigration          yes               yes: the hypervisor's limit for memory; disks that are being copied keep theirs
//	maxDowntimeMs                  yes               yes: the hypervisor's, unless the VMI already pays with a longer one
//	completionTimeoutPerGiB        yes               yes: the source node's monitor, and the bound of phase Running
//	progressTimeout                yes               yes: the source node's monitor
//	allowWorkloadDisruption        yes               yes: the source node's monitor; what was done to the guest stays done
//	allowPostCopy                  yes               withdrawn only: a job begins with it or never has it; the disruption that
//	                                                 comes with it is then not applied either
//	experimental.stallDetector     yes               yes: the source node's monitor
//	allowAutoConverge              yes               no: the job's from its beginning
//	experimental.compression       yes               no: the connections' from their beginning
//	unsafeMigrationOverride        yes               no: it applies to the check at the beginning
//	network, disableTLS,           no                no: the target was prepared with them
//	matchSELinuxLevelOnMigration
//	utilityVolumesTimeout          no                no: that wait is over
//	parallel limits,               no                no: they are not the job's; limits apply at once to all that start
//	nodeDrainTaintKey
//
// Nodes without lease support are KubeVirt's own; they read the options when they begin and never
// again, so that for them nothing follows while the migration runs.
var following = []option{
	field("bandwidthPerMigration", atAnyTime, func(o *options) **resource.Quantity { return &o.BandwidthPerMigration }, sameRate),
	field("maxDowntimeMs", atAnyTime, func(o *options) **uint64 { return &o.MaxDowntimeMs }, same),
	field("completionTimeoutPerGiB", atAnyTime, func(o *options) **int64 { return &o.CompletionTimeoutPerGiB }, same),
	field("progressTimeout", atAnyTime, func(o *options) **int64 { return &o.ProgressTimeout }, same),
	field("allowPostCopy", atAnyTime, func(o *options) **bool { return &o.AllowPostCopy }, same),
	field("allowWorkloadDisruption", atAnyTime, func(o *options) **bool { return &o.AllowWorkloadDisruption }, same),
	field("experimental.stallDetector", atAnyTime, func(o *options) **v1.StallDetectorOptions { return &experimental(o).StallDetector }, sameStall),
	field("allowAutoConverge", untilBegun, func(o *options) **bool { return &o.AllowAutoConverge }, same),
	field("experimental.compression", untilBegun, func(o *options) **v1.MigrationCompression { return &experimental(o).Compression }, same),
	field("unsafeMigrationOverride", untilBegun, func(o *options) **bool { return &o.UnsafeMigrationOverride }, same),
}

type options = v1.VMIMConfigurationOptions

// moment is until when an option follows changes.
type moment int

const (
	untilBegun moment = iota
	atAnyTime
)

// option is an option that follows changes.
type option struct {
	until moment
	// follow puts the wanted value over the one in force, and returns the change, if any.
	follow func(inForce, wanted *options) (change string)
}

func field[T any](name string, until moment, at func(*options) **T, same func(a, b *T) bool) option {
	return option{until: until, follow: func(inForce, wanted *options) string {
		have, want := at(inForce), *at(wanted)
		if same(*have, want) {
			return ""
		}
		was, is := valueText(*have), valueText(want)
		*have = want
		if was == is {
			return name + " (in part)"
		}
		return name + " " + was + " → " + is
	}}
}

// valueText returns a value as text.
func valueText[T any](v *T) string {
	switch v := any(v).(type) {
	case *resource.Quantity:
		if v == nil {
			return "0"
		}
		return v.String()
	case *v1.StallDetectorOptions:
		if v == nil {
			return "off"
		}
		return "on"
	}
	if v == nil {
		return "unset"
	}
	return fmt.Sprint(*v)
}

func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// sameRate compares rates; nil and zero both mean no limit.
func sameRate(a, b *resource.Quantity) bool {
	var none resource.Quantity
	if a == nil {
		a = &none
	}
	if b == nil {
		b = &none
	}
	return a.Cmp(*b) == 0
}

func sameStall(a, b *v1.StallDetectorOptions) bool { return equality.Semantic.DeepEqual(a, b) }

// experimental returns the experimental options, which it adds where they are missing.
func experimental(o *options) *v1.ExperimentalMigrationOptions {
	if o.ExperimentalMigrationOptions == nil {
		o.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{}
	}
	return o.ExperimentalMigrationOptions
}

// followed returns the options in force merged with the wanted ones that may follow, and the
// changes; nothing differs if changes is empty.
func followed(inForce, wanted *options, begun bool) (next *options, changes []string) {
	next, wanted = inForce.DeepCopy(), wanted.DeepCopy()
	if begun && permitted(wanted.AllowPostCopy) && !permitted(inForce.AllowPostCopy) {
		wanted.AllowPostCopy, wanted.AllowWorkloadDisruption = next.AllowPostCopy, next.AllowWorkloadDisruption
	}
	for _, o := range following {
		if begun && o.until == untilBegun {
			continue
		}
		if change := o.follow(next, wanted); change != "" {
			changes = append(changes, change)
		}
	}
	if x := next.ExperimentalMigrationOptions; x != nil && *x == (v1.ExperimentalMigrationOptions{}) {
		next.ExperimentalMigrationOptions = nil
	}
	return next, changes
}

func permitted(b *bool) bool { return b != nil && *b }

// optionsCount reports whether the options of the migration have been handed off and are
// this cluster's to change: those of a VMI that leaves it are the receiver's.
func (d *decision) optionsCount() bool {
	switch d.plan.Status.Phase {
	case v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning:
		return !d.sends()
	}
	return false
}

// followOptions keeps the options of a migration that has been handed off in line with its
// policy and the cluster. It skips options that no controller has resolved, a migration that
// is ending, and an invalid policy: then the options resolved before stay in force.
func (d *decision) followOptions() {
	if !d.optionsCount() {
		return
	}
	wanted := d.s.Resolution.Options
	if len(d.plan.Actions) > 0 || wanted == nil || d.ms == nil || d.ms.VMIMConfigurationOptions == nil || d.ms.AbortRequested {
		return
	}
	at := position{d}.standing()
	if at != prepared && (at != begunMoving || !d.leased) {
		return
	}
	next, changes := followed(d.ms.VMIMConfigurationOptions, wanted, at == begunMoving)
	if len(changes) == 0 {
		return
	}
	by := "the cluster's configuration"
	if name := d.s.Resolution.Match.Name(); name != nil {
		by = fmt.Sprintf("MigrationPolicy %q", *name)
	}
	state := d.ms.DeepCopy()
	state.VMIMConfigurationOptions, state.MigrationPolicyName = next, d.s.Resolution.Match.Name()
	d.act(Action{Verb: ChangeVMI, Why: "options have changed", Change: &VMIChange{State: state}, Event: &Event{
		OnVMI: true, Reason: EventOptionsChanged, Message: fmt.Sprintf("Migration options follow %s: %s", by, strings.Join(changes, ", ")),
	}})
}
