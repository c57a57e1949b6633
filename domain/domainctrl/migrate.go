// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// migrate begins the migration of a domain. Once it is under way the hypervisors finish it even
// without the API server; a guest that arrives paused resumes when the API server is reachable
// again.
func (r actor) migrate(ctx context.Context, key types.NamespacedName, v pass, t action.Action) error {
	m, able := r.Hypervisor.(domain.Migrator)
	if !able {
		return fmt.Errorf("domainctrl: migrate %s: %w", t.Request.Domain, domain.ErrUnsupported)
	}
	log, pass := logger(ctx), trace.SpanContextFromContext(ctx)
	log.V(1).Info("Beginning a live migration", "destination", t.Tunnel.Peer, "disks", t.Request.CopyDisks)
	// The guest may have arrived under the same tunnel key: no pass may close it.
	r.tunnels.drop(key)
	return r.migrations.begin(key, func(ctx context.Context) (string, func()) {
		ctx, span := tracer.Start(trace.ContextWithSpanContext(ctrl.LoggerInto(ctx, log), pass), "node.LiveMigration")
		defer span.End()
		if _, err := r.within(v, t); err != nil {
			return err.Error(), nil
		}
		route, err := r.Transport.Dial(ctx, t.Tunnel, t.To)
		if err != nil {
			return fmt.Sprintf("node %s is unreachable: %v", t.Tunnel.Peer, err), nil
		}
		defer r.Transport.Close(t.Tunnel.Key) // before the guest may return under the same key
		r.step(ctx, key, plan.SourceDialled)
		req := t.Request
		req.Migration = t.Tunnel.Migration
		req.DestinationURI, req.MigrateURI, req.DisksURI = route.DestinationURI, route.MigrateURI, route.DisksURI
		began := r.Clock.Now()
		w := r.watch(key, m, v)
		watched := w.beside(ctx)
		err = calling(ctx, "hypervisor.Migrate", func(ctx context.Context) error { return m.Migrate(ctx, req) })
		watched()
		if errors.Is(err, domain.ErrDisconnected) {
			w.finish(ctx) // the migration continues without this process, and needs the tunnel
		}
		r.step(ctx, key, plan.SourceReturned)
		took := r.Clock.Since(began).Seconds()
		log.V(1).Info("Live migration ended", "seconds", took, "error", err)
		if err != nil {
			return w.failure(ctx, err), nil
		}
		return "", func() {
			if r.Recorder != nil {
				r.Recorder.Eventf(v.vmi, nil, corev1.EventTypeNormal, string(v1.Migrated), "Migrate", "The VirtualMachineInstance left node %s after %.1f s: %s", r.NodeName, took, w.result(ctx))
			}
		}
	})
}

// adopt monitors a migration that an earlier process of this agent has begun and the hypervisor
// continues.
func (r actor) adopt(ctx context.Context, key types.NamespacedName, v pass, lease handoff.Lease) {
	m, able := r.Hypervisor.(domain.Migrator)
	if !able || lease.State != handoff.Moving || lease.Holder != r.NodeName {
		return
	}
	if v.snapshot.Migrating || !v.snapshot.MigrationActive || hasSplitMemory(v.snapshot.State) {
		return
	}
	log := logger(ctx)
	err := r.migrations.begin(key, func(ctx context.Context) (string, func()) {
		ctx = ctrl.LoggerInto(ctx, log)
		w := r.watch(key, m, v)
		w.takeUp(v.vmi.Status.MigrationState)
		w.finish(ctx)
		return w.failure(ctx, nil), nil
	})
	if err != nil {
		log.Error(err, "Failed to monitor a live migration")
	}
}

// hasSplitMemory reports whether the guest's memory is split between two nodes that have lost each other,
// which no monitoring helps.
func hasSplitMemory(st *domain.State) bool {
	return st != nil && st.Status == domain.StatusPaused && st.Reason == domain.ReasonPostcopyFailed
}
