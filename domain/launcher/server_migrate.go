// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// remembered is the number of ended migrations whose ids are known.
const remembered = 64

// migration is a migration begun by this server.
type migration struct {
	id, domain string
	cancel     context.CancelFunc
	done       chan struct{} // closed when err is set
	err        error
}

// migrations are those of a server.
type migrations struct {
	mu  sync.Mutex
	by  map[string]*migration
	old []string // ids of those that ended, oldest first
	all sync.WaitGroup
}

// begin runs a migration under an id, or joins the one that has it, even if that has ended: there
// is never a second.
func (m *migrations) begin(ctx context.Context, id, name string, run func(context.Context) error) (*migration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if j := m.by[id]; j != nil {
		if j.domain != name {
			return nil, fmt.Errorf("migrate %s: id %s belongs to a migration of %s: %w", name, id, j.domain, domain.ErrInvalid)
		}
		return j, nil
	}
	if m.by == nil {
		m.by = map[string]*migration{}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j := &migration{id: id, domain: name, cancel: cancel, done: make(chan struct{})}
	m.by[id] = j
	m.all.Go(func() {
		j.err = run(ctx)
		cancel()
		m.end(j)
		close(j.done)
	})
	return j, nil
}

func (m *migrations) end(j *migration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.old = append(m.old, j.id)
	if len(m.old) > remembered {
		delete(m.by, m.old[0])
		m.old = slices.Delete(m.old, 0, 1)
	}
}

// cancel ends those of the domain, or the one of that id.
func (m *migrations) cancel(name, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range m.by {
		if j.domain == name && (id == "" || j.id == id) {
			j.cancel()
		}
	}
}

func (m *migrations) wait() { m.all.Wait() }

// migrationCalls are about migrations.
type migrationCalls struct{ *Server }

// Migrate implements launcherpb.LauncherServer.
func (s migrationCalls) Migrate(in *launcherpb.MigrateRequest, stream grpc.ServerStreamingServer[launcherpb.MigrateResponse]) error {
	mover, err := servedAbility[domain.Migrator](s.Server, "migrate")
	if err != nil {
		return err
	}
	if in.Id == "" {
		return fmt.Errorf("migrate %s: id: Required value: %w", in.Domain, domain.ErrInvalid)
	}
	req, err := migrationFromWire(in)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	j, err := s.migrations.begin(ctx, in.Id, in.Domain, func(ctx context.Context) error { return mover.Migrate(ctx, req) })
	if err != nil {
		return err
	}
	if err := stream.Send(&launcherpb.MigrateResponse{Step: &launcherpb.MigrateResponse_Started{Started: &launcherpb.Done{}}}); err != nil {
		return err
	}
	return s.accompany(j, time.Duration(in.ProgressInterval), mover, stream)
}

// accompany reports a migration until it ends, or the stream does.
func (s migrationCalls) accompany(j *migration, every time.Duration, m domain.Migrator, stream grpc.ServerStreamingServer[launcherpb.MigrateResponse]) error {
	var tick <-chan time.Time
	if every > 0 {
		t := s.Clock.NewTicker(every)
		defer t.Stop()
		tick = t.C()
	}
	ctx := stream.Context()
	for {
		select {
		case <-j.done:
			return stream.Send(&launcherpb.MigrateResponse{Step: &launcherpb.MigrateResponse_Result{Result: toWire(j.err)}})
		case <-ctx.Done():
			return ctx.Err()
		case <-s.done:
			return fmt.Errorf("migrate %s: the launcher is shutting down: %w", j.domain, domain.ErrDisconnected)
		case <-tick:
			if err := s.reportProgress(ctx, m, j.domain, stream); err != nil {
				return err
			}
		}
	}
}

// reportProgress sends the progress of the migration, nothing if it is unknown.
func (s migrationCalls) reportProgress(ctx context.Context, m domain.Migrator, name string, stream grpc.ServerStreamingServer[launcherpb.MigrateResponse]) error {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	p, unknown := m.MigrationProgress(ctx, name)
	if unknown != nil || !p.Active {
		return nil // the result is sent separately
	}
	return stream.Send(&launcherpb.MigrateResponse{Step: &launcherpb.MigrateResponse_Progress{Progress: progressToWire(p)}})
}

// CancelMigration implements launcherpb.LauncherServer.
func (s migrationCalls) CancelMigration(_ context.Context, in *launcherpb.CancelMigrationRequest) (*launcherpb.Done, error) {
	s.migrations.cancel(in.Domain, in.Id)
	return doneAnswer(nil)
}

// MigrationProgress implements launcherpb.LauncherServer.
func (s migrationCalls) MigrationProgress(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Progress, error) {
	m, err := servedAbility[domain.Migrator](s.Server, "migration progress")
	if err != nil {
		return nil, err
	}
	p, err := m.MigrationProgress(ctx, in.Domain)
	if err != nil {
		return nil, err
	}
	return progressToWire(p), nil
}

// AbortMigration implements launcherpb.LauncherServer.
func (s migrationCalls) AbortMigration(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	m, err := servedAbility[domain.Migrator](s.Server, "abort migration")
	if err != nil {
		return nil, err
	}
	return doneAnswer(m.AbortMigration(ctx, in.Domain))
}

// SwitchToPostCopy implements launcherpb.LauncherServer.
func (s migrationCalls) SwitchToPostCopy(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	p, err := servedAbility[domain.PostCopier](s.Server, "switch to post-copy")
	if err != nil {
		return nil, err
	}
	return doneAnswer(p.SwitchToPostCopy(ctx, in.Domain))
}

// TuneMigration implements launcherpb.LauncherServer.
func (s migrationCalls) TuneMigration(ctx context.Context, in *launcherpb.TuneMigrationRequest) (*launcherpb.Done, error) {
	m, err := servedAbility[domain.MigrationTuner](s.Server, "tune migration")
	if err != nil {
		return nil, err
	}
	switch t := in.Tune.(type) {
	case *launcherpb.TuneMigrationRequest_MaxDowntime:
		return doneAnswer(m.SetMaxDowntime(ctx, in.Domain, time.Duration(t.MaxDowntime)))
	case *launcherpb.TuneMigrationRequest_BandwidthMib:
		return doneAnswer(m.SetMigrationBandwidth(ctx, in.Domain, t.BandwidthMib))
	}
	return nil, fmt.Errorf("tune migration of %s: the launcher does not support this setting; update the launcher: %w", in.Domain, domain.ErrUnsupported)
}

// MigrationSockets implements launcherpb.LauncherServer.
func (s migrationCalls) MigrationSockets(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.MigrationSocketsResponse, error) {
	m, err := servedAbility[domain.SocketMigrator](s.Server, "migration sockets")
	if err != nil {
		return nil, err
	}
	at, err := m.MigrationSockets(ctx, in.Domain)
	if err != nil {
		return nil, err
	}
	return &launcherpb.MigrationSocketsResponse{Control: at.Control, Folder: at.Inside, Shared: s.Shared}, nil
}

// refreshLinks sets the links of interfaces down and up.
func (s migrationCalls) refreshLinks(ctx context.Context, name string, aliases []string) error {
	if len(aliases) == 0 {
		return nil
	}
	st, err := s.Hypervisor.Get(ctx, name)
	if err != nil {
		return err
	}
	if st.Domain.Devices == nil {
		return fmt.Errorf("refresh links of %s: no interfaces: %w", name, domain.ErrNotFound)
	}
	for _, alias := range aliases {
		i := slices.IndexFunc(st.Domain.Devices.Interfaces, func(i libvirtxml.DomainInterface) bool { return i.Alias != nil && i.Alias.Name == alias })
		if i < 0 {
			return fmt.Errorf("refresh links of %s: no interface %s: %w", name, alias, domain.ErrNotFound)
		}
		nic := st.Domain.Devices.Interfaces[i]
		if nic.Link != nil && nic.Link.State == "down" {
			continue // set down by the user
		}
		for _, link := range []string{"down", "up"} {
			nic.Link = &libvirtxml.DomainInterfaceLink{State: link}
			changed := nic
			if err := s.Hypervisor.Apply(ctx, domain.Operation{Verb: domain.UpdateDevice, Domain: name, Device: &changed}); err != nil {
				return err
			}
		}
	}
	return nil
}
