// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Migrate implements Migrator.
func (f *Fleet) Migrate(ctx context.Context, req MigrationRequest) error {
	m, err := reach[Migrator](ctx, f, "migrate", req.Domain)
	if err != nil {
		return err
	}
	return m.Migrate(ctx, req)
}

// MigrationProgress implements Migrator.
func (f *Fleet) MigrationProgress(ctx context.Context, name string) (Progress, error) {
	m, err := reach[Migrator](ctx, f, "migration progress", name)
	if err != nil {
		return Progress{}, err
	}
	return m.MigrationProgress(ctx, name)
}

// AbortMigration implements Migrator.
func (f *Fleet) AbortMigration(ctx context.Context, name string) error {
	m, err := reach[Migrator](ctx, f, "abort migration", name)
	if err != nil {
		return err
	}
	return m.AbortMigration(ctx, name)
}

// SwitchToPostCopy implements PostCopier.
func (f *Fleet) SwitchToPostCopy(ctx context.Context, name string) error {
	p, err := reach[PostCopier](ctx, f, "switch to post-copy", name)
	if err != nil {
		return err
	}
	return p.SwitchToPostCopy(ctx, name)
}

// SetMaxDowntime implements MigrationTuner.
func (f *Fleet) SetMaxDowntime(ctx context.Context, name string, d time.Duration) error {
	m, err := reach[MigrationTuner](ctx, f, "set maximum downtime", name)
	if err != nil {
		return err
	}
	return m.SetMaxDowntime(ctx, name, d)
}

// SetMigrationBandwidth implements MigrationTuner.
func (f *Fleet) SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error {
	m, err := reach[MigrationTuner](ctx, f, "set migration bandwidth", name)
	if err != nil {
		return err
	}
	return m.SetMigrationBandwidth(ctx, name, mib)
}

// MigrationSockets implements SocketMigrator. Without a member it is ErrNotReady: the
// domain need not exist, but where it will.
func (f *Fleet) MigrationSockets(ctx context.Context, name string) (Sockets, error) {
	m, err := reach[SocketMigrator](ctx, f, "migration sockets", name)
	if errors.Is(err, ErrNotFound) {
		return Sockets{}, fmt.Errorf("migration sockets of %s: its hypervisor is not there yet: %w", name, ErrNotReady)
	}
	if err != nil {
		return Sockets{}, err
	}
	return m.MigrationSockets(ctx, name)
}

// GuestInfo implements GuestAgent.
func (f *Fleet) GuestInfo(ctx context.Context, name string) (GuestInfo, error) {
	a, err := reach[GuestAgent](ctx, f, "guest info", name)
	if err != nil {
		return GuestInfo{}, err
	}
	return a.GuestInfo(ctx, name)
}

// Freeze implements GuestAgent.
func (f *Fleet) Freeze(ctx context.Context, name string) error {
	a, err := reach[GuestAgent](ctx, f, "freeze", name)
	if err != nil {
		return err
	}
	return a.Freeze(ctx, name)
}

// Thaw implements GuestAgent.
func (f *Fleet) Thaw(ctx context.Context, name string) error {
	a, err := reach[GuestAgent](ctx, f, "thaw", name)
	if err != nil {
		return err
	}
	return a.Thaw(ctx, name)
}

// SetTime implements GuestAgent.
func (f *Fleet) SetTime(ctx context.Context, name string, now time.Time) error {
	a, err := reach[GuestAgent](ctx, f, "set time", name)
	if err != nil {
		return err
	}
	return a.SetTime(ctx, name, now)
}

// AgentCommand implements GuestAgent.
func (f *Fleet) AgentCommand(ctx context.Context, name, command string) (string, error) {
	a, err := reach[GuestAgent](ctx, f, "agent command", name)
	if err != nil {
		return "", err
	}
	return a.AgentCommand(ctx, name, command)
}

// TakeSnapshot implements Snapshotter.
func (f *Fleet) TakeSnapshot(ctx context.Context, name string, s Snapshot) error {
	k, err := reach[Snapshotter](ctx, f, "take snapshot", name)
	if err != nil {
		return err
	}
	return k.TakeSnapshot(ctx, name, s)
}

// Snapshots implements Snapshotter.
func (f *Fleet) Snapshots(ctx context.Context, name string) ([]Snapshot, error) {
	k, err := reach[Snapshotter](ctx, f, "snapshots", name)
	if err != nil {
		return nil, err
	}
	return k.Snapshots(ctx, name)
}

// RevertSnapshot implements Snapshotter.
func (f *Fleet) RevertSnapshot(ctx context.Context, name, snapshot string) error {
	k, err := reach[Snapshotter](ctx, f, "revert snapshot", name)
	if err != nil {
		return err
	}
	return k.RevertSnapshot(ctx, name, snapshot)
}

// DeleteSnapshot implements Snapshotter.
func (f *Fleet) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	k, err := reach[Snapshotter](ctx, f, "delete snapshot", name)
	if err != nil {
		return err
	}
	return k.DeleteSnapshot(ctx, name, snapshot)
}

// OpenConsole implements ConsoleOpener.
func (f *Fleet) OpenConsole(ctx context.Context, name, alias string) (io.ReadWriteCloser, error) {
	o, err := reach[ConsoleOpener](ctx, f, "open console", name)
	if err != nil {
		return nil, err
	}
	return o.OpenConsole(ctx, name, alias)
}

// Stats implements StatsReader. A member that does not answer in time is left out: what
// it counted before is no count of now. It is an error if nobody answers.
func (f *Fleet) Stats(ctx context.Context) ([]Stats, error) {
	if err := spent(ctx, "stats"); err != nil {
		return nil, err
	}
	patience := f.Patience
	if patience <= 0 {
		patience = DefaultPatience
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all := f.sorted()
	found, errs := make([][]Stats, len(all)), make([]error, len(all))
	var asked sync.WaitGroup
	for i, m := range all {
		asked.Go(func() {
			r, able := m.Hypervisor.(StatsReader)
			if !able {
				errs[i] = fmt.Errorf("stats of %s: its hypervisor cannot do it: %w", m.name, ErrUnsupported)
				return
			}
			found[i], errs[i] = r.Stats(bounded)
			found[i] = slices.DeleteFunc(found[i], func(s Stats) bool { return s.Name != m.name })
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
	slices.SortFunc(out, func(a, b Stats) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}
