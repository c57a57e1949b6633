// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
)

// tuner records the settings a hypervisor receives for a migration.
type tuner struct {
	domain.Hypervisor
	calls []string
	err   error
}

func (h *tuner) SetMaxDowntime(_ context.Context, _ string, d time.Duration) error {
	h.calls = append(h.calls, d.String())
	return h.err
}

func (h *tuner) SetMigrationBandwidth(_ context.Context, _ string, mib uint64) error {
	h.calls = append(h.calls, fmt.Sprint(mib))
	return h.err
}

var errBusy = errors.New("busy")

// TestWatch_SendsChangedSettings goes through looks at one migration.
func TestWatch_SendsChangedSettings(t *testing.T) {
	type look struct {
		// mib and downtime are the settings now, none if mib is zero.
		mib      uint64
		downtime time.Duration
		err      error
		p        domain.Progress
		want     string
	}
	disks, memory := domain.Progress{Total: 9}, domain.Progress{Total: 9, Iteration: 1}
	ahead := domain.Progress{Total: 9, Iteration: 2, PostCopy: true}
	const second, ms = time.Second, time.Millisecond
	for name, tc := range map[string]struct {
		adopted, disrupted, dumb bool
		looks                    []look
	}{
		"no settings":                              {looks: []look{{p: memory}, {p: memory}}},
		"nothing has changed":                      {looks: []look{{mib: 4, downtime: second, p: memory}}},
		"the bandwidth":                            {looks: []look{{p: memory}, {mib: 8, downtime: second, p: memory, want: "8"}, {mib: 8, downtime: second, p: memory}}},
		"the standstill":                           {looks: []look{{mib: 4, downtime: ms, p: memory, want: "1ms"}, {p: memory}}},
		"both, and back":                           {looks: []look{{mib: 8, downtime: ms, p: memory, want: "8 1ms"}, {mib: 4, downtime: second, p: memory, want: "4 1s"}}},
		"not before anything is sent":              {looks: []look{{mib: 8, downtime: second}, {p: memory, want: "8"}}},
		"again when memory follows disks":          {looks: []look{{mib: 8, downtime: second, p: disks, want: "8"}, {p: disks}, {p: memory, want: "8"}, {p: memory}}},
		"in post-copy only the rate":               {looks: []look{{mib: 8, downtime: ms, p: ahead, want: "8"}}},
		"a guest that pays keeps its standstill":   {disrupted: true, looks: []look{{mib: 8, downtime: ms, p: memory, want: "8"}}},
		"an agent that has not begun it sends all": {adopted: true, looks: []look{{p: memory, want: "4 1s"}, {p: memory}}},
		"what fails is tried again":                {looks: []look{{mib: 8, downtime: second, err: errBusy, p: memory, want: "8"}, {p: memory, want: "8"}, {p: memory}}},
		"what cannot be is not tried again":        {looks: []look{{mib: 8, downtime: second, err: domain.ErrUnsupported, p: memory, want: "8"}, {p: memory}, {mib: 9, downtime: second, p: memory, want: "9"}}},
		"a hypervisor without tuning":              {dumb: true, looks: []look{{mib: 8, downtime: ms, p: memory}, {p: memory}}},
	} {
		t.Run(name, func(t *testing.T) {
			h, key := &tuner{}, types.NamespacedName{Namespace: "ns", Name: "guest"}
			r := &Reconciler{Hypervisor: h, CallTimeout: time.Minute, migrations: newMigrations(clock.RealClock{}, time.Hour)}
			if tc.dumb {
				r.Hypervisor = struct{ domain.Hypervisor }{}
			}
			r.migrations.running[key] = &migration{}
			began := migrate.MigrationSettings{BandwidthMiB: 4, MaxDowntime: second}
			w := &watch{r: r, key: key, name: "ns_guest", monitor: migrate.Monitor{Settings: began, Disrupted: tc.disrupted}}
			asked := migrate.Tuning{BandwidthMiB: 4, MaxDowntime: second}
			w.tuning = tuning{asked: asked, sent: asked, known: !tc.adopted}
			for i, l := range tc.looks {
				if l.mib > 0 {
					r.migrations.follow(key, migrate.MigrationSettings{BandwidthMiB: l.mib, MaxDowntime: l.downtime})
				}
				h.calls, h.err = nil, l.err
				w.follow(t.Context(), l.p)
				if got := strings.Join(h.calls, " "); got != l.want {
					t.Errorf("look %d: the hypervisor received %q, want %q", i, got, l.want)
				}
			}
		})
	}
}

func TestWatch_GivesUpAfterFailures(t *testing.T) {
	h, key := &tuner{err: errBusy}, types.NamespacedName{Name: "guest"}
	r := &Reconciler{Hypervisor: h, CallTimeout: time.Minute, migrations: newMigrations(clock.RealClock{}, time.Hour)}
	r.migrations.running[key] = &migration{}
	r.migrations.follow(key, migrate.MigrationSettings{BandwidthMiB: 8})
	w := &watch{r: r, key: key, tuning: tuning{known: true}}
	for range 3 * helpTries {
		w.follow(t.Context(), domain.Progress{Total: 1, Iteration: 1})
	}
	if n := len(h.calls); n != helpTries {
		t.Errorf("it was tried %d times, want %d", n, helpTries)
	}
}
