// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
)

const (
	mib      = 1 << 20
	peerURI  = "memory://there"
	gibiSent = 10240 * time.Millisecond // a gibibyte at 100 MiB/s
)

// pair are two hypervisors; a guest g with 1 GiB of memory runs on the first, and a link
// of 100 MiB/s leads to the second.
type pair struct {
	*testing.T
	here, there *memory.Hypervisor
	link        *memory.Link
}

func newPair(t *testing.T, dirtyMiB uint64) *pair {
	p := &pair{T: t, here: running(t, func(d *libvirtxml.Domain) {
		d.Devices.Disks = []libvirtxml.DomainDisk{{
			Device: "disk", Alias: alias("root"), Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/root.img"}}, Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		}}
	}), there: memory.New("there")}
	p.here.Connect(peerURI, p.there)
	p.link = p.here.Link(peerURI)
	p.link.SetBandwidth(100 * mib)
	p.here.SetLoad("g", memory.Load{Bytes: 1 << 30, DirtyBytesPerSecond: dirtyMiB * mib})
	return p
}

// migrate begins a migration and returns when it copies.
func (p *pair) migrate(ctx context.Context, change ...func(*domain.MigrationRequest)) <-chan error {
	req := domain.MigrationRequest{Domain: "g", DestinationURI: peerURI}
	for _, c := range change {
		c(&req)
	}
	done := make(chan error, 1)
	go func() { done <- p.here.Migrate(ctx, req) }()
	synctest.Wait()
	return done
}

func (p *pair) progress() domain.Progress {
	p.Helper()
	got, err := p.here.MigrationProgress(p.Context(), "g")
	if err != nil {
		p.Error(err)
	}
	return got
}

// states checks the states at both ends; an empty status is none.
func (p *pair) states(here domain.Status, hereReason domain.Reason, there domain.Status, thereReason domain.Reason) {
	p.Helper()
	for h, want := range map[*memory.Hypervisor]domain.State{
		p.here: {Status: here, Reason: hereReason}, p.there: {Status: there, Reason: thereReason},
	} {
		s, err := h.Get(p.Context(), "g")
		if err != nil && want.Status != "" || s.Status != want.Status || s.Reason != want.Reason {
			p.Errorf("the guest is %s/%s, want %s/%s, %v", s.Status, s.Reason, want.Status, want.Reason, err)
		}
	}
}

func postCopy(r *domain.MigrationRequest) { r.PostCopy = true }

func load(dirty, set uint64) memory.Load {
	return memory.Load{Bytes: 1 << 30, DirtyBytesPerSecond: dirty * mib, WorkingSet: set * mib}
}

func TestMigration_Duration(t *testing.T) {
	standstill := func(d time.Duration) func(*domain.MigrationRequest) {
		return func(r *domain.MigrationRequest) { r.MaxDowntime = d }
	}
	for name, tt := range map[string]struct {
		load   memory.Load
		change func(*domain.MigrationRequest)
		want   time.Duration
		passes uint64
	}{
		"an idle guest goes in one pass":         {load(0, 0), standstill(0), gibiSent, 1},
		"one that writes half as fast":           {load(50, 0), standstill(0), 20160 * time.Millisecond, 6},
		"a longer standstill saves passes":       {load(50, 0), standstill(3 * time.Second), 15360 * time.Millisecond, 2},
		"a small working set does not matter":    {load(1000, 20), standstill(0), gibiSent, 1},
		"a limit of the bandwidth":               {load(0, 0), func(r *domain.MigrationRequest) { r.BandwidthMiB = 10 }, 10 * gibiSent, 1},
		"disks go first":                         {load(0, 0), func(r *domain.MigrationRequest) { r.CopyDisks = []string{"vda"} }, 2 * gibiSent, 1},
		"disks that are not copied take no time": {load(0, 0), func(r *domain.MigrationRequest) { r.CopyDisks = []string{"vdb"} }, gibiSent, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 0)
				p.here.SetLoad("g", tt.load)
				began := time.Now()
				if err := <-p.migrate(t.Context(), tt.change); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began).Round(time.Millisecond); took != tt.want {
					t.Errorf("it took %s, want %s", took, tt.want)
				}
				p.states(domain.StatusShutoff, domain.ReasonMigrated, domain.StatusRunning, domain.ReasonUnknown)
				if last := p.progress(); last.Active || last.Iteration != tt.passes || last.Remaining != 0 {
					t.Errorf("the last progress is %+v, want %d passes", last, tt.passes)
				}
			})
		})
	}
}

func TestAutoConverge_ThrottlesGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 200)
		done := p.migrate(t.Context(), func(r *domain.MigrationRequest) { r.AutoConverge = true })
		time.Sleep(time.Minute)
		slowed := p.progress()
		if slowed.Throttle == 0 || slowed.DirtyBytesPerSecond >= 200*mib {
			t.Errorf("it is not slowed down: %+v", slowed)
		}
		p.is(<-done, nil)
		if last := p.progress(); last.Throttle <= slowed.Throttle {
			t.Errorf("it converged at %+v, after %+v", last, slowed)
		}
	})
}

func TestMigration_BusyGuest(t *testing.T) {
	nothing := func(*domain.MigrationRequest) {}
	for name, tt := range map[string]struct {
		change func(*domain.MigrationRequest)
		help   func(*pair) error
	}{
		"post-copy": {postCopy, func(p *pair) error { return p.here.SwitchToPostCopy(p.Context(), "g") }},
		"a longer standstill": {nothing, func(p *pair) error {
			return p.here.SetMaxDowntime(p.Context(), "g", 20*time.Second)
		}},
		"more bandwidth": {nothing, func(p *pair) error {
			p.link.SetBandwidth(10_000 * mib)
			return nil
		}},
		"a limit that is lifted": {func(r *domain.MigrationRequest) { r.BandwidthMiB = 50 }, func(p *pair) error {
			p.link.SetBandwidth(0)
			return p.here.SetMigrationBandwidth(p.Context(), "g", 0)
		}},
		"a pause": {nothing, func(p *pair) error {
			return p.here.Apply(p.Context(), domain.Operation{Verb: domain.Suspend, Domain: "g"})
		}},
		"less to do": {nothing, func(p *pair) error {
			p.here.SetLoad("g", load(10, 0))
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 200)
				done := p.migrate(t.Context(), tt.change)
				time.Sleep(5 * time.Minute)
				if before := p.progress(); !before.Active || before.Iteration < 3 {
					t.Fatalf("it converges by itself: %+v", before)
				}
				p.is(tt.help(p), nil)
				p.is(<-done, nil)
				if s, err := p.there.Get(t.Context(), "g"); err != nil || !s.Alive() {
					t.Errorf("at the destination: %+v, %v", s, err)
				}
			})
		})
	}
}

func TestPostCopy_RunsBeforeEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 200)
		if err := p.here.SwitchToPostCopy(t.Context(), "g"); !errors.Is(err, domain.ErrInvalidState) {
			t.Errorf("without a migration: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := p.migrate(ctx, postCopy)
		time.Sleep(time.Minute)
		if err := p.here.SwitchToPostCopy(t.Context(), "g"); err != nil {
			t.Fatal(err)
		}
		p.states(domain.StatusPaused, domain.ReasonPostcopy, domain.StatusRunning, domain.ReasonPostcopy)
		if got := p.progress(); !got.PostCopy || got.Remaining == 0 || got.DirtyBytesPerSecond != 0 {
			t.Errorf("progress is %+v", got)
		}
		for what, err := range map[string]error{
			"abort":  p.here.AbortMigration(t.Context(), "g"),
			"resume": p.here.Apply(t.Context(), domain.Operation{Verb: domain.Resume, Domain: "g"}),
			"again":  p.here.SwitchToPostCopy(t.Context(), "g"),
		} {
			if !errors.Is(err, domain.ErrInvalidState) {
				t.Errorf("%s: %v, want ErrInvalidState", what, err)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("there was no way back, and it says %v", err)
		}
		p.states(domain.StatusShutoff, domain.ReasonMigrated, domain.StatusRunning, domain.ReasonUnknown)
	})
}
