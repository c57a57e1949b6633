// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/virtloom/virtloom/domain"
	"k8s.io/apimachinery/pkg/types"
)

// basicCases are about one domain's life; names say what a driver does.
var basicCases = map[string]conformanceCase{
	"host is described": {run: func(s *suite) {
		h, err := s.Hypervisor.Host(s.ctx)
		if err != nil || h.Arch == "" || h.Hypervisor == "" || h.Version == "" || h.KVMReason == "" || h.Name == "" {
			s.Errorf("host is %+v, %v", h, err)
		}
	}},
	"a domain nobody has started is not found": {run: func(s *suite) {
		if _, err := s.Hypervisor.Get(s.ctx, s.name); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("get: %v, want ErrNotFound", err)
		}
		for _, verb := range []domain.Verb{domain.Shutdown, domain.Suspend, domain.Resume, domain.SetMetadata} {
			if err := s.apply(verb); !errors.Is(err, domain.ErrNotFound) {
				s.Errorf("%s: %v, want ErrNotFound", verb, err)
			}
		}
	}},
	"ending and forgetting an unknown domain succeeds": {run: func(s *suite) {
		s.must(domain.Destroy)
		s.must(domain.Undefine)
	}},
	"start runs the guest": {run: func(s *suite) {
		s.must(domain.Start)
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		if st := s.get(); st.UUID != s.Definition(s, s.name).UUID || st.Domain == nil || st.Domain.Name != s.name {
			s.Errorf("domain is %+v", st)
		}
	}},
	"start of a running guest changes nothing": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.SetMetadata, withMetadata(domain.Metadata{Name: "n", UID: "u", Epoch: 99}))
		s.must(domain.Start)
		if e := s.get().Metadata.Epoch; e != 99 {
			s.Errorf("epoch is %d, want 99", e)
		}
	}},
	"start takes the definition of a guest that ended": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		def := s.Definition(s, s.name)
		if err := domain.PutMetadata(def, domain.Metadata{Name: "n", UID: "u", Epoch: 5}); err != nil {
			s.Fatal(err)
		}
		s.must(domain.Start, func(op *domain.Operation) { op.Definition = def })
		if st := s.get(); st.Status != domain.StatusRunning || st.Metadata.Epoch != 5 {
			s.Errorf("domain is %+v", st)
		}
	}},
	"start can leave the guest paused": {needs: []Ability{StartPaused}, run: func(s *suite) {
		s.must(domain.Start, paused)
		s.want(domain.StatusPaused, domain.ReasonUser)
		s.must(domain.Resume)
		s.becomes(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"start that fails leaves nothing": {run: func(s *suite) {
		def := s.Definition(s, s.name)
		def.Type = "no-such-type"
		if err := s.apply(domain.Start, func(op *domain.Operation) { op.Definition = def }); err == nil {
			s.Error("start succeeded")
		}
		if _, err := s.Hypervisor.Get(s.ctx, s.name); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("get: %v, want ErrNotFound", err)
		}
	}},
	"incomplete operations are invalid": {run: func(s *suite) {
		for name, op := range map[string]domain.Operation{
			"no verb": {Domain: s.name}, "no name": {Verb: domain.Destroy},
			"no definition": {Verb: domain.Start, Domain: s.name}, "no device": {Verb: domain.AttachDevice, Domain: s.name},
			"other name": {Verb: domain.Start, Domain: s.name, Definition: s.Definition(s, s.name+"-b")},
		} {
			if err := s.Hypervisor.Apply(s.ctx, op); !errors.Is(err, domain.ErrInvalid) {
				s.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
	}},
	"suspend and resume": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Suspend)
		s.want(domain.StatusPaused, domain.ReasonUser)
		s.must(domain.Suspend)
		s.must(domain.Resume)
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		s.must(domain.Resume)
	}},
	"a guest that ended can be neither suspended nor resumed": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		for _, verb := range []domain.Verb{domain.Suspend, domain.Resume} {
			if err := s.apply(verb); !errors.Is(err, domain.ErrInvalidState) {
				s.Errorf("%s: %v, want ErrInvalidState", verb, err)
			}
		}
	}},
	"destroy ends the guest at once and can be repeated": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		s.want(domain.StatusShutoff, domain.ReasonDestroyed)
		s.must(domain.Destroy)
		s.want(domain.StatusShutoff, domain.ReasonDestroyed)
	}},
	"destroy ends a paused guest": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Suspend)
		s.must(domain.Destroy)
		s.want(domain.StatusShutoff, domain.ReasonDestroyed)
	}},
	"shutdown is heard by the guest": {needs: []Ability{GuestShutdown}, run: func(s *suite) {
		s.must(domain.Start)
		s.until("shut down", func() bool {
			s.must(domain.Shutdown) // a guest hears nothing until it has booted
			return s.get().Status == domain.StatusShutoff
		})
		s.want(domain.StatusShutoff, domain.ReasonShutdown)
	}},
	"shutdown of a guest that ended succeeds": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		s.must(domain.Shutdown)
		s.want(domain.StatusShutoff, domain.ReasonDestroyed)
	}},
	"shutdown of a paused guest is refused": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Suspend)
		if err := s.apply(domain.Shutdown); !errors.Is(err, domain.ErrInvalidState) {
			s.Errorf("shutdown: %v, want ErrInvalidState", err)
		}
	}},
	"undefine refuses a guest that runs": {run: func(s *suite) {
		s.must(domain.Start)
		if err := s.apply(domain.Undefine); !errors.Is(err, domain.ErrInvalidState) {
			s.Errorf("undefine: %v, want ErrInvalidState", err)
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"undefine forgets and can be repeated": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Destroy)
		s.must(domain.Undefine)
		if _, err := s.Hypervisor.Get(s.ctx, s.name); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("get: %v, want ErrNotFound", err)
		}
		s.must(domain.Undefine)
	}},
	"list has every domain, sorted, without metadata and XML": {run: func(s *suite) {
		s.must(domain.Start, func(op *domain.Operation) { op.Domain = s.name + "-b" })
		s.must(domain.Start)
		s.must(domain.Destroy)
		all, err := s.Hypervisor.List(s.ctx)
		if err != nil {
			s.Fatal(err)
		}
		if !slices.IsSortedFunc(all, func(a, b domain.State) int { return cmpStrings(a.Name, b.Name) }) {
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
	"metadata of the definition is kept": {run: func(s *suite) {
		s.must(domain.Start)
		want, _, err := domain.MetadataOf(s.Definition(s, s.name))
		if err != nil {
			s.Fatal(err)
		}
		if diff := cmp.Diff(want, s.get().Metadata); diff != "" {
			s.Errorf("metadata (-want +got):\n%s", diff)
		}
	}},
	"metadata can be replaced whatever the guest does": {run: func(s *suite) {
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
	"metadata outlives the guest": {run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.SetMetadata, withMetadata(domain.Metadata{Name: "n", UID: "u", Epoch: 3}))
		s.must(domain.Destroy)
		if e := s.get().Metadata.Epoch; e != 3 {
			s.Errorf("epoch is %d, want 3", e)
		}
	}},
	"an ended context ends every call": {run: func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		_, errHost := s.Hypervisor.Host(ctx)
		_, errList := s.Hypervisor.List(ctx)
		_, errGet := s.Hypervisor.Get(ctx, s.name)
		errApply := s.Hypervisor.Apply(ctx, domain.Operation{Verb: domain.Destroy, Domain: s.name})
		// Host may answer from what it knows.
		for what, err := range map[string]error{"list": errList, "get": errGet, "apply": errApply} {
			if !errors.Is(err, context.Canceled) {
				s.Errorf("%s: %v, want context.Canceled", what, err)
			}
		}
		if errHost != nil && !errors.Is(errHost, context.Canceled) {
			s.Errorf("host: %v", errHost)
		}
	}},
	"a deadline that passed is a timeout": {run: func(s *suite) {
		ctx, cancel := context.WithDeadline(s.ctx, time.Unix(0, 0))
		defer cancel()
		if _, err := s.Hypervisor.List(ctx); !errors.Is(err, domain.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("list: %v, want ErrTimeout", err)
		}
	}},
	"concurrent starts make one guest": {run: func(s *suite) {
		errs := make(chan error)
		const n = 5
		for range n {
			def := s.Definition(s, s.name)
			go func() {
				errs <- s.Hypervisor.Apply(s.ctx, domain.Operation{Verb: domain.Start, Domain: s.name, Definition: def})
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				s.Error(err)
			}
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
}

func cmpStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
