// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/libvirt"
)

// move is a guest that is about to migrate over sockets.
type move struct {
	*testing.T
	ns          *nodes
	here, there *libvirt.Driver
	way         *relay
	name        string
	disk        string // path of a disk whose content only this node has
}

// newMove starts a guest with those words on its kernel's command line.
func newMove(t *testing.T, ns *nodes, name, words string) *move {
	m := &move{T: t, ns: ns, here: ns.open(t, ns.n[0]), there: ns.open(t, ns.n[1])}
	m.way = newRelay(t, m.here, m.there, "move")
	vmi, f := guest(name), ns.facts(t, name)
	vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs += " " + words
	memory := resource.MustParse("256Mi")
	vmi.Spec.Domain.Memory.Guest = &memory
	d, err := convert.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	m.name, m.disk = d.Name, ns.file(t, filepath.Join(f.Dir, "data.img"), 48<<20)
	d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{
		Device: "disk", Alias: uaAlias("data"), Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
		Source: fileSource(m.disk), Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
	})
	t.Cleanup(func() { destroy(t, d.Name, m.here, m.there) })
	if err := m.here.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		t.Fatal(err)
	}
	await(t, "a heartbeat", func() bool { return len(beats(serial(t, ns.n[0], f))) > 3 })
	return m
}

// begin begins a migration and returns when it has a job.
func (m *move) begin(change func(*domain.MigrationRequest)) <-chan error {
	m.Helper()
	req := m.way.request(m.name)
	req.CopyDisks = []string{"vda"}
	change(&req)
	done := make(chan error, 1)
	go func() { done <- m.here.Migrate(m.Context(), req) }()
	return done
}

// sees polls the progress.
func (m *move) sees(what string, done <-chan error, ok func(domain.Progress) bool) {
	m.Helper()
	var last domain.Progress
	await(m.T, what, func() bool {
		select {
		case err := <-done:
			m.Fatalf("%s: the move ended before: %v, %+v", what, err, last)
		default:
		}
		p, err := m.here.MigrationProgress(m.Context(), m.name)
		if err != nil {
			m.Fatal(err)
		}
		last = p
		return p.Active && ok(p)
	})
}

func (m *move) state(h *libvirt.Driver) (domain.Status, domain.Reason) {
	s, err := h.Get(m.Context(), m.name)
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		m.Error(err)
	}
	return s.Status, s.Reason
}

func (m *move) abort(done <-chan error) {
	m.Helper()
	if err := m.here.AbortMigration(m.Context(), m.name); err != nil {
		m.Error(err)
	}
	if err := <-done; !errors.Is(err, domain.ErrMigrationAborted) {
		m.Errorf("the move ended with %v, want that it was aborted", err)
	}
	if s, r := m.state(m.here); s != domain.StatusRunning {
		m.Errorf("the guest is %s/%s", s, r)
	}
	if s, r := m.state(m.there); s != "" {
		m.Errorf("at the destination the guest is %s/%s", s, r)
	}
}

func testMoves(t *testing.T, ns *nodes) {
	t.Run("a disk travels beside the memory", func(t *testing.T) { testCopiedDisk(t, ns) })
	t.Run("a move of a disk is aborted", func(t *testing.T) {
		m := newMove(t, ns, "abort-disk", "")
		done := m.begin(func(r *domain.MigrationRequest) { r.BandwidthMiB = 1 })
		m.sees("a part of the disk", done, func(p domain.Progress) bool { return p.Processed > 1<<20 && p.Iteration == 0 })
		m.abort(done)
	})
	t.Run("a move is aborted wherever it is", func(t *testing.T) { testAborts(t, ns) })
	t.Run("a guest that writes fast is slowed down", func(t *testing.T) {
		m := newMove(t, ns, "busy", "dirty=96,0")
		done := m.begin(func(r *domain.MigrationRequest) {
			r.AutoConverge, r.BandwidthMiB, r.CopyDisks, r.Unsafe = true, 20, nil, true
		})
		m.sees("a rate of writing", done, func(p domain.Progress) bool { return p.DirtyBytesPerSecond > 0 && p.Downtime > 0 })
		m.sees("a guest that is slowed down", done, func(p domain.Progress) bool { return p.Throttle > 0 })
		m.abort(done)
	})
	t.Run("a move goes by the limit of now, the next one by its own", func(t *testing.T) {
		m := newMove(t, ns, "tuned", "dirty=32,40")
		memory := func(mib uint64) func(*domain.MigrationRequest) {
			return func(r *domain.MigrationRequest) { r.BandwidthMiB, r.CopyDisks, r.Unsafe = mib, nil, true }
		}
		done := m.begin(memory(2))
		m.sees("some memory sent", done, func(p domain.Progress) bool { return p.Processed > 1<<20 })
		if err := m.here.SetMigrationBandwidth(t.Context(), m.name, 1); err != nil {
			t.Fatal(err)
		}
		m.abort(done)
		// With the limit of the first migration it would never end.
		if err := <-m.begin(memory(0)); err != nil {
			t.Error(err)
		}
	})
	t.Run("memory goes over many connections", func(t *testing.T) {
		m := newMove(t, ns, "parallel", "")
		if err := <-m.begin(func(r *domain.MigrationRequest) { r.Parallel = 4 }); err != nil {
			t.Fatal(err)
		}
		if s, r := m.state(m.there); s != domain.StatusRunning {
			t.Errorf("at the destination the guest is %s/%s", s, r)
		}
		for _, h := range []*libvirt.Driver{m.here, m.there} {
			if p, err := h.MigrationProgress(t.Context(), m.name); err != nil || p.Active || p.Total == 0 || p.Downtime == 0 {
				t.Errorf("it is remembered as %+v, %v", p, err)
			}
		}
	})
	t.Run("post-copy of a busy guest with a copied disk", func(t *testing.T) {
		m := newMove(t, ns, "postcopy", "dirty=96,0")
		done := m.begin(func(r *domain.MigrationRequest) { r.PostCopy, r.Parallel = true, 8 })
		m.sees("a second pass", done, func(p domain.Progress) bool { return p.Iteration > 1 })
		if err := m.here.SwitchToPostCopy(t.Context(), m.name); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if s, r := m.state(m.there); s != domain.StatusRunning || r != domain.ReasonUnknown {
			t.Errorf("at the destination the guest is %s/%s", s, r)
		}
	})
	t.Run("zstd is refused by name", func(t *testing.T) {
		m := newMove(t, ns, "zstd", "")
		err := <-m.begin(func(r *domain.MigrationRequest) { r.Parallel, r.Compression = 2, "zstd" })
		if err != nil && !errors.Is(err, domain.ErrUnsupported) {
			t.Errorf("it ended with %v, want that it is done or not supported", err)
		}
	})
}

func testCopiedDisk(t *testing.T, ns *nodes) {
	m := newMove(t, ns, "copied", "")
	content := make([]byte, 48<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(content[:40<<20]) // the rest stays zero
	if err := os.WriteFile(ns.n[0].HostPath(m.disk), content, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := <-m.begin(func(*domain.MigrationRequest) {}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(ns.n[1].HostPath(m.disk))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("the disk at the destination is another one, of %d bytes, %v", len(got), err)
	}
	if p, err := m.here.MigrationProgress(t.Context(), m.name); err != nil || p.Total < 48<<20 {
		t.Errorf("it is remembered as %+v, %v", p, err)
	}
}

// testAborts aborts one guest's migrations at later and later points.
func testAborts(t *testing.T, ns *nodes) {
	m := newMove(t, ns, "aborts", "")
	aborted := 0
	for _, after := range []int{0, 1, 5, 20, 50, 100, 200, 400, 1600} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
		req := m.way.request(m.name)
		req.CopyDisks, req.BandwidthMiB = []string{"vda"}, 10
		err := m.here.Migrate(ctx, req)
		cancel()
		switch {
		case errors.Is(err, domain.ErrMigrationAborted):
			aborted++
		case !errors.Is(err, domain.ErrTimeout): // as it had not begun
			t.Fatalf("aborted after %d ms: %v", after, err)
		}
		if s, r := m.state(m.here); s != domain.StatusRunning {
			t.Fatalf("aborted after %d ms: the guest is %s/%s", after, s, r)
		}
	}
	if aborted == 0 {
		t.Error("no migration had begun")
	}
	if err := m.here.Migrate(t.Context(), func() domain.MigrationRequest {
		req := m.way.request(m.name)
		req.CopyDisks = []string{"vda"}
		return req
	}()); err != nil {
		t.Errorf("after all that: %v", err)
	}
}
