// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/virtloom/virtloom/domain"
)

// relay carries connections from a socket in the folder for migrations of one Pod to a socket of another.
func relay(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("unix", from)
	if err == nil {
		err = os.Chown(from, qemuUser, qemuUser)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				t.Errorf("reach the target: %v", err)
				_ = in.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					if c, ok := way[0].(*net.UnixConn); ok {
						_ = c.CloseWrite()
					}
				}()
			}
		}
	}()
}

// TestPod_Migration: a guest moves from one launcher to another, whose libvirt is in session mode at both ends, whose Pods
// have the same host name, and which have nothing in common but two sockets; it runs on there, and only there.
func TestPod_Migration(t *testing.T) {
	source, target := startPod(t), startPod(t)
	from, to := source.connect(), target.connect()
	def := podGuest(t, "hb=0.1", "")
	apply(t, from, domain.Start, def)
	source.awaits(source.consoleText, "virtloom-heartbeat", 3)
	at := map[domain.SocketMigrator]domain.Sockets{from: {}, to: {}}
	for c := range at {
		sockets, err := c.MigrationSockets(t.Context(), def.Name)
		if err != nil {
			t.Fatal(err)
		}
		at[c] = sockets
	}
	inside := at[from].Inside
	relay(t, filepath.Join(at[from].Outside, "control"), at[to].Control)
	relay(t, filepath.Join(at[from].Outside, "memory"), filepath.Join(at[to].Outside, "memory"))
	if err := from.Migrate(t.Context(), domain.MigrationRequest{
		Migration: "migration-1", Domain: def.Name, DestinationURI: "qemu+unix:///session?socket=" + inside + "/control",
		MigrateURI: "unix://" + inside + "/memory", DisksURI: "unix://" + inside + "/disks",
	}); err != nil {
		t.Fatal(err)
	}
	st, err := to.Get(t.Context(), def.Name)
	if err != nil || st.Status != domain.StatusRunning {
		t.Fatalf("at the target it is %s/%s, %v", st.Status, st.Reason, err)
	}
	if st, err := from.Get(t.Context(), def.Name); !errors.Is(err, domain.ErrNotFound) && (err != nil || st.Alive()) {
		t.Errorf("at the source it is %s/%s, %v", st.Status, st.Reason, err)
	}
	target.awaits(target.consoleText, "virtloom-heartbeat", 3)
	source.signal()
	source.ended()
	target.signal()
	target.ended()
}

// TestPod_StubbornGuest: a guest that does not react to the power button is destroyed when the grace period is over, and
// until then it runs.
func TestPod_StubbornGuest(t *testing.T) {
	p := startPod(t, "--grace-period-seconds", "2")
	c := p.connect()
	def := podGuest(t, "hb=0.1", "")
	apply(t, c, domain.Start, def)
	p.awaits(p.consoleText, "virtloom-heartbeat", 1)
	apply(t, c, domain.Suspend, def)
	p.signal()
	p.ended()
	if log := p.logged(); !strings.Contains(log, "Grace period is over") {
		t.Error("it was not given its time")
	}
}

// TestPod_SignaledAnyTime: SIGTERM ends a launcher before libvirtd is up, and while it is restarted.
func TestPod_SignaledAnyTime(t *testing.T) {
	for name, when := range map[string]func(p *containedPod){
		"libvirtd is starting": func(p *containedPod) { p.awaits(p.logged, "libvirtd: ", 1) },
		"it serves its VMI":    func(p *containedPod) { p.connect() },
		"libvirtd is restarted": func(p *containedPod) {
			p.connect()
			p.killLibvirtd()
			p.awaits(p.logged, "Restarting libvirt daemon", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t)
			when(p)
			p.signal()
			p.ended()
		})
	}
}

func (p *containedPod) killLibvirtd() {
	p.t.Helper()
	if err := syscall.Kill(p.processes()["libvirtd"], syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
}

// TestPod_TPM: swtpm makes and runs a TPM for a guest, says so in the container's log, and the guest is shut down.
//
// The guest starts from its disk, as one with a TPM has to at a BIOS. QEMU 7.2 puts an initrd at the end of the memory but for 160 KiB,
// which it takes for enough for the ACPI tables, but with a TPM those have an event log of 64 KiB as well, and SeaBIOS puts the tables
// where the initrd is. The guest's kernel then finds none ("ACPI: Interpreter disabled"), and has no power button. UEFI is not affected.
func TestPod_TPM(t *testing.T) {
	p := startPod(t)
	c := p.connect()
	def := podGuest(t, "", `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/guest/disk.img'/><target dev='vda' bus='virtio'/><readonly/></disk>
<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>`)
	def.OS.Kernel, def.OS.Initrd, def.OS.Cmdline = "", "", ""
	apply(t, c, domain.Start, def)
	p.awaits(p.logged, "\nswtpm: Successfully created EK certificate", 1)
	p.awaits(p.consoleText, "virtloom-heartbeat", 3)
	p.signal()
	p.ended()
	if !strings.Contains(p.consoleText(), "virtloom-power-button") {
		t.Error("the guest was not shut down gracefully")
	}
}
