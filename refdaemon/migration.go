// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/migrationproxy"
)

// migrationOptions are the flags of "refdaemon node" about live migration.
type migrationOptions struct {
	cert, key, ca string
	insecure      bool
	dir           string
}

func (o *migrationOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.cert, "migration-cert", "", "`file` with the certificate that this node shows other nodes, with the node's name as DNS name; read again when it changes")
	fs.StringVar(&o.key, "migration-key", "", "`file` with its private key")
	fs.StringVar(&o.ca, "migration-ca", "", "`file` with the certificates of the authorities that certify other nodes")
	fs.BoolVar(&o.insecure, "insecure-migration", false, "move guests over plain TCP, for a network that protects its traffic by itself")
	fs.StringVar(&o.dir, "migration-dir", libvirt.DefaultMigrationDir, "`directory` for the sockets of migrations, the same on every node and private to each; it is made for the user that QEMU runs as, to whom one that is there already has to belong; its path may have 50 bytes")
}

// maxMigrationDir leaves room for the name of a socket, whose path may have 107 bytes.
const maxMigrationDir = 50

// check tells which flags are missing or wrong.
func (o *migrationOptions) check() error {
	given := 0
	for _, file := range []string{o.cert, o.key, o.ca} {
		if file != "" {
			given++
		}
	}
	var errs []error
	switch {
	case o.insecure && given > 0:
		errs = append(errs, errors.New("--insecure-migration needs no certificates: leave out --migration-cert, --migration-key and --migration-ca, or it"))
	case !o.insecure && given < 3:
		errs = append(errs, errors.New("--migration-cert, --migration-key and --migration-ca are required: by them nodes know each other (a network that protects its traffic can do with --insecure-migration)"))
	}
	if !filepath.IsAbs(o.dir) || len(o.dir) > maxMigrationDir {
		errs = append(errs, fmt.Errorf("--migration-dir %q is not an absolute path of %d bytes at most", o.dir, maxMigrationDir))
	}
	return errors.Join(errs...)
}

// transport carries migrations between this node and others for as long as the manager runs.
func (o *nodeOptions) transport(mgr manager.Manager, hv domain.Hypervisor) (domain.Transport, error) {
	p := migrationproxy.Options{
		Address: o.address, NodeName: o.node, Insecure: o.migration.insecure, Drain: o.drain,
		Sockets: migrationSockets(hv), Log: ctrl.Log.WithName("migration-proxy"),
	}
	if !o.migration.insecure {
		files, err := migrationproxy.ReadFiles(o.migration.cert, o.migration.key, o.migration.ca, p.Log)
		if err != nil {
			return nil, err
		}
		p.Certificates = files
	}
	proxy, err := migrationproxy.New(p)
	if err != nil {
		return nil, err
	}
	return proxy, mgr.Add(proxy)
}

// migrationSockets finds the sockets of a guest's migration.
func migrationSockets(hv domain.Hypervisor) func(context.Context, string) (domain.Sockets, error) {
	return func(ctx context.Context, name string) (domain.Sockets, error) {
		m, able := hv.(domain.SocketMigrator)
		if !able {
			return domain.Sockets{}, fmt.Errorf("sockets for the migration of %s: %w", name, domain.ErrUnsupported)
		}
		return m.MigrationSockets(ctx, name)
	}
}
