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
	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	// daemonPause is the delay before an exited libvirt daemon is restarted.
	daemonPause = time.Second
	// daemonGrace is its grace period at the end.
	daemonGrace = 10 * time.Second
)

// libvirtDaemon is the Pod's own libvirt daemon, which listens on a local socket only.
type libvirtDaemon struct {
	program string
	dir     string // for its socket and its configuration
	log     logr.Logger
}

// configure writes the daemon's configuration: base without its listening addresses, and a host
// UUID, as daemons of one machine with the same UUID refuse migrations between each other.
func (d *libvirtDaemon) configure(base string) error {
	keep := slices.DeleteFunc(strings.Split(base, "\n"), func(line string) bool {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		return slices.Contains([]string{"listen_tls", "listen_tcp", "unix_sock_dir", "unix_sock_rw_perms"}, strings.TrimSpace(name))
	})
	keep = append(keep, "listen_tls = 0", "listen_tcp = 0", `unix_sock_rw_perms = "0700"`, fmt.Sprintf("unix_sock_dir = %q", d.dir))
	if !slices.ContainsFunc(keep, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "host_uuid") }) {
		keep = append(keep, fmt.Sprintf("host_uuid = %q", uuid.NewUUID()))
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.config(), []byte(strings.Join(keep, "\n")+"\n"), 0o600)
}

func (d *libvirtDaemon) config() string { return filepath.Join(d.dir, "daemon.conf") }

// start runs the daemon, and restarts it, until ctx ends. Domains keep running while it is down.
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
			d.log.Info("Restarting libvirt daemon", "program", d.program, "cause", fmt.Sprint(err))
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
