// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
)

// lifeCases are about the lifecycle of one domain and its metadata.
var lifeCases = map[string]conformanceCase{
	"host is described": {core: true, run: func(s *suite) {
		h, err := s.Hypervisor.Host(s.ctx)
		if err != nil || h.Arch == "" || h.Hypervisor == "" || h.Version == "" || h.KVMReason == "" || h.Name == "" {
			s.Errorf("host is %+v, %v", h, err)
		}
	}},
	"a domain that was never started is not found": {core: true, run: func(s *suite) {
		if _, err := s.Hypervisor.Get(s.ctx, s.name); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("get: %v, want ErrNotFound", err)
		}
	}},
	"start runs the guest": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		if st := s.get(); st.UUID != s.Definition(s, s.name).UUID || st.Domain == nil || st.Domain.Name != s.name {
			s.Errorf("domain is %+v", st)
		}
	}},
	"start of a running guest changes nothing": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.SetMetadata, withMetadata(domain.Metadata{Name: "n", UID: "u", Epoch: 99}))
		s.must(domain.Start)
		if e := s.get().Metadata.Epoch; e != 99 {
			s.Errorf("epoch is %d, want 99", e)
		}
	}},
	"start takes the definition of a guest that ended": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		def := s.Definition(s, s.name)
		m := domain.Metadata{Name: "n", UID: "u", Epoch: 5}
		if err := m.Put(def); err != nil {
			s.Fatal(err)
		}
		s.must(domain.Start, func(op *domain.Operation) { op.Definition = def })
		if st := s.get(); st.Status != domain.StatusRunning || st.Metadata.Epoch != 5 {
			s.Errorf("domain is %+v", st)
		}
	}},
	"start can leave the guest paused": {core: true, needs: []Ability{StartPaused}, run: func(s *suite) {
		s.must(domain.Start, paused)
		s.want(domain.StatusPaused, domain.ReasonUser)
		s.must(domain.Resume)
		s.becomes(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"start that fails leaves nothing": {core: true, run: func(s *suite) {
		def := s.Definition(s, s.name)
		def.Type = "no-such-type"
		if err := s.apply(domain.Start, func(op *domain.Operation) { op.Definition = def }); err == nil {
			s.Error("start succeeded")
		}
		if _, err := s.Hypervisor.Get(s.ctx, s.name); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("get: %v, want ErrNotFound", err)
		}
	}},
	"suspend and resume": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Suspend)
		s.want(domain.StatusPaused, domain.ReasonUser)
		s.must(domain.Suspend)
		s.must(domain.Resume)
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		s.must(domain.Resume)
	}},
	"destroy ends the guest at once and can be repeated": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		s.want(domain.StatusShutoff, domain.ReasonDestroyed)
		s.must(domain.Destroy)
		s.want(domain.StatusShutoff, domain.ReasonDestroyed)
	}},
	"destroy ends a paused guest": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Suspend)
		s.must(domain.Destroy)
		s.want(domain.StatusShutoff, domain.ReasonDestroyed)
	}},
	"shutdown is heard by the guest": {core: true, needs: []Ability{GuestShutdown}, run: func(s *suite) {
		s.must(domain.Start)
		s.until("shut down", func() bool {
			s.must(domain.Shutdown) // a guest hears nothing until it has booted
			return s.get().Status == domain.StatusShutoff
		})
		s.want(domain.StatusShutoff, domain.ReasonShutdown)
	}},
	"undefine forgets and can be repeated": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		s.must(domain.Undefine)
		if _, err := s.Hypervisor.Get(s.ctx, s.name); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("get: %v, want ErrNotFound", err)
		}
		s.must(domain.Undefine)
	}},
	"list has every domain, sorted, without metadata and XML": {core: true, run: func(s *suite) {
		s.must(domain.Start, s.ofOther)
		s.must(domain.Start)
		s.must(domain.Destroy)
		all, err := s.Hypervisor.List(s.ctx)
		if err != nil {
			s.Fatal(err)
		}
		if !slices.IsSortedFunc(all, func(a, b domain.State) int { return strings.Compare(a.Name, b.Name) }) {
			s.Error("the list is not sorted")
		}
		found := 0
		for _, st := range all {
			if st.Name != s.name && st.Name != s.name+"-b" {
				continue
			}
			found++
			if st.Domain != nil || st.Ours() || st.UUID == "" {
				s.Errorf("listed as %+v", st)
			}
			if alive := st.Name != s.name; st.Alive() != alive {
				s.Errorf("%s is %s", st.Name, st.Status)
			}
		}
		if found != 2 {
			s.Errorf("%d domains listed, want 2", found)
		}
	}},
	"metadata of the definition is kept": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		want, _, err := domain.MetadataOf(s.Definition(s, s.name))
		if err != nil {
			s.Fatal(err)
		}
		if diff := cmp.Diff(want, s.get().Metadata); diff != "" {
			s.Errorf("metadata (-want +got):\n%s", diff)
		}
	}},
	"metadata can be replaced whatever the guest does": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		deadline := time.Date(2031, 2, 3, 4, 5, 6, 789000, time.UTC)
		m := domain.Metadata{
			Namespace: "n<s>", Name: `a "name" & more`, UID: types.UID("u'1"), Epoch: 1 << 63, GraceDeadline: &deadline,
			MigrationUID: "m", Paused: true, LastApplied: "<domain><name>x</name></domain>\n\t]]>",
		}
		for _, step := range []func(){func() {}, func() { s.must(domain.Suspend) }, func() { s.must(domain.Destroy) }} {
			step()
			m.Epoch++
			s.must(domain.SetMetadata, withMetadata(m))
			if diff := cmp.Diff(m, s.get().Metadata); diff != "" {
				s.Errorf("metadata (-want +got):\n%s", diff)
			}
		}
	}},
	"metadata outlives the guest": {core: true, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.SetMetadata, withMetadata(domain.Metadata{Name: "n", UID: "u", Epoch: 3}))
		s.must(domain.Destroy)
		if e := s.get().Metadata.Epoch; e != 3 {
			s.Errorf("epoch is %d, want 3", e)
		}
	}},
}
