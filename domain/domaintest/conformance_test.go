// SPDX-License-Identifier: Apache-2.0

package domaintest_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
)

// definition is a domain good enough for memory.
func definition(t testing.TB, name string) *libvirtxml.Domain {
	t.Helper()
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String()
	d := &libvirtxml.Domain{Type: "qemu", Name: name, UUID: id, Memory: &libvirtxml.DomainMemory{Value: 64, Unit: "MiB"}}
	if err := domain.PutMetadata(d, domain.Metadata{Namespace: "conformance", Name: name, UID: types.UID(id), Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestMemoryHypervisorConforms(t *testing.T) {
	domaintest.Conformance(t, func(testing.TB) domaintest.Driver {
		here, there := domaintest.New("here"), domaintest.New("there")
		here.Connect("memory://there", there)
		return domaintest.Driver{
			Hypervisor: here, Peer: there, PeerURI: "memory://there",
			Definition: definition,
			Device: func(testing.TB) domain.Device {
				return &libvirtxml.DomainDisk{
					Device: "disk", Alias: &libvirtxml.DomainAlias{Name: "ua-more"},
					Target: &libvirtxml.DomainDiskTarget{Dev: "vdb", Bus: "virtio"},
				}
			},
			Crash:      func(_ testing.TB, name string) { here.Crash(name) },
			Disconnect: func(testing.TB) { here.Disconnect() },
			Reconnect:  func(testing.TB) { here.Reconnect() },
			Slow:       func(*domain.MigrationRequest) { here.MigrationTakes(time.Hour) },
		}
	})
}
