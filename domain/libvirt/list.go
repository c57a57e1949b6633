// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// List implements domain.Hypervisor: one call for all domains and two short ones
// for each, none of which waits for the guest.
func (d *Driver) List(ctx context.Context) ([]domain.State, error) {
	log := logr.FromContextOrDiscard(ctx)
	return read(ctx, d, "list domains", "", func(c *virt.Connect) ([]domain.State, error) {
		doms, err := c.ListAllDomains(0)
		if err != nil {
			return nil, err
		}
		out := make([]domain.State, 0, len(doms))
		for i := range doms {
			s, err := summary(&doms[i], log)
			if freeErr := doms[i].Free(); freeErr != nil {
				log.V(1).Info("cannot free a domain", "error", freeErr.Error())
			}
			switch {
			case code(err, virt.ERR_NO_DOMAIN): // went away since
			case err != nil:
				freeAll(doms[i+1:])
				return nil, err
			default:
				out = append(out, s)
			}
		}
		slices.SortFunc(out, func(a, b domain.State) int { return strings.Compare(a.Name, b.Name) })
		return out, nil
	})
}

func freeAll(doms []virt.Domain) {
	for i := range doms {
		_ = doms[i].Free()
	}
}

// summary is a domain without its XML.
func summary(dom *virt.Domain, log logr.Logger) (domain.State, error) {
	s, err := state(dom)
	if err != nil {
		return s, err
	}
	xml, err := dom.GetMetadata(virt.DOMAIN_METADATA_ELEMENT, domain.MetadataNamespace, virt.DOMAIN_AFFECT_CURRENT)
	switch {
	case code(err, virt.ERR_NO_DOMAIN_METADATA):
		return s, nil
	case err != nil:
		return s, err
	}
	m, ours, err := domain.ParseMetadataElement(xml)
	switch {
	case err != nil: // somebody else wrote there: not ours
		log.Error(err, "unreadable domain metadata", "domain", s.Name)
	case ours:
		s.Metadata = m
	}
	return s, nil
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
	return read(ctx, d, "get domain", name, func(c *virt.Connect) (s domain.State, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			if s, err = state(dom); err != nil {
				return err
			}
			xml, err := dom.GetXMLDesc(0)
			if err != nil {
				return err
			}
			s.Domain = &libvirtxml.Domain{}
			if err := s.Domain.Unmarshal(xml); err != nil {
				return fmt.Errorf("parse the XML of %s: %w", name, err)
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
