// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// List implements domain.Hypervisor. The state of a domain is read without waiting for operations
// on it.
func (d *Driver) List(ctx context.Context) ([]domain.State, error) {
	return read(ctx, d.connection, "list domains", "", func(c *virt.Connect) ([]domain.State, error) {
		records, err := bulk(c, virt.DOMAIN_STATS_STATE, 0)
		if err != nil {
			return nil, err
		}
		out := make([]domain.State, 0, len(records))
		for _, r := range records {
			s := domain.State{Name: r.name, UUID: r.uuid}
			s.Status, s.Reason = nameState(virt.DomainState(r.numbers["state.state"]), int(r.numbers["state.reason"]))
			out = append(out, s)
		}
		slices.SortFunc(out, func(a, b domain.State) int { return strings.Compare(a.Name, b.Name) })
		return out, nil
	})
}

// state is name, UUID and status.
func state(dom *virt.Domain) (domain.State, error) {
	name, err := dom.GetName()
	if err != nil {
		return domain.State{}, err
	}
	uuid, err := dom.GetUUIDString()
	if err != nil {
		return domain.State{}, err
	}
	st, reason, err := dom.GetState()
	if err != nil {
		return domain.State{}, err
	}
	s := domain.State{Name: name, UUID: uuid}
	s.Status, s.Reason = nameState(st, reason)
	return s, nil
}

// Get implements domain.Hypervisor.
func (d *Driver) Get(ctx context.Context, name string) (domain.State, error) {
	return read(ctx, d.connection, "get domain", name, func(c *virt.Connect) (s domain.State, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			if s, err = state(dom); err != nil {
				return err
			}
			if s.Domain, err = parsed(dom, 0); err != nil {
				return err
			}
			m, _, err := domain.MetadataOf(s.Domain)
			if err != nil {
				return fmt.Errorf("parse the metadata of %s: %w", name, err)
			}
			s.Metadata = m
			return nil
		})
		return s, err
	})
}
