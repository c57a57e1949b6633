// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/stats"
)

// Migrate implements Migrator.
func (f *Fleet) Migrate(ctx context.Context, req domain.MigrationRequest) error {
	m, err := reach[domain.Migrator](ctx, f, "migrate", req.Domain)
	if err != nil {
		return err
	}
	return m.Migrate(ctx, req)
}

// MigrationProgress implements Migrator.
func (f *Fleet) MigrationProgress(ctx context.Context, name string) (domain.Progress, error) {
	m, err := reach[domain.Migrator](ctx, f, "migration progress", name)
	if err != nil {
		return domain.Progress{}, err
	}
	return m.MigrationProgress(ctx, name)
}

// AbortMigration implements Migrator.
func (f *Fleet) AbortMigration(ctx context.Context, name string) error {
	m, err := reach[domain.Migrator](ctx, f, "abort migration", name)
	if err != nil {
		return err
	}
	return m.AbortMigration(ctx, name)
}

// SwitchToPostCopy implements PostCopier.
func (f *Fleet) SwitchToPostCopy(ctx context.Context, name string) error {
	p, err := reach[domain.PostCopier](ctx, f, "switch to post-copy", name)
	if err != nil {
		return err
	}
	return p.SwitchToPostCopy(ctx, name)
}

// SetMaxDowntime implements MigrationTuner.
func (f *Fleet) SetMaxDowntime(ctx context.Context, name string, d time.Duration) error {
	m, err := reach[domain.MigrationTuner](ctx, f, "set maximum downtime", name)
	if err != nil {
		return err
	}
	return m.SetMaxDowntime(ctx, name, d)
}

// SetMigrationBandwidth implements MigrationTuner.
func (f *Fleet) SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error {
	m, err := reach[domain.MigrationTuner](ctx, f, "set migration bandwidth", name)
	if err != nil {
		return err
	}
	return m.SetMigrationBandwidth(ctx, name, mib)
}

// MigrationSockets implements SocketMigrator. Without a member it is ErrNotReady: the
// domain need not exist yet, but its hypervisor must.
func (f *Fleet) MigrationSockets(ctx context.Context, name string) (domain.Sockets, error) {
	m, err := reach[domain.SocketMigrator](ctx, f, "migration sockets", name)
	if errors.Is(err, domain.ErrNotFound) {
		return domain.Sockets{}, fmt.Errorf("migration sockets of %s: its hypervisor has not joined: %w", name, domain.ErrNotReady)
	}
	if err != nil {
		return domain.Sockets{}, err
	}
	return m.MigrationSockets(ctx, name)
}

// GuestInfo implements GuestAgent.
func (f *Fleet) GuestInfo(ctx context.Context, name string) (guestagent.Info, error) {
	a, err := reach[domain.GuestAgent](ctx, f, "guest info", name)
	if err != nil {
		return guestagent.Info{}, err
	}
	return a.GuestInfo(ctx, name)
}

// Freeze implements GuestAgent.
func (f *Fleet) Freeze(ctx context.Context, name string) error {
	a, err := reach[domain.GuestAgent](ctx, f, "freeze", name)
	if err != nil {
		return err
	}
	return a.Freeze(ctx, name)
}

// Thaw implements GuestAgent.
func (f *Fleet) Thaw(ctx context.Context, name string) error {
	a, err := reach[domain.GuestAgent](ctx, f, "thaw", name)
	if err != nil {
		return err
	}
	return a.Thaw(ctx, name)
}

// SetTime implements GuestAgent.
func (f *Fleet) SetTime(ctx context.Context, name string, now time.Time) error {
	a, err := reach[domain.GuestAgent](ctx, f, "set time", name)
	if err != nil {
		return err
	}
	return a.SetTime(ctx, name, now)
}

// AgentCommand implements GuestAgent.
func (f *Fleet) AgentCommand(ctx context.Context, name, command string) (string, error) {
	a, err := reach[domain.GuestAgent](ctx, f, "agent command", name)
	if err != nil {
		return "", err
	}
	return a.AgentCommand(ctx, name, command)
}

// TakeSnapshot implements Snapshotter.
func (f *Fleet) TakeSnapshot(ctx context.Context, name string, s domain.Snapshot) error {
	k, err := reach[domain.Snapshotter](ctx, f, "take snapshot", name)
	if err != nil {
		return err
	}
	return k.TakeSnapshot(ctx, name, s)
}

// Snapshots implements Snapshotter.
func (f *Fleet) Snapshots(ctx context.Context, name string) ([]domain.Snapshot, error) {
	k, err := reach[domain.Snapshotter](ctx, f, "snapshots", name)
	if err != nil {
		return nil, err
	}
	return k.Snapshots(ctx, name)
}

// RevertSnapshot implements Snapshotter.
func (f *Fleet) RevertSnapshot(ctx context.Context, name, snapshot string) error {
	k, err := reach[domain.Snapshotter](ctx, f, "revert snapshot", name)
	if err != nil {
		return err
	}
	return k.RevertSnapshot(ctx, name, snapshot)
}

// DeleteSnapshot implements Snapshotter.
func (f *Fleet) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	k, err := reach[domain.Snapshotter](ctx, f, "delete snapshot", name)
	if err != nil {
		return err
	}
	return k.DeleteSnapshot(ctx, name, snapshot)
}

// OpenConsole implements ConsoleOpener.
func (f *Fleet) OpenConsole(ctx context.Context, name, alias string) (io.ReadWriteCloser, error) {
	o, err := reach[domain.ConsoleOpener](ctx, f, "open console", name)
	if err != nil {
		return nil, err
	}
	return o.OpenConsole(ctx, name, alias)
}

// Stats implements StatsReader. A member that does not answer in time is omitted, since old
// counters are not those of now. It is an error if no member answers.
func (f *Fleet) Stats(ctx context.Context) ([]stats.Domain, error) {
	if err := spent(ctx, "stats"); err != nil {
		return nil, err
	}
	patience := f.Patience
	if patience <= 0 {
		patience = DefaultPatience
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all := f.roster.sorted()
	found, errs := make([][]stats.Domain, len(all)), make([]error, len(all))
	var asked sync.WaitGroup
	for i, m := range all {
		asked.Go(func() {
			r, able := m.Hypervisor.(domain.StatsReader)
			if !able {
				errs[i] = fmt.Errorf("stats of %s: its hypervisor lacks the ability: %w", m.name, domain.ErrUnsupported)
				return
			}
			found[i], errs[i] = r.Stats(bounded)
			found[i] = slices.DeleteFunc(found[i], func(s stats.Domain) bool { return s.Name != m.name })
		})
	}
	asked.Wait()
	if err := spent(ctx, "stats"); err != nil {
		return nil, err
	}
	if err := unanimous(errs); err != nil {
		return nil, err
	}
	out := slices.Concat(found...)
	slices.SortFunc(out, func(a, b stats.Domain) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}
