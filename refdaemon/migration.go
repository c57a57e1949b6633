// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/refdaemon/nodecert"
)

// transport returns the transport of migrations between nodes, which runs with the manager.
func (o *node) transport(mgr manager.Manager, hv domain.Hypervisor) (transport.Transport, error) {
	p := migrationproxy.Options{
		Address: o.config.Address, NodeName: o.config.NodeName, Insecure: o.config.Migration.Insecure,
		InsecureSharedHypervisor: o.config.Migration.InsecureSharedHypervisor, Drain: o.config.Drain.Duration,
		Sockets: migrationSockets(hv), Log: ctrl.Log.WithName("migration-proxy"),
	}
	var err error
	if p.Certificates, err = o.certificates(mgr, p.Log); err != nil {
		return nil, err
	}
	proxy, err := migrationproxy.NewProxy(p)
	if err != nil {
		return nil, err
	}
	return proxy, mgr.Add(proxy)
}

// certificates returns those of the node: requested from the controller, or in files; nil if migrations are insecure.
func (o *node) certificates(mgr manager.Manager, log logr.Logger) (migrationproxy.Certificates, error) {
	m := &o.config.Migration
	switch {
	case m.Insecure:
		return nil, nil
	case m.Authorities == "":
		return migrationproxy.ReadFiles(m.Cert, m.Key, m.CA, log)
	}
	c, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("request the node's certificate: %w", err)
	}
	k := &nodecert.Keeper{NodeName: o.config.NodeName, Client: c, Authorities: keyOf(m.Authorities)}
	return k, errors.Join(mgr.Add(k), mgr.AddReadyzCheck("certificate", k.Check))
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
