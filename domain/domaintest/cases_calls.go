// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"
	"sync"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// callCases are about properties of all calls.
var callCases = map[string]conformanceCase{
	"incomplete operations are invalid": {core: true, run: func(s *suite) {
		for name, op := range map[string]domain.Operation{
			"no verb": {Domain: s.name}, "no name": {Verb: domain.Destroy}, "unknown verb": {Verb: "Dance", Domain: s.name},
			"no definition":       {Verb: domain.Start, Domain: s.name},
			"other name":          {Verb: domain.Start, Domain: s.name, Definition: s.Definition(s, s.other())},
			"attach nothing":      {Verb: domain.AttachDevice, Domain: s.name},
			"detach nothing":      {Verb: domain.DetachDevice, Domain: s.name},
			"update nothing":      {Verb: domain.UpdateDevice, Domain: s.name},
			"no CPUs":             {Verb: domain.SetVCPUs, Domain: s.name},
			"resize of what":      {Verb: domain.ResizeDisk, Domain: s.name, Bytes: 1},
			"resize of no domain": {Verb: domain.ResizeDisk, Disk: "ua-x", Bytes: 1},
		} {
			s.is(name, s.Hypervisor.Apply(s.ctx, op), domain.ErrInvalid)
		}
	}},
	"verbs that a driver lacks are refused and do no harm": {core: true, run: func(s *suite) {
		s.start()
		for _, verb := range []domain.Verb{domain.Reset, domain.Reboot, domain.SetVCPUs} {
			if err := s.apply(verb, withVCPUs(1)); err != nil && !errors.Is(err, domain.ErrUnsupported) {
				s.Errorf("%s: %v, want nil or ErrUnsupported", verb, err)
			}
		}
		if st := s.get(); !st.Alive() {
			s.Errorf("domain is %s/%s", st.Status, st.Reason)
		}
	}},
	"metadata that XML cannot hold is invalid": {core: true, run: func(s *suite) {
		s.start()
		before := s.get().Metadata
		s.fails(domain.ErrInvalid, domain.SetMetadata, withMetadata(domain.Metadata{Name: "zero\x00", UID: "u"}))
		if s.get().Metadata.Name != before.Name {
			s.Error("it was stored")
		}
	}},
	"a device without an alias of ours is invalid": {needs: []Ability{DiskHotplug}, run: func(s *suite) {
		s.start()
		nameless := &libvirtxml.DomainDisk{Device: "disk", Target: &libvirtxml.DomainDiskTarget{Dev: "vdx", Bus: "virtio"}}
		foreign := &libvirtxml.DomainDisk{Device: "disk", Alias: &libvirtxml.DomainAlias{Name: "virtio-disk7"}}
		for _, verb := range []domain.Verb{domain.AttachDevice, domain.DetachDevice, domain.UpdateDevice} {
			s.fails(domain.ErrInvalid, verb, withDevice(nameless))
			s.fails(domain.ErrInvalid, verb, withDevice(foreign))
		}
	}},
	"an ended context ends every call": {core: true, run: func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		for what, err := range s.calls(ctx) {
			s.is(what, err, context.Canceled)
		}
	}},
	"an ended context ends every verb": {core: true, run: func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		for _, op := range s.operations() {
			s.is(op.String(), s.Hypervisor.Apply(ctx, op), context.Canceled)
		}
		_, err := s.Hypervisor.Get(s.ctx, s.name)
		s.is("get", err, domain.ErrNotFound)
	}},
	"an ended context ends every ability": {run: func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		for _, m := range methods {
			if _, declared := s.Unsupported[m.ability]; !declared && s.lacks(m.ability) == "" {
				s.is(m.name, m.call(s, ctx), context.Canceled)
			}
		}
	}},
	"a deadline that passed is a timeout": {core: true, run: func(s *suite) {
		ctx, cancel := context.WithDeadline(s.ctx, time.Unix(0, 0))
		defer cancel()
		for what, err := range s.calls(ctx) {
			s.is(what, err, domain.ErrTimeout)
			s.is(what, err, context.DeadlineExceeded)
		}
		s.is("start", s.Hypervisor.Apply(ctx, s.operations()[0]), domain.ErrTimeout)
	}},
	"concurrent starts make one guest": {core: true, run: func(s *suite) {
		s.atOnce(5, func(int) domain.Operation {
			return domain.Operation{Verb: domain.Start, Domain: s.name, Definition: s.Definition(s, s.name)}
		})
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"concurrent ends are one end": {core: true, run: func(s *suite) {
		s.start()
		s.atOnce(6, func(i int) domain.Operation {
			return domain.Operation{Verb: []domain.Verb{domain.Destroy, domain.Shutdown}[i%2], Domain: s.name}
		})
		if st := s.get(); st.Alive() {
			s.Errorf("domain is %s/%s", st.Status, st.Reason)
		}
	}},
	"concurrent operations on two domains do not mix": {core: true, run: func(s *suite) {
		s.start()
		s.must(domain.Start, s.ofOther)
		s.atOnce(8, func(i int) domain.Operation {
			if i%2 == 0 {
				return domain.Operation{Verb: domain.Suspend, Domain: s.name}
			}
			m := domain.Metadata{Name: "n", UID: "u", Epoch: 7}
			return domain.Operation{Verb: domain.SetMetadata, Domain: s.other(), Metadata: m}
		})
		s.want(domain.StatusPaused, domain.ReasonUser)
		there, err := s.Hypervisor.Get(s.ctx, s.other())
		if err != nil || there.Status != domain.StatusRunning || there.Metadata.Epoch != 7 {
			s.Errorf("the other is %s of epoch %d, %v", there.Status, there.Metadata.Epoch, err)
		}
	}},
	"lists go on while operations do": {core: true, run: func(s *suite) {
		s.start()
		ctx, cancel := context.WithCancel(s.ctx)
		var lists sync.WaitGroup
		for range 3 {
			lists.Go(func() {
				for ctx.Err() == nil {
					if _, err := s.Hypervisor.List(ctx); err != nil && ctx.Err() == nil {
						s.Errorf("list: %v", err)
						return
					}
				}
			})
		}
		for range 10 {
			s.must(domain.Suspend)
			s.must(domain.Resume)
		}
		cancel()
		lists.Wait()
	}},
	"what is returned is the caller's own": {core: true, run: func(s *suite) {
		s.start()
		s.must(domain.SetMetadata, withMetadata(domain.Metadata{Name: "n", UID: "u", DiskBytes: map[string]int64{"root": 1}}))
		st := s.get()
		st.Domain.Name, st.Metadata.Name = "changed", "changed"
		st.Metadata.DiskBytes["root"] = 2
		if again := s.get(); again.Domain.Name != s.name || again.Metadata.Name != "n" || again.Metadata.DiskBytes["root"] != 1 {
			s.Errorf("domain is %s of %+v", again.Domain.Name, again.Metadata)
		}
		h, err := s.Hypervisor.Host(s.ctx)
		s.ok("host", err)
		for i := range h.Cells {
			h.Cells[i].ID = 77
		}
		again, err := s.Hypervisor.Host(s.ctx)
		s.ok("host", err)
		for _, c := range again.Cells {
			if c.ID == 77 {
				s.Error("the cells of the host are shared")
			}
		}
	}},
	"what was passed in is not kept": {core: true, run: func(s *suite) {
		def := s.Definition(s, s.name)
		s.must(domain.Start, func(op *domain.Operation) { op.Definition = def })
		def.Description = "changed"
		if st := s.get(); st.Domain.Description == "changed" {
			s.Error("the definition is shared")
		}
		m := domain.Metadata{Name: "n", UID: "u", DiskBytes: map[string]int64{"root": 1}}
		s.must(domain.SetMetadata, withMetadata(m))
		m.DiskBytes["root"] = 2
		if st := s.get(); st.Metadata.DiskBytes["root"] != 1 {
			s.Error("the metadata is shared")
		}
	}},
	"without a connection every call fails at once": {needs: []Ability{Reconnects}, run: func(s *suite) {
		s.start()
		ch := s.watch(s.ctx)
		s.Disconnect(s)
		for e := s.next(ch); e.Kind != domain.Lost; e = s.next(ch) {
			if e.Kind != domain.Changed {
				s.Fatalf("event is %+v", e)
			}
		}
		for what, err := range s.calls(s.ctx) {
			s.is(what, err, domain.ErrDisconnected)
		}
		for _, op := range s.operations() {
			s.is(op.String(), s.Hypervisor.Apply(s.ctx, op), domain.ErrDisconnected)
		}
		for _, m := range methods {
			if _, declared := s.Unsupported[m.ability]; !declared && s.lacks(m.ability) == "" {
				s.is(m.name, m.call(s, s.ctx), domain.ErrDisconnected)
			}
		}
		s.Reconnect(s)
		for e := s.next(ch); e.Kind != domain.Resync; e = s.next(ch) {
			s.Logf("event is %+v", e)
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
}

// callCase is about calls of any kind.
type callCase struct{ *subject }

// calls makes every call but operations, and returns the errors.
func (s callCase) calls(ctx context.Context) map[string]error {
	_, host := s.Hypervisor.Host(ctx)
	_, list := s.Hypervisor.List(ctx)
	_, get := s.Hypervisor.Get(ctx, s.name)
	return map[string]error{"host": host, "list": list, "get": get}
}

// operations returns a complete one of every verb, Start first.
func (s callCase) operations() []domain.Operation {
	probe := &libvirtxml.DomainDisk{Device: "disk", Alias: probeAlias()}
	ops := []domain.Operation{{Verb: domain.Start, Definition: s.Definition(s, s.name)}}
	for _, verb := range []domain.Verb{
		domain.Shutdown, domain.Destroy, domain.Undefine, domain.Suspend, domain.Resume, domain.SetMetadata, domain.AttachDevice,
		domain.DetachDevice, domain.UpdateDevice, domain.Reset, domain.Reboot, domain.SetVCPUs, domain.ResizeDisk,
	} {
		ops = append(ops, domain.Operation{Verb: verb, Device: probe, VCPUs: 1, Disk: probe.Alias.Name, Bytes: 1 << 30})
	}
	for i := range ops {
		ops[i].Domain = s.name
	}
	return ops
}

// atOnce applies n operations concurrently; all have to succeed.
func (s callCase) atOnce(n int, op func(int) domain.Operation) {
	s.Helper()
	var all sync.WaitGroup
	for i := range n {
		o := op(i)
		all.Go(func() {
			if err := s.Hypervisor.Apply(s.ctx, o); err != nil {
				s.Errorf("%s: %v", o, err)
			}
		})
	}
	all.Wait()
}
