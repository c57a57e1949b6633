// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
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
	filters string // of its log
	out     *os.File
	log     logr.Logger
}

// prepare writes the daemon's configuration, from a file with another one, if it exists.
func (d *libvirtDaemon) prepare(from string) error {
	base, err := os.ReadFile(from)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return d.configure(string(base))
}

// configure writes the daemon's configuration: base without its listening addresses, and a host
// UUID, as daemons of one machine with the same UUID refuse migrations between each other.
func (d *libvirtDaemon) configure(base string) error {
	set := map[string]string{
		"listen_tls": "0", "listen_tcp": "0", "unix_sock_rw_perms": `"0700"`, "unix_sock_dir": fmt.Sprintf("%q", d.dir),
	}
	if d.filters != "" {
		set["log_filters"] = fmt.Sprintf("%q", d.filters)
		set["log_outputs"] = `"1:stderr"`
	}
	// Only who may enter the folder of the socket reaches it.
	unset := map[string]string{
		"host_uuid": fmt.Sprintf("%q", uuid.NewUUID()), "auth_unix_ro": `"none"`, "auth_unix_rw": `"none"`, "log_outputs": `"3:stderr"`,
		"keepalive_interval": "5", "keepalive_count": "12",
	}
	var keep []string
	for line := range strings.Lines(base) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		name = strings.TrimSpace(name)
		if _, replaced := set[name]; !replaced {
			keep = append(keep, strings.TrimSuffix(line, "\n"))
			delete(unset, name)
		}
	}
	for name, value := range unset {
		if _, is := set[name]; !is {
			set[name] = value
		}
	}
	for name, value := range set {
		keep = append(keep, name+" = "+value)
	}
	slices.Sort(keep[len(keep)-len(set):])
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.config(), []byte(strings.Join(keep, "\n")+"\n"), 0o600)
}

func (d *libvirtDaemon) config() string { return filepath.Join(d.dir, "daemon.conf") }

// run runs the daemon, and restarts it, until ctx ends. Domains keep running while it is down.
func (d *libvirtDaemon) run(ctx context.Context) {
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
}

func (d *libvirtDaemon) once(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, d.program, "--config", d.config(), "--pid-file", filepath.Join(d.dir, "daemon.pid"))
	// A file, so that no process that the daemon has left behind delays the end of waiting for it.
	cmd.Stdout, cmd.Stderr = d.out, d.out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = daemonGrace
	return cmd.Run()
}
