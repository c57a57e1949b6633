// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"slices"

	"github.com/virtloom/virtloom/domain"
)

// snapshotCases are about snapshots.
var snapshotCases = map[string]conformanceCase{
	"snapshots are listed, oldest first, and forgotten": {needs: []Ability{Snapshots}, run: func(s *suite) {
		s.start()
		s.snapshots()
		for _, name := range []string{"zulu", "alpha"} {
			s.ok("take", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: name, Memory: true}))
		}
		all := s.snapshots("zulu", "alpha")
		for _, k := range all {
			if !k.Memory || k.Created.IsZero() {
				s.Errorf("snapshot is %+v", k)
			}
		}
		s.ok("delete", s.keeper().DeleteSnapshot(s.ctx, s.name, "zulu"))
		s.ok("delete again", s.keeper().DeleteSnapshot(s.ctx, s.name, "zulu"))
		s.snapshots("alpha")
	}},
	"a snapshot's name is used once": {needs: []Ability{Snapshots}, run: func(s *suite) {
		s.start()
		s.ok("take", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: "a", Memory: true}))
		s.is("take again", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: "a", Memory: true}), domain.ErrInvalidState)
		s.is("take without a name", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Memory: true}), domain.ErrInvalid)
		s.snapshots("a")
	}},
	"a revert brings back a guest that ended": {needs: []Ability{Snapshots}, run: func(s *suite) {
		s.start()
		s.ok("take", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: "a", Memory: true}))
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		s.must(domain.Destroy)
		ch := s.watch(s.ctx)
		s.ok("revert", s.keeper().RevertSnapshot(s.ctx, s.name, "a"))
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		s.hinted(ch)
	}},
	"a revert keeps the metadata of now": {needs: []Ability{Snapshots}, run: func(s *suite) {
		s.start()
		s.ok("take", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: "a", Memory: true}))
		s.must(domain.SetMetadata, withMetadata(domain.Metadata{Name: "n", UID: "u", Epoch: 41}))
		s.ok("revert", s.keeper().RevertSnapshot(s.ctx, s.name, "a"))
		if m := s.get().Metadata; m.Epoch != 41 {
			s.Errorf("epoch is %d, want 41: who owns the guest is not up to a snapshot", m.Epoch)
		}
	}},
	"a guest that ended keeps its disks": {needs: []Ability{Snapshots}, run: func(s *suite) {
		s.start()
		s.must(domain.Destroy)
		s.ok("take", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: "off"}))
		if all := s.snapshots("off"); all[0].Memory {
			s.Error("it has memory")
		}
		s.start()
		s.must(domain.Destroy)
		s.ok("revert", s.keeper().RevertSnapshot(s.ctx, s.name, "off"))
		if st := s.get(); st.Alive() {
			s.Errorf("domain is %s", st.Status)
		}
	}},
	"undefine forgets the snapshots": {needs: []Ability{Snapshots}, run: func(s *suite) {
		s.start()
		s.ok("take", s.keeper().TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: "a", Memory: true}))
		s.must(domain.Destroy)
		s.must(domain.Undefine)
		_, err := s.Hypervisor.Get(s.ctx, s.name)
		s.is("get", err, domain.ErrNotFound)
	}},
}

// snapshotCase is about snapshots.
type snapshotCase struct{ *subject }

// snapshots lists the snapshots, and checks their names.
func (s snapshotCase) snapshots(want ...string) []domain.Snapshot {
	s.Helper()
	all, err := s.keeper().Snapshots(s.ctx, s.name)
	s.ok("list snapshots", err)
	var got []string
	for _, k := range all {
		got = append(got, k.Name)
	}
	if !slices.Equal(got, want) {
		s.Fatalf("snapshots are %q, want %q", got, want)
	}
	return all
}

// consoleCases are about the serial console.
var consoleCases = map[string]conformanceCase{
	"a console carries both ways": {needs: []Ability{Consoles}, run: func(s *suite) {
		s.start()
		s.echoes(s.console(s.ctx))
	}},
	"a console that is not there is not found": {needs: []Ability{Consoles}, run: func(s *suite) {
		s.start()
		_, err := s.opener().OpenConsole(s.ctx, s.name, probeAlias().Name)
		s.is("open", err, domain.ErrNotFound)
	}},
	"a console ends with its context": {needs: []Ability{Consoles}, run: func(s *suite) {
		s.start()
		ctx, cancel := context.WithCancel(s.ctx)
		c := s.console(ctx)
		cancel()
		s.drains(c)
	}},
	"a console ends when it is closed, more than once": {needs: []Ability{Consoles}, run: func(s *suite) {
		s.start()
		c := s.console(s.ctx)
		s.ok("close", c.Close())
		s.ok("close again", c.Close())
		s.drains(c)
		if _, err := c.Write([]byte("x")); err == nil {
			s.Error("it can be written to")
		}
	}},
	"a console ends with its guest": {needs: []Ability{Consoles}, run: func(s *suite) {
		s.start()
		c := s.console(s.ctx)
		s.must(domain.Destroy)
		s.drains(c)
	}},
	"who opens a console cuts off who had it": {needs: []Ability{Consoles}, run: func(s *suite) {
		s.start()
		first, second := s.console(s.ctx), s.console(s.ctx)
		s.drains(first)
		s.echoes(second)
	}},
	"an open console holds up no operation": {needs: []Ability{Consoles}, run: func(s *suite) {
		s.start()
		s.console(s.ctx)
		s.must(domain.Suspend)
		s.must(domain.Resume)
		if _, err := s.Hypervisor.List(s.ctx); err != nil {
			s.Error(err)
		}
	}},
}
