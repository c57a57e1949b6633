// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// follow passes the options that the controller has stored for a guest that leaves to the
// watch over its move. Where none are stored it goes on by those it began with.
func (r *Reconciler) follow(key types.NamespacedName, v view, lease handoff.Lease) {
	if v.vmi == nil || lease.State != handoff.Moving || lease.Holder != r.NodeName {
		return
	}
	m := v.vmi.Status.MigrationState
	if m == nil || m.VMIMConfigurationOptions == nil || m.MigrationUID != lease.Tag {
		return
	}
	r.moves.follow(key, domain.MigrationSettingsOf(v.vmi, v.sight.Migrations))
}

// tuning is what the hypervisor was told of a migration under way.
type tuning struct {
	// asked is what the migration was asked for with, told what was said last.
	asked, told domain.Tuning
	// known says that told is what it goes by: nobody else has told it anything.
	known bool
	// memory says that it has begun to send memory.
	memory bool
	failed int // tries in a row
}

// follow lets the migration go by the settings in force now, and tells the hypervisor
// what it does not know of them.
func (w *watch) follow(ctx context.Context, p domain.Progress) {
	if s := w.r.moves.settings(w.key); s != nil {
		w.monitor.Follow(*s)
	}
	if p.Total == 0 {
		return // it has yet to begin, by what it was asked for with
	}
	want, downtime, news := w.tuning.news(p, w.monitor.Tuning())
	if !news {
		return
	}
	t := &w.tuning
	log := logger(ctx).WithValues("guest", w.key.String(), "bandwidthMiB", want.BandwidthMiB, "maxDowntime", want.MaxDowntime.String())
	err := w.tune(ctx, want, downtime)
	if t.failed++; err != nil && !errors.Is(err, domain.ErrUnsupported) && t.failed < helpTries {
		log.V(1).Info("Cannot change a live migration yet", "cause", err.Error())
		return
	}
	if err != nil {
		log.Error(err, "Cannot change a live migration")
	} else {
		log.Info("Changed a live migration")
	}
	t.told, t.known, t.failed = want, true, 0
}

// news is what the hypervisor of a migration that has come that far is to be told, and
// whether there is anything that it does not know. Its standstill is left alone unless
// downtime.
func (t *tuning) news(p domain.Progress, want domain.Tuning) (_ domain.Tuning, downtime, news bool) {
	if !t.memory && p.Iteration > 0 {
		t.memory, t.told = true, t.asked // with memory it begins like that again, after disks
	}
	downtime = want.MaxDowntime > 0 && !p.PostCopy
	if !downtime {
		want.MaxDowntime = t.told.MaxDowntime
	}
	return want, downtime, !t.known || want != t.told
}

// tune tells the hypervisor what differs from what it was told.
func (w *watch) tune(ctx context.Context, want domain.Tuning, downtime bool) error {
	tuner, able := w.r.Hypervisor.(domain.MigrationTuner)
	if !able {
		return fmt.Errorf("domainctrl: change the migration of %s: %w", w.name, domain.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, w.r.CallTimeout)
	defer cancel()
	t := &w.tuning
	if !t.known || want.BandwidthMiB != t.told.BandwidthMiB {
		if err := tuner.SetMigrationBandwidth(ctx, w.name, want.BandwidthMiB); err != nil {
			return err
		}
	}
	if downtime && (!t.known || want.MaxDowntime != t.told.MaxDowntime) {
		return tuner.SetMaxDowntime(ctx, w.name, want.MaxDowntime)
	}
	return nil
}
