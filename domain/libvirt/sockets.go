// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// systemSockets are the sockets of a system daemon: the one of all drivers, or that of QEMU alone.
var systemSockets = []string{"/var/run/libvirt/libvirt-sock", "/var/run/libvirt/virtqemud-sock"}

// MigrationSockets implements domain.SocketMigrator, for a daemon that is reached by a socket:
// others are [domain.ErrUnsupported]. The folder is Options.MigrationDir. In it the QEMU of an
// arriving guest makes the sockets on which it listens, and the daemon and the QEMU of a leaving
// guest connect to those of the proxy, so a folder that is made here belongs to the user that the
// daemon runs QEMU as, and to no other user (0700); root, as which the daemon and the proxy run,
// needs no permission. An existing folder is left as it is.
func (d *migrator) MigrationSockets(ctx context.Context, name string) (domain.Sockets, error) {
	const op = "find the sockets for a migration"
	control, err := d.controlSocket()
	if err != nil {
		return domain.Sockets{}, fmt.Errorf("libvirt: %s of %s: %w", op, name, err)
	}
	out := domain.Sockets{Control: control, Inside: d.opts.MigrationDir}
	if out.Outside, err = securejoin.SecureJoin(d.root(), d.opts.MigrationDir); err != nil {
		return domain.Sockets{}, fmt.Errorf("libvirt: %s of %s: %w", op, name, err)
	}
	switch found, err := os.Lstat(out.Outside); {
	case err == nil && found.IsDir():
		return out, nil
	case err == nil:
		return domain.Sockets{}, fmt.Errorf("libvirt: %s of %s: %s is not a folder: %w", op, name, out.Outside, domain.ErrInvalid)
	case !errors.Is(err, fs.ErrNotExist):
		return domain.Sockets{}, fmt.Errorf("libvirt: %s of %s: %w", op, name, err)
	}
	owner, err := read(ctx, d.connection, op, name, emulatorUser)
	if err == nil {
		err = makeFolder(out.Outside, owner)
	}
	if err != nil {
		return domain.Sockets{}, fmt.Errorf("libvirt: %s of %s: %w", op, name, err)
	}
	return out, nil
}

func (d *migrator) root() string {
	if d.opts.Root == "" {
		return "/"
	}
	return d.opts.Root
}

// controlSocket returns the path of the daemon's own socket, as this process sees it.
func (d *migrator) controlSocket() (string, error) {
	u, err := url.Parse(d.uri)
	if err != nil {
		return "", fmt.Errorf("the URI of the connection: %w", err)
	}
	driver, transport, _ := strings.Cut(u.Scheme, "+")
	if driver != "qemu" || transport != "" && transport != "unix" || u.Host != "" {
		return "", fmt.Errorf("%s is not a socket of this node: %w", d.uri, domain.ErrUnsupported)
	}
	if path := u.Query().Get("socket"); path != "" {
		return path, nil
	}
	if u.Path != "/system" {
		return "", fmt.Errorf("%s has no socket (add ?socket=PATH): %w", d.uri, domain.ErrUnsupported)
	}
	for _, path := range systemSockets {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("none of %v exists: %w", systemSockets, domain.ErrDisconnected)
}

// owner is a user and a group by their numbers; nil is the user of this process.
type owner *struct{ uid, gid int }

// emulatorUser returns the user that the daemon runs QEMU as, by its security driver dac; nil if it
// has none, and QEMU runs as the daemon's own user.
func emulatorUser(c *virt.Connect) (owner, error) {
	text, err := c.GetCapabilities()
	if err != nil {
		return nil, err
	}
	var caps libvirtxml.Caps
	if err := xml.Unmarshal([]byte(text), &caps); err != nil {
		return nil, fmt.Errorf("capabilities of the host: %w", err)
	}
	for _, m := range caps.Host.SecModel {
		if m.Name != "dac" || len(m.Labels) == 0 {
			continue
		}
		user, group, _ := strings.Cut(strings.TrimPrefix(m.Labels[0].Value, "+"), ":+")
		uid, err := strconv.Atoi(user)
		gid, groupErr := strconv.Atoi(group)
		if err := errors.Join(err, groupErr); err != nil {
			return nil, fmt.Errorf("the daemon runs QEMU as %q: %w", m.Labels[0].Value, err)
		}
		return &struct{ uid, gid int }{uid, gid}, nil
	}
	return nil, nil
}

// makeFolder makes a folder for its owner alone. The folders above it are accessible to everybody.
func makeFolder(path string, o owner) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) { // made by a concurrent call
			return nil
		}
		return err
	}
	if o == nil || o.uid == os.Geteuid() && o.gid == os.Getegid() {
		return nil
	}
	if err := os.Lchown(path, o.uid, o.gid); err != nil {
		// A half-made folder would be taken for complete.
		return errors.Join(fmt.Errorf("give the folder to QEMU's user (run as root, or create %s manually): %w", path, err), syscall.Rmdir(path))
	}
	return nil
}
