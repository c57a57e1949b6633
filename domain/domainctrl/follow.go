// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
	"github.com/virtloom/virtloom/handoff"
)

// follow passes the options that the controller has stored for a VMI that leaves to the watch over
// its migration. Where none are stored the migration keeps those it began with.
func (r *Reconciler) follow(key types.NamespacedName, v pass, lease handoff.Lease) {
	if v.vmi == nil || lease.State != handoff.Moving || lease.Holder != r.NodeName {
		return
	}
	m := v.vmi.Status.MigrationState
	if m == nil || m.VMIMConfigurationOptions == nil || m.MigrationUID != lease.Tag {
		return
	}
	r.migrations.follow(key, migrate.MigrationSettingsOf(v.vmi, v.snapshot.Migrations))
}

// tuning is the known state of the hypervisor's settings for a migration under way.
type tuning struct {
	// asked are the settings the migration was started with, sent those of the last call.
	asked, sent migrate.Tuning
	// known reports whether sent is in force: no other process has changed the settings.
	known bool
	// memory reports whether the migration has begun to send memory.
	memory bool
	failed int // failed attempts in a row
}

// follow applies the settings in force now to the migration, and sends those the hypervisor does
// not know.
func (w *watch) follow(ctx context.Context, p domain.Progress) {
	if s := w.r.migrations.settings(w.key); s != nil {
		w.monitor.Follow(*s)
	}
	if p.Total == 0 {
		return // not begun yet, which it does with the settings asked for
	}
	want, downtime, news := w.tuning.news(p, w.monitor.Tuning())
	if !news {
		return
	}
	t := &w.tuning
	log := logger(ctx).WithValues("guest", w.key.String(), "bandwidthMiB", want.BandwidthMiB, "maxDowntime", want.MaxDowntime.String())
	err := w.tune(ctx, want, downtime)
	if t.failed++; err != nil && !errors.Is(err, domain.ErrUnsupported) && t.failed < helpTries {
		log.V(4).Info("Changing a live migration failed, retrying", "cause", err.Error())
		return
	}
	if err != nil {
		log.Error(err, "Changing a live migration failed")
	} else {
		log.V(1).Info("Changed a live migration")
	}
	t.sent, t.known, t.failed = want, true, 0
}

// news returns the settings for a migration that has come that far, and whether the hypervisor
// lacks any of them. The maximal downtime is left alone unless downtime.
func (t *tuning) news(p domain.Progress, want migrate.Tuning) (_ migrate.Tuning, downtime, news bool) {
	if !t.memory && p.Iteration > 0 {
		t.memory, t.sent = true, t.asked // after the disks, memory begins with these again
	}
	downtime = want.MaxDowntime > 0 && !p.PostCopy
	if !downtime {
		want.MaxDowntime = t.sent.MaxDowntime
	}
	return want, downtime, !t.known || want != t.sent
}

// tune sends the hypervisor the settings that differ from the last call.
func (w *watch) tune(ctx context.Context, want migrate.Tuning, downtime bool) error {
	tuner, able := w.r.Hypervisor.(domain.MigrationTuner)
	if !able {
		return fmt.Errorf("domainctrl: change the migration of %s: %w", w.name, domain.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, w.r.CallTimeout)
	defer cancel()
	t := &w.tuning
	if !t.known || want.BandwidthMiB != t.sent.BandwidthMiB {
		if err := tuner.SetMigrationBandwidth(ctx, w.name, want.BandwidthMiB); err != nil {
			return err
		}
	}
	if downtime && (!t.known || want.MaxDowntime != t.sent.MaxDowntime) {
		return tuner.SetMaxDowntime(ctx, w.name, want.MaxDowntime)
	}
	return nil
}
