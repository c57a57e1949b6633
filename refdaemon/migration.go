// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

// transport returns the transport of migrations between nodes, which runs with the manager.
func (o *node) transport(mgr manager.Manager, hv domain.Hypervisor) (transport.Transport, error) {
	p := migrationproxy.Options{
		Address: o.config.Address, NodeName: o.config.NodeName, Insecure: o.config.Migration.Insecure,
		InsecureSharedHypervisor: o.config.Migration.InsecureSharedHypervisor, Drain: o.config.Drain.Duration,
		Sockets: migrationSockets(hv), Log: ctrl.Log.WithName("migration-proxy"),
	}
	if !o.config.Migration.Insecure {
		files, err := migrationproxy.ReadFiles(o.config.Migration.Cert, o.config.Migration.Key, o.config.Migration.CA, p.Log)
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

// migrationSockets returns the lookup of a migration's sockets by domain name.
func migrationSockets(hv domain.Hypervisor) func(context.Context, string) (domain.Sockets, error) {
	return func(ctx context.Context, name string) (domain.Sockets, error) {
		m, able := hv.(domain.SocketMigrator)
		if !able {
			return domain.Sockets{}, fmt.Errorf("sockets for the migration of %s: %w", name, domain.ErrUnsupported)
		}
		return m.MigrationSockets(ctx, name)
	}
}
