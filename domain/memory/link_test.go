// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/memory"
)

func TestLink_Breaks(t *testing.T) {
	for name, tt := range map[string]struct {
		cut   func(*pair)
		check func(*pair)
	}{
		"while it copies": {func(p *pair) { p.link.Cut() }, func(p *pair) {
			p.states(domain.StatusRunning, domain.ReasonUnknown, "", "")
		}},
		"at the switch, before the guest runs there": {func(p *pair) { p.link.CutAtSwitch(false) }, func(p *pair) {
			p.states(domain.StatusPaused, domain.ReasonMigration, domain.StatusPaused, domain.ReasonMigration)
		}},
		"at the switch, when the guest runs there": {func(p *pair) { p.link.CutAtSwitch(true) }, func(p *pair) {
			p.states(domain.StatusPaused, domain.ReasonMigration, domain.StatusRunning, domain.ReasonUnknown)
		}},
		"after the switch to post-copy": {func(p *pair) {
			p.is(p.here.SwitchToPostCopy(p.Context(), "g"), nil)
			p.link.Cut()
		}, func(p *pair) {
			p.states(domain.StatusPaused, domain.ReasonPostcopyFailed, domain.StatusRunning, domain.ReasonPostcopyFailed)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 50)
				done := p.migrate(t.Context(), postCopy)
				time.Sleep(time.Second)
				tt.cut(p)
				if err := <-done; err == nil || errors.Is(err, domain.ErrMigrationAborted) {
					t.Errorf("it ended with %v", err)
				}
				tt.check(p)
				if err := p.here.Migrate(t.Context(), domain.MigrationRequest{Domain: "g", DestinationURI: peerURI}); err == nil {
					t.Error("another one went over the broken link")
				}
				tt.check(p)
			})
		})
	}
}

func TestLink_AnswerLost(t *testing.T) {
	for name, tt := range map[string]struct {
		change            func(*domain.MigrationRequest)
		here, there       domain.Status
		hereWhy, thereWhy domain.Reason
	}{
		"a disk is locked": {
			func(*domain.MigrationRequest) {}, domain.StatusPaused, domain.StatusRunning, domain.ReasonMigration, domain.ReasonUnknown,
		},
		"the disk is copied, and nothing keeps the guest from running twice": {
			func(r *domain.MigrationRequest) { r.CopyDisks = []string{"vda"} },
			domain.StatusRunning, domain.StatusRunning, domain.ReasonUnknown, domain.ReasonUnknown,
		},
		"it arrives paused, and locks nothing": {
			func(r *domain.MigrationRequest) { r.Paused = true },
			domain.StatusRunning, domain.StatusPaused, domain.ReasonUnknown, domain.ReasonUser,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 50)
				p.link.LoseAnswer()
				if err := <-p.migrate(t.Context(), tt.change); err == nil || errors.Is(err, domain.ErrMigrationAborted) {
					t.Errorf("it ended with %v", err)
				}
				p.states(tt.here, tt.hereWhy, tt.there, tt.thereWhy)
			})
		})
	}
}

func (p *pair) is(err, want error) {
	p.Helper()
	if !errors.Is(err, want) {
		p.Errorf("%v, want %v", err, want)
	}
}

func TestPostCopy_Resumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 50)
		resume := func() error {
			return p.here.Migrate(t.Context(), domain.MigrationRequest{Domain: "g", DestinationURI: peerURI, PostCopy: true, Resume: true})
		}
		p.is(resume(), domain.ErrInvalidState)
		done := p.migrate(t.Context(), postCopy)
		time.Sleep(time.Second)
		p.is(p.here.SwitchToPostCopy(t.Context(), "g"), nil)
		p.link.Cut()
		if <-done == nil {
			t.Error("it succeeded")
		}
		if resume() == nil {
			t.Error("it was resumed over a broken link")
		}
		p.link.Restore()
		began := time.Now()
		p.is(resume(), nil)
		if time.Since(began) == 0 {
			t.Error("nothing had to be copied")
		}
		p.states(domain.StatusShutoff, domain.ReasonMigrated, domain.StatusRunning, domain.ReasonUnknown)
	})
}

func TestMigration_DomainEnds(t *testing.T) {
	destroy := domain.Operation{Verb: domain.Destroy, Domain: "g"}
	for name, tt := range map[string]struct {
		postCopy, there  bool
		here, hereReason string
		want             string // status at the destination
	}{
		"at the source":                     {false, false, "Shutoff", "Destroyed", ""},
		"at the destination":                {false, true, "Running", "Unknown", ""},
		"at the source, after post-copy":    {true, false, "Shutoff", "Destroyed", "Running"},
		"at the destination, and post-copy": {true, true, "Paused", "PostcopyFailed", "Shutoff"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, 50)
				done := p.migrate(t.Context(), postCopy)
				time.Sleep(time.Second)
				if tt.postCopy {
					p.is(p.here.SwitchToPostCopy(t.Context(), "g"), nil)
				}
				at := p.here
				if tt.there {
					at = p.there
				}
				p.is(at.Apply(t.Context(), destroy), nil)
				if <-done == nil {
					t.Error("it succeeded")
				}
				if s, err := p.here.Get(t.Context(), "g"); err != nil || string(s.Status) != tt.here || string(s.Reason) != tt.hereReason {
					t.Errorf("at the source the guest is %s/%s, %v", s.Status, s.Reason, err)
				}
				if s, _ := p.there.Get(t.Context(), "g"); string(s.Status) != tt.want {
					t.Errorf("at the destination the guest is %s/%s, want %s", s.Status, s.Reason, tt.want)
				}
				p.is(p.here.Apply(t.Context(), destroy), nil)
				if p.progress().Active {
					t.Error("a guest that has ended migrates")
				}
			})
		})
	}
}

func TestMigration_WithoutClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 0)
		done := p.migrate(t.Context())
		time.Sleep(time.Second)
		p.here.Disconnect()
		p.is(<-done, domain.ErrDisconnected)
		p.here.Reconnect()
		p.is(p.here.Migrate(t.Context(), domain.MigrationRequest{Domain: "g", DestinationURI: peerURI}), domain.ErrInvalidState)
		time.Sleep(time.Minute)
		p.states(domain.StatusShutoff, domain.ReasonMigrated, domain.StatusRunning, domain.ReasonUnknown)
	})
}

func TestMigration_KeepsStateOfGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 0)
		p.here.SetGuestInfo("g", &guestagent.Info{Hostname: "traveller"})
		p.is(p.here.Apply(t.Context(), domain.Operation{Verb: domain.ResizeDisk, Domain: "g", Disk: "ua-root", Bytes: 3 << 30}), nil)
		p.is(p.here.Apply(t.Context(), domain.Operation{Verb: domain.Reset, Domain: "g"}), nil)
		copied := func(r *domain.MigrationRequest) { r.CopyDisks = []string{"vda"} }
		p.there.PutFile("/root.img", 1<<30)
		p.is(<-p.migrate(t.Context(), copied), domain.ErrInvalid)
		p.states(domain.StatusRunning, domain.ReasonUnknown, "", "")
		p.there.PutFile("/root.img", 3<<30)
		p.is(<-p.migrate(t.Context(), copied), nil)
		if info, err := p.there.GuestInfo(t.Context(), "g"); err != nil || info.Hostname != "traveller" {
			t.Errorf("its agent reports %+v, %v", info, err)
		}
		if s, err := p.there.Stats(t.Context()); err != nil || len(s) != 1 || s[0].Disks[0].Capacity != 3<<30 || p.there.Reboots("g") != 1 {
			t.Errorf("its statistics are %+v after %d reboots, %v", s, p.there.Reboots("g"), err)
		}
	})
}

func TestClose_EndsMigrations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 200)
		done := p.migrate(context.WithoutCancel(t.Context()))
		p.is(p.here.Close(), nil)
		if <-done == nil {
			t.Error("it succeeded")
		}
	})
}

func TestMigrationSockets_AsSet(t *testing.T) {
	h := memory.New("node")
	if _, err := h.MigrationSockets(t.Context(), "g"); !errors.Is(err, domain.ErrUnsupported) {
		t.Errorf("without sockets: %v", err)
	}
	want := domain.Sockets{Control: "/run/control", Outside: "/proc/1/root/run/m", Inside: "/run/m"}
	h.SetSockets(want)
	if got, err := h.MigrationSockets(t.Context(), "g"); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}
