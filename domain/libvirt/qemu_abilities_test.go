// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	golibvirt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/stats"
)

// bootGuest starts a guest and waits until its kernel reacts.
func bootGuest(t *testing.T, ns *nodes, d *libvirt.Driver, name string) *libvirtxml.Domain {
	t.Helper()
	f := ns.facts(t, name)
	def, err := convert.Convert(guest(name), f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroy(t, def.Name, d) })
	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def}); err != nil {
		t.Fatal(err)
	}
	await(t, "a heartbeat", func() bool { return len(beats(serial(t, ns.n[0], f))) > 0 })
	return def
}

// testRollBack attaches a disk whose address is taken in the definition: the running guest does not
// keep it either.
func testRollBack(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{})
	def := bootGuest(t, ns, d, "rollback")

	disk := ns.plugs()[domaintest.DiskHotplug](t).(*libvirtxml.DomainDisk)
	other := *disk
	other.Alias = uaAlias("in-the-way")
	xml, err := other.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c, err := golibvirt.NewConnect(ns.n[0].URI())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dom, err := c.LookupDomainByName(def.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dom.Free() }()
	if err := dom.AttachDeviceFlags(xml, golibvirt.DOMAIN_DEVICE_MODIFY_CONFIG); err != nil {
		t.Fatal(err)
	}

	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.AttachDevice, Domain: def.Name, Device: disk}); err == nil {
		t.Fatal("the definition took a second disk vdz")
	}
	await(t, "the end of the disk", func() bool {
		s, err := d.Get(t.Context(), def.Name)
		return err == nil && !s.HasDevice(disk.Alias.Name)
	})
}

// testHungStatistics stops the process of one guest: it delays one query at most, and is included
// afterwards with the counters available without it.
func testHungStatistics(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{})
	startGuests(t, ns, d, "stats-stuck", "stats-fine")
	pid := findQEMU(t, ns.n[0], "stats-stuck")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // before the guests are destroyed
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := d.Stats(ctx); err != nil && !errors.Is(err, domain.ErrTimeout) {
		t.Errorf("statistics: %v", err)
	}
	all, err := d.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stats-stuck", "stats-fine"} {
		if !slices.ContainsFunc(all, func(s stats.Domain) bool { return s.Name == name }) {
			t.Errorf("%s is missing in %+v", name, all)
		}
	}
	if _, err := d.List(t.Context()); err != nil {
		t.Errorf("list: %v", err)
	}
}

// testHungAgent stops the process of a guest during an exchange with its agent: the exchange ends
// with its deadline, operations do not wait for it, and when the guest continues so does its agent.
func testHungAgent(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{})
	def := ns.definition(t, "hung-agent")
	ns.fit()[domaintest.Agent](t, def)
	t.Cleanup(func() { destroy(t, def.Name, d) })
	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def}); err != nil {
		t.Fatal(err)
	}
	answers := func() bool {
		_, err := d.GuestInfo(t.Context(), def.Name)
		return err == nil
	}
	await(t, "an answer of the agent", answers)
	pid := findQEMU(t, ns.n[0], def.Name)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceValue(func() error { return syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(func() { _ = goOn() })

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	talked := make(chan error, 1)
	go func() { talked <- d.Freeze(ctx, def.Name) }()
	m := domain.Metadata{Name: "n", UID: "u", Epoch: 5}
	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.SetMetadata, Domain: def.Name, Metadata: m}); err != nil {
		t.Errorf("an operation meanwhile: %v", err)
	}
	if err := <-talked; !errors.Is(err, domain.ErrNoAgent) && !errors.Is(err, domain.ErrTimeout) {
		t.Errorf("the agent hangs: %v", err)
	}
	if err := goOn(); err != nil {
		t.Fatal(err)
	}
	await(t, "an answer of the agent afterwards", answers)
}

// transcript is the output of a console.
type transcript struct {
	mu   sync.Mutex
	said bytes.Buffer
}

// Write implements io.Writer.
func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.Write(p)
}

func (l *transcript) has(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.said.Bytes(), []byte(what))
}

// testTerminal opens a console on a terminal of the node, which only the daemon can open: through a
// stream.
func testTerminal(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{})
	def := ns.definition(t, "terminal")
	def.Devices.Serials[0].Source, def.Devices.Serials[0].Log = &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}, nil
	t.Cleanup(func() { destroy(t, def.Name, d) })
	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def}); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	follow := func(ctx context.Context) (io.WriteCloser, *transcript) {
		c, err := d.OpenConsole(ctx, def.Name, def.Devices.Serials[0].Alias.Name)
		if err != nil {
			t.Fatal(err)
		}
		said := &transcript{}
		readers.Go(func() { _, _ = io.Copy(said, c) })
		return c, said
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, first := follow(ctx)
	await(t, "a heartbeat on the terminal", func() bool { return first.has("virtloom-heartbeat") })
	second, said := follow(t.Context()) // disconnects the first
	await(t, "an echo", func() bool {
		if _, err := second.Write([]byte("echo virt''loom-$((40+2))\n")); err != nil {
			t.Fatal(err)
		}
		return said.has("virtloom-42")
	})
	cancel()
	if err := second.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := second.Write([]byte("x")); err == nil {
		t.Error("a console that is closed takes what is written")
	}
	readers.Wait()
	// The connections of closed consoles are released, and the next one opens.
	third, heard := follow(t.Context())
	await(t, "a heartbeat after all that", func() bool { return heard.has("virtloom-heartbeat") })
	destroy(t, def.Name, d)
	readers.Wait() // the console ends with the guest
	_ = third.Close()
}
