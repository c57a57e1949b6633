// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

func TestLauncher_Flags(t *testing.T) {
	for name, c := range map[string]struct {
		args string
		want string
	}{
		"no guest":              {"--connect memory:", "does not name"},
		"half a guest":          {"--namespace ns --name name --connect memory:", `--uid "" does not name`},
		"a path for a guest":    {"--namespace ns --name name --uid ../x --connect memory:", "--uid"},
		"the folder above":      {"--namespace ns --name .. --uid x --connect memory:", "--name"},
		"a relative folder":     {"--namespace ns --name name --uid uid --connect memory: --kubevirt-share-dir sockets", "absolute"},
		"another one":           {"--namespace ns --name name --uid uid --connect memory: --private-dir sockets", "absolute"},
		"a word too much":       {"--namespace ns --name name --uid uid --connect memory: now", "unexpected"},
		"a flag of others":      {"--node-name x", "unknown flag"},
		"filters that are more": {"--namespace ns --name name --uid uid --connect memory: --libvirt-log-filters 1:qemu\"", "--libvirt-log-filters"},
		"no time at all":        {"--namespace ns --name name --uid uid --connect memory: --qemu-timeout 0s", "--qemu-timeout"},
		"everything is wrong":   {"--private-dir x", "absolute"},
	} {
		err := run(t.Context(), append([]string{"launcher"}, strings.Fields(c.args)...), io.Discard)
		if usage := (usageError{}); !errors.As(err, &usage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want a usage error that says %q", name, err, c.want)
		}
	}
}

// guestFlags is the command line of a launcher of the VMI ns/guest.
func guestFlags(uid string, more ...string) []string {
	return append([]string{"launcher", "--namespace", "ns", "--name", "guest", "--uid", uid}, more...)
}

// connected dials a launcher as soon as it is ready.
func connected(t *testing.T, socket string, over <-chan error) *launcher.Client {
	t.Helper()
	for {
		c, err := launcher.Dial(t.Context(), socket, launcher.Options{})
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		if !errors.Is(err, domain.ErrNotReady) {
			t.Fatal(err)
		}
		select {
		case err := <-over:
			t.Fatalf("the launcher has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestLauncher_ExitsWithGuest(t *testing.T) {
	def := &libvirtxml.Domain{Type: "qemu", Name: "ns_guest", UUID: "8a8f0d3e-52a6-4a51-9b3c-1d5f5b4d1a11", Memory: &libvirtxml.DomainMemory{Value: 64, Unit: "MiB"}}
	for name, end := range map[string]func(t *testing.T, c *launcher.Client, stop func()){
		"asked to end, it shuts the guest down": func(_ *testing.T, _ *launcher.Client, stop func()) { stop() },
		"a guest that is undefined is the end": func(t *testing.T, c *launcher.Client, _ func()) {
			for _, verb := range []domain.Verb{domain.Destroy, domain.Undefine} {
				if err := c.Apply(t.Context(), domain.Operation{Verb: verb, Domain: def.Name}); err != nil {
					t.Error(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			shared := t.TempDir()
			dir := filepath.Join(shared, "sockets")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() {
				over <- run(ctx, guestFlags("uid", "--connect", configfile.MemoryScheme, "--kubevirt-share-dir", shared), io.Discard)
			}()
			c := connected(t, filepath.Join(dir, launcher.ReadySocket), over)
			if err := c.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def}); err != nil {
				t.Fatal(err)
			}
			end(t, c, cancel)
			if err := <-over; err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left are %v, %v", left, err)
			}
		})
	}
}

func TestLibvirtDaemon_LocalSocketAndRestart(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "libvirtd")
	if err := os.WriteFile(program, []byte(fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s/runs\n", dir)), 0o755); err != nil {
		t.Fatal(err)
	}
	d := &libvirtDaemon{program: program, dir: filepath.Join(dir, "libvirt"), log: logr.Discard()}
	if err := d.configure("listen_tcp = 1\n unix_sock_dir = \"/run/libvirt\"\nmax_clients = 7\n# host_uuid = \"none\"\n"); err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile(d.config())
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"listen_tcp": 1, "listen_tcp = 0": 1, "listen_tls = 0": 1, "unix_sock_dir": 1, fmt.Sprintf("unix_sock_dir = %q", d.dir): 1,
		"max_clients = 7": 1, "\nhost_uuid = ": 1,
	} {
		if got := strings.Count(string(conf), part); got != want {
			t.Errorf("%q is there %d times, want %d:\n%s", part, got, want, conf)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		d.run(ctx)
	}()
	for {
		runs, _ := os.ReadFile(filepath.Join(dir, "runs"))
		if bytes.Count(runs, []byte("--config "+d.config())) >= 2 {
			break
		}
		select {
		case <-stopped:
			t.Fatal("it is not started again")
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	<-stopped
}
