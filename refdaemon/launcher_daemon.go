// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
)

const (
	// daemonPause is how long after its end a libvirt daemon is started again.
	daemonPause = time.Second
	// daemonGrace is how long one may take to end.
	daemonGrace = 10 * time.Second
)

// libvirtDaemon is a libvirt daemon of the Pod's own, which listens at a local socket
// only.
type libvirtDaemon struct {
	program string
	dir     string // for its socket and its configuration
	log     logr.Logger
}

// configure writes the daemon's configuration: what was found, but for where it listens.
// Daemons of one machine would take each other for the same host, and refuse migrations,
// if each had no UUID of its own.
func (d *libvirtDaemon) configure(base string) error {
	keep := slices.DeleteFunc(strings.Split(base, "\n"), func(line string) bool {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		return slices.Contains([]string{"listen_tls", "listen_tcp", "unix_sock_dir", "unix_sock_rw_perms"}, strings.TrimSpace(name))
	})
	keep = append(keep, "listen_tls = 0", "listen_tcp = 0", `unix_sock_rw_perms = "0700"`, fmt.Sprintf("unix_sock_dir = %q", d.dir))
	if !slices.ContainsFunc(keep, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "host_uuid") }) {
		keep = append(keep, fmt.Sprintf("host_uuid = %q", uuid.NewString()))
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.config(), []byte(strings.Join(keep, "\n")+"\n"), 0o600)
}

func (d *libvirtDaemon) config() string { return filepath.Join(d.dir, "daemon.conf") }

// start runs the daemon, again and again, until ctx ends and it has. Guests go on while
// it does not run.
func (d *libvirtDaemon) start(ctx context.Context) (stopped <-chan struct{}) {
	done := make(chan struct{})
	if d == nil {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			err := d.once(ctx)
			if ctx.Err() != nil {
				return
			}
			d.log.Info("The libvirt daemon has ended; it is started again", "program", d.program, "cause", fmt.Sprint(err))
			select {
			case <-time.After(daemonPause):
			case <-ctx.Done():
			}
		}
	}()
	return done
}

func (d *libvirtDaemon) once(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, d.program, "--config", d.config(), "--pid-file", filepath.Join(d.dir, "daemon.pid"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = daemonGrace
	return cmd.Run()
}
