// SPDX-License-Identifier: Apache-2.0

package domaintest_test

import (
	"testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"libvirt.org/go/libvirtxml"
)

// definition is a domain good enough for memory.
var definition = domaintest.New("any").Driver().Definition

func alias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + name}
}

func TestMemoryHypervisorConforms(t *testing.T) {
	domaintest.Conformance(t, func(testing.TB) domaintest.Driver {
		d, _ := domaintest.Memory()
		return d
	})
}
