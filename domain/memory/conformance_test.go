// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
)

func alias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + name}
}

func TestConformance_Memory(t *testing.T) {
	domaintest.Conformance(t, func(testing.TB) domaintest.Driver {
		d, _ := domaintest.Memory()
		return d
	})
}
