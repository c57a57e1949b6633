// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// longest and most bound the values that only a launcher reports: a text in bytes, a list in
// elements. They end up in the status of its VMI.
const (
	longest = 1 << 10
	most    = 1 << 10
)

// shortWireText is a text within the bound.
func shortWireText(s string) string {
	if len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(s[:longest], "") + "…"
}

// fewOnWire returns the beginning of a list within the bound.
func fewOnWire[T any](in []T) []T { return in[:min(len(in), most)] }

// eachOnWire converts the elements of a list; nil stays nil.
func eachOnWire[A, B any](in []A, convert func(A) B) []B {
	if in == nil {
		return nil
	}
	out := make([]B, 0, len(in))
	for _, a := range in {
		out = append(out, convert(a))
	}
	return out
}

// toNanos and fromNanos convert a time; the zero time is 0.
func toNanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// validUTF8 replaces invalid UTF-8, which names may contain and messages may not.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func hostToWire(h domain.Host) *launcherpb.HostResponse {
	return &launcherpb.HostResponse{
		Name: h.Name, Arch: h.Arch, Hypervisor: h.Hypervisor, Version: h.Version, LibraryVersion: h.LibraryVersion,
		Kvm: h.KVM, KvmReason: h.KVMReason, Emulator: h.Emulator, Cpus: int64(h.CPUs), MemoryBytes: h.MemoryBytes,
		Cells: eachOnWire(h.Cells, cellToWire),
	}
}

func hostFromWire(h *launcherpb.HostResponse) domain.Host {
	return domain.Host{
		Name: h.Name, Arch: h.Arch, Hypervisor: h.Hypervisor, Version: h.Version, LibraryVersion: h.LibraryVersion,
		KVM: h.Kvm, KVMReason: h.KvmReason, Emulator: h.Emulator, CPUs: int(h.Cpus), MemoryBytes: h.MemoryBytes,
		Cells: eachOnWire(h.Cells, cellFromWire),
	}
}

func cellToWire(c domain.Cell) *launcherpb.Cell {
	out := &launcherpb.Cell{Id: uint64(c.ID), MemoryKib: c.MemoryKiB, HugepagesKib: c.HugepagesKiB, Cpus: eachOnWire(c.CPUs, func(t domain.HostCPU) *launcherpb.HostCPU {
		return &launcherpb.HostCPU{Id: uint64(t.ID), Core: uint64(t.Core), Socket: uint64(t.Socket)}
	})}
	for to, d := range c.Distances {
		if out.Distances == nil {
			out.Distances = map[uint64]uint64{}
		}
		out.Distances[uint64(to)] = uint64(d)
	}
	return out
}

func cellFromWire(c *launcherpb.Cell) domain.Cell {
	out := domain.Cell{ID: uint(c.Id), MemoryKiB: c.MemoryKib, HugepagesKiB: c.HugepagesKib, CPUs: eachOnWire(c.Cpus, func(t *launcherpb.HostCPU) domain.HostCPU {
		return domain.HostCPU{ID: uint(t.Id), Core: uint(t.Core), Socket: uint(t.Socket)}
	})}
	for to, d := range c.Distances {
		if out.Distances == nil {
			out.Distances = map[uint]uint{}
		}
		out.Distances[uint(to)] = uint(d)
	}
	return out
}

// stateToWire leaves the metadata out, which is in the definition.
func stateToWire(s domain.State) (*launcherpb.State, error) {
	out := &launcherpb.State{Name: s.Name, Uuid: s.UUID, Status: string(s.Status), Reason: string(s.Reason)}
	if s.Domain == nil {
		return out, nil
	}
	xml, err := s.Domain.Marshal()
	if err != nil {
		return nil, fmt.Errorf("definition of %s: %w", s.Name, err)
	}
	out.Definition = xml
	return out, nil
}

func stateFromWire(s *launcherpb.State) (domain.State, error) {
	out := domain.State{Name: s.Name, UUID: s.Uuid, Status: domain.Status(s.Status), Reason: domain.Reason(s.Reason)}
	if s.Definition == "" {
		return out, nil
	}
	out.Domain = &libvirtxml.Domain{}
	err := convert.CheckXML(s.Definition)
	if err == nil {
		err = out.Domain.Unmarshal(s.Definition)
	}
	if err == nil {
		out.Metadata, _, err = domain.MetadataOf(out.Domain)
	}
	if err == nil { // it is read as a definition as well
		err = convert.CheckXML(out.Metadata.LastApplied)
	}
	if err != nil {
		return domain.State{}, fmt.Errorf("definition of %.128s: %w: %w", s.Name, domain.ErrInvalid, err)
	}
	return out, nil
}

var eventTypes = map[domain.EventKind]launcherpb.Event_Type{
	domain.Changed: launcherpb.Event_TYPE_CHANGED, domain.Resync: launcherpb.Event_TYPE_RESYNC, domain.Lost: launcherpb.Event_TYPE_LOST,
}

func eventToWire(e domain.Event) *launcherpb.Event {
	out := &launcherpb.Event{Type: eventTypes[e.Kind], Domain: validUTF8(e.Domain), Why: validUTF8(e.Why)}
	if e.Err != nil {
		out.Error = toWire(e.Err)
	}
	return out
}

// eventFromWire converts unknown events to a Resync: examining all domains is always correct.
func eventFromWire(e *launcherpb.Event) domain.Event {
	switch e.Type {
	case launcherpb.Event_TYPE_CHANGED:
		return domain.Event{Kind: domain.Changed, Domain: e.Domain, Why: e.Why}
	case launcherpb.Event_TYPE_LOST:
		return domain.Event{Kind: domain.Lost, Err: fromWire("watch", "", e.Error)}
	default:
		return domain.Event{Kind: domain.Resync}
	}
}

func migrationToWire(req domain.MigrationRequest) (*launcherpb.MigrateRequest, error) {
	out := &launcherpb.MigrateRequest{
		Domain: req.Domain, DestinationUri: req.DestinationURI, MigrateUri: req.MigrateURI, DisksUri: req.DisksURI,
		CopyDisks: req.CopyDisks, Unsafe: req.Unsafe, BandwidthMib: req.BandwidthMiB, MaxDowntime: int64(req.MaxDowntime),
		AutoConverge: req.AutoConverge, PostCopy: req.PostCopy, Parallel: int64(req.Parallel), Compression: req.Compression,
		Resume: req.Resume, Paused: req.Paused,
	}
	if req.Definition == nil {
		return out, nil
	}
	var err error
	if out.Definition, err = req.Definition.Marshal(); err != nil {
		return nil, fmt.Errorf("migrate %s: %w: %w", req.Domain, domain.ErrInvalid, err)
	}
	return out, nil
}

func migrationFromWire(in *launcherpb.MigrateRequest) (domain.MigrationRequest, error) {
	out := domain.MigrationRequest{
		Domain: in.Domain, DestinationURI: in.DestinationUri, MigrateURI: in.MigrateUri, DisksURI: in.DisksUri,
		CopyDisks: in.CopyDisks, Unsafe: in.Unsafe, BandwidthMiB: in.BandwidthMib, MaxDowntime: time.Duration(in.MaxDowntime),
		AutoConverge: in.AutoConverge, PostCopy: in.PostCopy, Parallel: int(in.Parallel), Compression: in.Compression,
		Resume: in.Resume, Paused: in.Paused,
	}
	if in.Definition == "" {
		return out, nil
	}
	var err error
	out.Definition, err = definitionFromXML(in.Definition)
	return out, err
}

func progressToWire(p domain.Progress) *launcherpb.Progress {
	return &launcherpb.Progress{
		Active: p.Active, Elapsed: int64(p.Elapsed), Total: p.Total, Processed: p.Processed, Remaining: p.Remaining,
		Iteration: p.Iteration, Downtime: int64(p.Downtime), BytesPerSecond: p.BytesPerSecond,
		DirtyBytesPerSecond: p.DirtyBytesPerSecond, Throttle: int64(p.Throttle), PostCopy: p.PostCopy,
	}
}

func progressFromWire(p *launcherpb.Progress) domain.Progress {
	return domain.Progress{
		Active: p.Active, Elapsed: time.Duration(p.Elapsed), Total: p.Total, Processed: p.Processed, Remaining: p.Remaining,
		Iteration: p.Iteration, Downtime: time.Duration(p.Downtime), BytesPerSecond: p.BytesPerSecond,
		DirtyBytesPerSecond: p.DirtyBytesPerSecond, Throttle: int(p.Throttle), PostCopy: p.PostCopy,
	}
}

func snapshotToWire(s domain.Snapshot) *launcherpb.Snapshot {
	return &launcherpb.Snapshot{Name: validUTF8(s.Name), Memory: s.Memory, Created: toNanos(s.Created)}
}

func snapshotFromWire(s *launcherpb.Snapshot) domain.Snapshot {
	return domain.Snapshot{Name: s.GetName(), Memory: s.GetMemory(), Created: fromNanos(s.GetCreated())}
}
