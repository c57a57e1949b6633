// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// migrator implements domain.Migrator, domain.PostCopier, domain.MigrationTuner and domain.SocketMigrator.
type migrator struct{ *channel }

// Migrate implements domain.Migrator. If the channel breaks the migration continues, and the error
// is [domain.ErrDisconnected]. A later call for the migration of the same UID joins it, or returns
// its outcome.
func (c *migrator) Migrate(ctx context.Context, req domain.MigrationRequest) error {
	return c.MigrateTelling(ctx, req, 0, nil)
}

// MigrateTelling is Migrate, and reports the progress at the given interval.
func (c *migrator) MigrateTelling(ctx context.Context, req domain.MigrationRequest, every time.Duration, report func(domain.Progress)) error {
	const op = "migrate"
	s, err := c.session(ctx, op, req.Domain)
	if err != nil {
		return err
	}
	wire, err := migrationToWire(req)
	if err != nil {
		return err
	}
	if wire.Id = string(req.Migration); wire.Id == "" || req.Resume {
		wire.Id = string(uuid.NewUUID())
	}
	wire.ProgressInterval = int64(every)
	// The end of ctx cancels the migration, whose result is awaited.
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := s.api.Migrate(s.speak(long), wire)
	if err != nil {
		return fromStatus(long, op, req.Domain, err)
	}
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		c.cancelMigration(long, s, wire)
	})
	err = migrationResult(long, stream, req.Domain, report)
	if !stop() {
		cancel()
		<-cancelled
	}
	return err
}

// cancelMigration cancels a migration. If that fails the channel is broken, and the migration's
// stream ends as well.
func (c *migrator) cancelMigration(ctx context.Context, s *session, m *launcherpb.MigrateRequest) {
	ctx, end := context.WithTimeout(ctx, longTimeout)
	defer end()
	_, err := s.api.CancelMigration(s.speak(ctx), &launcherpb.CancelMigrationRequest{Domain: m.Domain, Id: m.Id})
	if err != nil {
		c.opts.Log.V(4).Info("Failed to cancel a migration", "domain", m.Domain, "cause", err.Error())
	}
}

// migrationResult waits for the outcome of a migration.
func migrationResult(ctx context.Context, stream grpc.ServerStreamingClient[launcherpb.MigrateResponse], name string, report func(domain.Progress)) error {
	const op = "migrate"
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return &Error{Op: op, Domain: name, Message: "the launcher ended without a result", means: []error{domain.ErrDisconnected}}
		}
		if err != nil {
			return fromStatus(ctx, op, name, err)
		}
		switch step := m.Step.(type) {
		case *launcherpb.MigrateResponse_Progress:
			if report != nil {
				report(progressFromWire(step.Progress))
			}
		case *launcherpb.MigrateResponse_Result:
			return fromWire(op, name, step.Result)
		}
	}
}

// MigrationProgress implements domain.Migrator.
func (c *migrator) MigrationProgress(ctx context.Context, name string) (domain.Progress, error) {
	p, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.MigrationProgress, question{"migration progress", name, shortTimeout})
	if err != nil {
		return domain.Progress{}, err
	}
	return progressFromWire(p), nil
}

// AbortMigration implements domain.Migrator.
func (c *migrator) AbortMigration(ctx context.Context, name string) error {
	_, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.AbortMigration, question{"abort migration", name, longTimeout})
	return err
}

// SwitchToPostCopy implements domain.PostCopier.
func (c *migrator) SwitchToPostCopy(ctx context.Context, name string) error {
	_, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.SwitchToPostCopy, question{"switch to post-copy", name, longTimeout})
	return err
}

// SetMaxDowntime implements domain.MigrationTuner.
func (c *migrator) SetMaxDowntime(ctx context.Context, name string, d time.Duration) error {
	req := &launcherpb.TuneMigrationRequest{Domain: name, Tune: &launcherpb.TuneMigrationRequest_MaxDowntime{MaxDowntime: int64(d)}}
	_, err := ask(ctx, c.channel, launcherpb.LauncherClient.TuneMigration, req, question{"set maximum downtime", name, longTimeout})
	return err
}

// SetMigrationBandwidth implements domain.MigrationTuner.
func (c *migrator) SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error {
	req := &launcherpb.TuneMigrationRequest{Domain: name, Tune: &launcherpb.TuneMigrationRequest_BandwidthMib{BandwidthMib: mib}}
	_, err := ask(ctx, c.channel, launcherpb.LauncherClient.TuneMigration, req, question{"set migration bandwidth", name, longTimeout})
	return err
}

// MigrationSockets implements domain.SocketMigrator. The outside paths lead through the open folder
// of the channel's socket: they mean the same folder whatever a Pod does to its paths, and fit into
// a socket's address.
func (c *migrator) MigrationSockets(ctx context.Context, name string) (domain.Sockets, error) {
	m, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.MigrationSockets, question{"migration sockets", name, shortTimeout})
	if err != nil {
		return domain.Sockets{}, err
	}
	out := domain.Sockets{Inside: m.Folder, Own: true}
	if out.Control, err = c.seen(m.Shared, m.Control, 2); err != nil {
		return domain.Sockets{}, fmt.Errorf("launcher: migration sockets %s: %w", name, err)
	}
	if out.Outside, err = c.seen(m.Shared, m.Folder, 1); err != nil {
		return domain.Sockets{}, fmt.Errorf("launcher: migration sockets %s: %w", name, err)
	}
	return out, nil
}

// seen is a path of the launcher as seen from the node, at most so deep in its folder. A symbolic
// link on the way is refused now; later the Pod may create one anywhere. Sockets therefore are in
// the folder or in one directly in it, which their users open without following a link.
func (c *migrator) seen(shared, path string, depth int) (string, error) {
	below, err := filepath.Rel(shared, path)
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		return "", fmt.Errorf("%q is not in the launcher's folder %q: %w", path, shared, domain.ErrInvalid)
	}
	if strings.Count(below, "/") >= depth {
		return "", fmt.Errorf("%q is deeper in the launcher's folder %q than sockets may be: %w", path, shared, domain.ErrInvalid)
	}
	root := fmt.Sprintf("/proc/self/fd/%d", c.dir.Fd())
	place, err := openBelow(root, below)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, below), place.Close()
}

// FinalizeMigration completes the guest's arrival by a migration: its clock is set, if it has an
// agent and now is not zero, and the links of the interfaces with those aliases go down and up, so
// that the network learns their location.
func (c *migrator) FinalizeMigration(ctx context.Context, name string, now time.Time, refresh []string) error {
	req := &launcherpb.FinalizeMigrationRequest{Domain: name, Now: toNanos(now), RefreshLinks: refresh}
	_, err := ask(ctx, c.channel, launcherpb.LauncherClient.FinalizeMigration, req, question{"finalize migration", name, longTimeout})
	return err
}
