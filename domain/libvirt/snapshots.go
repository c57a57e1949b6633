// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// snapshotter implements domain.Snapshotter.
type snapshotter struct{ *connection }

// TakeSnapshot implements domain.Snapshotter by internal snapshots, which need disks of a format
// that supports them (qcow2). External ones would leave the domain on new files, which are not in
// its spec.
func (d *snapshotter) TakeSnapshot(ctx context.Context, name string, s domain.Snapshot) error {
	const op = "take snapshot"
	if s.Name == "" {
		return fmt.Errorf("libvirt: %s of %s: name: Required value: %w", op, name, domain.ErrInvalid)
	}
	xml, err := (&libvirtxml.DomainSnapshot{Name: s.Name}).Marshal()
	if err != nil {
		return fmt.Errorf("libvirt: %s of %s: %w: %w", op, name, domain.ErrInvalid, err)
	}
	return operate(ctx, d.connection, op, name, func(c *virt.Connect) error {
		return withDomain(c, name, func(dom *virt.Domain) error {
			if err := mayTake(dom, s); err != nil {
				return err
			}
			made, err := dom.CreateSnapshotXML(xml, 0)
			if err != nil {
				return err
			}
			return made.Free()
		})
	})
}

// mayTake refuses a snapshot where libvirt would do something else instead.
func mayTake(dom *virt.Domain, s domain.Snapshot) error {
	active, err := dom.IsActive()
	switch {
	case err != nil:
		return err
	case s.Memory && !active:
		return invalidState("the domain is not running and has no memory")
	case !s.Memory && active:
		return virt.Error{Code: virt.ERR_OPERATION_UNSUPPORTED, Message: "a snapshot of a running domain without its memory is not supported"}
	}
	err = withSnapshot(dom, s.Name, func(*virt.DomainSnapshot) error { return invalidState("there is already a snapshot " + s.Name) })
	if code(err, virt.ERR_NO_DOMAIN_SNAPSHOT) {
		return nil
	}
	return err
}

// withSnapshot looks a snapshot up for f.
func withSnapshot(dom *virt.Domain, name string, f func(*virt.DomainSnapshot) error) error {
	s, err := dom.SnapshotLookupByName(name, 0)
	if err != nil {
		return err
	}
	defer func() { _ = s.Free() }()
	return f(s)
}

// Snapshots implements domain.Snapshotter.
func (d *snapshotter) Snapshots(ctx context.Context, name string) ([]domain.Snapshot, error) {
	return read(ctx, d.connection, "list snapshots", name, func(c *virt.Connect) (out []domain.Snapshot, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			// Parents come first: times have a resolution of seconds.
			all, err := dom.ListAllSnapshots(virt.DOMAIN_SNAPSHOT_LIST_TOPOLOGICAL)
			if err != nil {
				return err
			}
			for i := range all {
				defer func() { _ = all[i].Free() }()
			}
			for i := range all {
				s, err := describeSnapshot(&all[i])
				if err != nil {
					return err
				}
				out = append(out, s)
			}
			slices.SortStableFunc(out, func(a, b domain.Snapshot) int { return a.Created.Compare(b.Created) })
			return nil
		})
		return out, err
	})
}

func describeSnapshot(s *virt.DomainSnapshot) (domain.Snapshot, error) {
	xml, err := s.GetXMLDesc(0)
	if err != nil {
		return domain.Snapshot{}, err
	}
	var x libvirtxml.DomainSnapshot
	if err := x.Unmarshal(xml); err != nil {
		return domain.Snapshot{}, fmt.Errorf("parse snapshot: %w", err)
	}
	seconds, err := strconv.ParseInt(x.CreationTime, 10, 64)
	if err != nil {
		return domain.Snapshot{}, fmt.Errorf("parse snapshot %s: %w", x.Name, err)
	}
	return domain.Snapshot{Name: x.Name, Memory: keepsMemory(&x), Created: time.Unix(seconds, 0).UTC()}, nil
}

// keepsMemory reports whether a snapshot contains the memory of a running domain.
func keepsMemory(x *libvirtxml.DomainSnapshot) bool {
	if x.Memory != nil && x.Memory.Snapshot != "" {
		return x.Memory.Snapshot != "no"
	}
	return x.State == "running" || x.State == "paused"
}

// RevertSnapshot implements domain.Snapshotter. libvirt restores the definition as well, with the
// metadata in it; the current metadata is put back.
func (d *snapshotter) RevertSnapshot(ctx context.Context, name, snapshot string) error {
	return operate(ctx, d.connection, "revert to snapshot", name, func(c *virt.Connect) error {
		return withDomain(c, name, func(dom *virt.Domain) error {
			now, err := parsed(dom, 0)
			if err != nil {
				return err
			}
			m, ours, err := domain.MetadataOf(now)
			if err != nil {
				return err
			}
			err = withSnapshot(dom, snapshot, func(s *virt.DomainSnapshot) error { return s.RevertToSnapshot(0) })
			if err != nil || !ours {
				return err
			}
			xml, err := m.XML()
			if err != nil {
				return err
			}
			return setMetadata(dom, xml)
		})
	})
}

// DeleteSnapshot implements domain.Snapshotter.
func (d *snapshotter) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	return operate(ctx, d.connection, "delete snapshot", name, func(c *virt.Connect) error {
		return withDomain(c, name, func(dom *virt.Domain) error {
			err := withSnapshot(dom, snapshot, func(s *virt.DomainSnapshot) error { return s.Delete(0) })
			if code(err, virt.ERR_NO_DOMAIN_SNAPSHOT) {
				return nil
			}
			return err
		})
	})
}
