// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// TestLauncher_TemplateFlags: the command line that the template renders is taken.
func TestLauncher_TemplateFlags(t *testing.T) {
	for _, gate := range []string{
		"", "--run-as-nonroot --image-volume --upgrade-ordinal-ifaces --vgpu-dedicated-hook --vm-stats-collector --firmware-auto-selection " +
			"--allow-emulation --keep-after-failure --libvirt-log-filters 1:qemu",
		"--allow-cross-arch-emulation",
	} {
		args := "launcher --qemu-timeout 338s --name web --uid ebbb0824 --namespace default --kubevirt-share-dir " + t.TempDir() +
			" --ephemeral-disk-dir /var/run/kubevirt-ephemeral-disks --container-disk-dir /var/run/kubevirt/container-disks --grace-period-seconds 45" +
			" --hook-sidecars 1 --ovmf-path /usr/share/edk2/ovmf --disk-memory-limit 2097152000 --hypervisor kvm --connect memory: " + gate
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := run(ctx, strings.Fields(args), io.Discard); err != nil {
			t.Errorf("%q: %v", gate, err)
		}
	}
}

func TestProgram_Names(t *testing.T) {
	for name, want := range map[string][]string{
		"/usr/bin/virt-launcher-monitor": {"launcher", "--name", "x"}, "virt-launcher": {"launcher", "--name", "x"}, "/usr/bin/refdaemon": {"--name", "x"},
	} {
		if got := named([]string{name, "--name", "x"}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// unwatched is a hypervisor that is too late to be watched.
type unwatched struct{ domain.Hypervisor }

func (unwatched) Watch(ctx context.Context) (<-chan domain.Event, error) { return nil, ctx.Err() }

// TestLauncher_EndsBeforeItWatches: a launcher that is stopped while it starts has not failed.
func TestLauncher_EndsBeforeItWatches(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&launcherOptions{}).abandoned(ctx, unwatched{}, nil); err != nil {
		t.Error(err)
	}
}

// TestLauncher_Abandoned: without an agent and a domain it ends; with an agent it waits.
func TestLauncher_Abandoned(t *testing.T) {
	start := func(timeout string) (string, chan error, func()) {
		shared := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			over <- run(ctx, guestFlags("uid", "--connect", configfile.MemoryScheme, "--kubevirt-share-dir", shared, "--qemu-timeout", timeout), io.Discard)
		}()
		return filepath.Join(shared, "sockets", launcher.ReadySocket), over, cancel
	}
	_, over, cancel := start("50ms")
	defer cancel()
	if err := <-over; err == nil || !strings.Contains(err.Error(), "--qemu-timeout") {
		t.Errorf("it ended with %v", err)
	}
	socket, over, cancel := start("200ms")
	defer cancel()
	c := connected(t, socket, over)
	_, alive, end := start("400ms") // its end is later than two times the other's
	defer end()
	if err := <-alive; err == nil {
		t.Error("the other one has no error")
	}
	if _, err := c.List(t.Context()); err != nil {
		t.Errorf("with an agent it does not wait: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-over; err == nil || !strings.Contains(err.Error(), "--qemu-timeout") {
		t.Errorf("without an agent it ended with %v", err)
	}
}

// TestLauncher_SimulatedCrash: it fails at once, or stays for who wants to look.
func TestLauncher_SimulatedCrash(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	args := guestFlags("uid", "--connect", configfile.MemoryScheme, "--kubevirt-share-dir", t.TempDir(), "--simulate-crash")
	if err := run(ctx, args, io.Discard); err == nil || !strings.Contains(err.Error(), "simulated") {
		t.Errorf("it ended with %v", err)
	}
	over := make(chan error, 1)
	go func() { over <- run(ctx, append(args, "--keep-after-failure"), io.Discard) }()
	cancel()
	if err := <-over; err == nil {
		t.Error("a failure is forgotten")
	}
}

// TestLauncher_SilentDaemon: SIGTERM is noticed while libvirtd does not come up.
func TestLauncher_SilentDaemon(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "libvirtd")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch "+dir+"/runs\nread nothing <"+dir+"/pipe\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		over <- run(ctx, guestFlags("uid", "--kubevirt-share-dir", dir, "--private-dir", dir, "--libvirtd", program), io.Discard)
	}()
	for {
		if _, err := os.Stat(filepath.Join(dir, "runs")); err == nil {
			break
		} else if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if len(over) > 0 {
			t.Fatal(<-over)
		}
	}
	cancel()
	if err := <-over; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestGuestLogs_Line(t *testing.T) {
	var out strings.Builder
	l := &guestLogs{to: &out}
	l.line("qemu")([]byte("a\tä \x1b[31m\xff\"\\"))
	if want := "qemu: a\tä \\x1b[31m\\xff\"\\\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
