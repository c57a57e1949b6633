// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/launcher"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
)

// guest is whose the launchers of these tests are.
var guest = launcher.Guest{Namespace: "ns", Name: "guest", UID: "8a8f0d3e-52a6-4a51-9b3c-1d5f5b4d1a11"}

// pod is a launcher that can be killed and started again.
type pod struct {
	testing.TB
	dir    string
	server func() *launcher.Server

	mu      sync.Mutex
	stop    func()
	cutOnly func() // breaks the connections of a launcher that goes on
}

// newPod starts a launcher in front of a hypervisor.
func newPod(t testing.TB, h domain.Hypervisor) *pod {
	t.Helper()
	return newPodOf(t, t.TempDir(), func() *launcher.Server { return &launcher.Server{Hypervisor: h, Guest: guest, Version: "test"} })
}

func newPodOf(t testing.TB, dir string, server func() *launcher.Server) *pod {
	t.Helper()
	p := &pod{TB: t, dir: dir, server: server}
	p.start()
	t.Cleanup(p.kill)
	return p
}

func (p *pod) socket() string { return filepath.Join(p.dir, launcher.ReadySocket) }

func (p *pod) start() {
	p.Helper()
	l, err := launcher.Listen(p.Context(), p.dir)
	if err != nil {
		p.Fatal(err)
	}
	if err := l.Ready(); err != nil {
		p.Fatal(err)
	}
	cut := &cutListener{Listener: l}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s := p.server()
	go func() {
		defer close(done)
		if err := s.Serve(ctx, cut); err != nil {
			p.Errorf("serve: %v", err)
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutOnly = cut.cut
	p.stop = func() {
		cut.cut()
		cancel()
		<-done
	}
}

// kill ends the launcher the way a signal does: its connections break.
func (p *pod) kill() {
	p.mu.Lock()
	stop := p.stop
	p.stop = func() {}
	p.mu.Unlock()
	stop()
}

// cutListener can break all its connections.
type cutListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *cutListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *cutListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func dial(t testing.TB, p *pod) *launcher.Client {
	t.Helper()
	c, err := launcher.Dial(t.Context(), p.socket(), launcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// driver is a client in front of memory.
func driver(t testing.TB) (domaintest.Driver, *domaintest.Hypervisor, *pod) {
	here, there := domaintest.New("here"), domaintest.New("there")
	here.SetHost(domain.Host{
		Name: "here", Arch: "x86_64", Hypervisor: "MEMORY", Version: "1.0.0", CPUs: 4, MemoryBytes: 16 << 30,
		LibraryVersion: "1.0.0", KVMReason: "guests live in memory", Cells: []domain.Cell{{ID: 1}},
	})
	here.Connect("memory://there", there)
	p := newPod(t, here)
	return domaintest.Driver{
		Hypervisor: dial(t, p), Peer: there, PeerURI: "memory://there",
		Definition: definition, Fit: fit(here), Devices: plugs(),
		Crash:      func(_ testing.TB, name string) { here.Crash(name) },
		Disconnect: func(testing.TB) { here.Disconnect() },
		Reconnect:  func(testing.TB) { here.Reconnect() },
		Slow:       func(r *domain.MigrationRequest) { r.BandwidthMiB = 1 },
		Cut:        func(testing.TB) { here.Link("memory://there").Cut() },
		Mend:       func(testing.TB) { here.Link("memory://there").Restore() },
	}, here, p
}

func TestClientConforms(t *testing.T) {
	domaintest.Conformance(t, func(t testing.TB) domaintest.Driver {
		d, _, _ := driver(t)
		return d
	})
}

// TestClientConformsWhenLaunchersDie is the same where it is the launcher that is lost,
// and not what is behind it.
func TestClientConformsWhenLaunchersDie(t *testing.T) {
	domaintest.Conformance(t, func(t testing.TB) domaintest.Driver {
		d, _, p := driver(t)
		d.Disconnect = func(testing.TB) { p.kill() }
		d.Reconnect = func(testing.TB) { p.start() }
		return d
	})
}

// definition is a domain good enough for memory.
func definition(t testing.TB, name string) *libvirtxml.Domain {
	t.Helper()
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String()
	d := &libvirtxml.Domain{
		Type: "qemu", Name: name, UUID: id, Memory: &libvirtxml.DomainMemory{Value: 64, Unit: "MiB"},
		Devices: &libvirtxml.DomainDeviceList{},
	}
	if err := domain.PutMetadata(d, domain.Metadata{Namespace: "conformance", Name: name, UID: types.UID(id), Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	return d
}

func alias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + name}
}

func file(path string) *libvirtxml.DomainDiskSource {
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}

// fit are the changes of a definition that memory needs for an ability.
func fit(here *domaintest.Hypervisor) map[domaintest.Ability]func(testing.TB, *libvirtxml.Domain) {
	addDisk := func(d libvirtxml.DomainDisk) func(testing.TB, *libvirtxml.Domain) {
		return func(_ testing.TB, to *libvirtxml.Domain) { to.Devices.Disks = append(to.Devices.Disks, d) }
	}
	return map[domaintest.Ability]func(testing.TB, *libvirtxml.Domain){
		domaintest.CPUHotplug:   func(_ testing.TB, d *libvirtxml.Domain) { d.VCPU = &libvirtxml.DomainVCPU{Value: 2, Current: 1} },
		domaintest.DiskResize:   addDisk(libvirtxml.DomainDisk{Device: "disk", Alias: alias("root"), Source: file("/root.img")}),
		domaintest.MediumChange: addDisk(libvirtxml.DomainDisk{Device: "cdrom", Alias: alias("drive")}),
		domaintest.Agent: func(testing.TB, *libvirtxml.Domain) {
			here.SetAgents(&domain.GuestInfo{
				AgentVersion: "1.0", Hostname: "guest",
				Commands: []string{"guest-fsfreeze-freeze", "guest-ping"},
			})
		},
	}
}

// plugs are the devices that can be attached.
func plugs() map[domaintest.Ability]func(testing.TB) domain.Device {
	disk := func(bus string) func(testing.TB) domain.Device {
		return func(testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{
				Device: "disk", Alias: alias("more-" + bus), Source: file("/more.img"),
				Target: &libvirtxml.DomainDiskTarget{Dev: "disk-on-" + bus, Bus: bus},
			}
		}
	}
	return map[domaintest.Ability]func(testing.TB) domain.Device{
		domaintest.DiskHotplug: disk("virtio"),
		domaintest.SCSIHotplug: disk("scsi"),
		domaintest.InterfaceHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainInterface{
				Alias: alias("second"), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:02"},
				Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: "br0"}},
			}
		},
		domaintest.MemoryHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainMemorydev{
				Model: string(domain.VirtioMem), Alias: alias("memory"),
				Target: &libvirtxml.DomainMemorydevTarget{
					Size:      &libvirtxml.DomainMemorydevTargetSize{Value: 128, Unit: "MiB"},
					Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: 64, Unit: "MiB"},
				},
			}
		},
		domaintest.MediumChange: func(testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{Device: "cdrom", Alias: alias("drive"), Source: file("/disc.iso")}
		},
	}
}
