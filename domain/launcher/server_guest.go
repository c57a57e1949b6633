// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// Sync implements launcherpb.LauncherServer.
func (s *Server) Sync(ctx context.Context, in *launcherpb.SyncRequest) (*launcherpb.Done, error) {
	op, err := syncFromWire(in)
	if err != nil {
		return nil, err
	}
	return did(s.Hypervisor.Apply(ctx, op))
}

// apply carries out a verb whose only argument is the domain.
func (s *Server) apply(ctx context.Context, verb domain.Verb, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return did(s.Hypervisor.Apply(ctx, domain.Operation{Verb: verb, Domain: in.Domain}))
}

// Shutdown implements launcherpb.LauncherServer.
func (s *Server) Shutdown(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Shutdown, in)
}

// Pause implements launcherpb.LauncherServer.
func (s *Server) Pause(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Suspend, in)
}

// Unpause implements launcherpb.LauncherServer.
func (s *Server) Unpause(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Resume, in)
}

// Reset implements launcherpb.LauncherServer.
func (s *Server) Reset(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Reset, in)
}

// Reboot implements launcherpb.LauncherServer.
func (s *Server) Reboot(ctx context.Context, in *launcherpb.RebootRequest) (*launcherpb.Done, error) {
	return did(s.Hypervisor.Apply(ctx, domain.Operation{Verb: domain.Reboot, Domain: in.Domain, Agent: in.Agent}))
}

// Destroy implements launcherpb.LauncherServer.
func (s *Server) Destroy(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Destroy, in)
}

// Undefine implements launcherpb.LauncherServer. Where there was nothing to undefine the domain may
// still be created.
func (s *Server) Undefine(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	_, before := s.Hypervisor.Get(ctx, in.Domain)
	out, err := s.apply(ctx, domain.Undefine, in)
	if err == nil && before == nil && in.Domain == s.Guest.Domain() {
		later(ctx, s.Undefined)
	}
	return out, err
}

// GuestInfo implements launcherpb.LauncherServer.
func (s *Server) GuestInfo(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.GuestInfoResponse, error) {
	a, err := able[domain.GuestAgent](s, "guest info")
	if err != nil {
		return nil, err
	}
	g, err := a.GuestInfo(ctx, in.Domain)
	if err != nil {
		return nil, err
	}
	return guestToWire(g), nil
}

// Freeze implements launcherpb.LauncherServer.
func (s *Server) Freeze(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	a, err := able[domain.GuestAgent](s, "freeze")
	if err != nil {
		return nil, err
	}
	return did(a.Freeze(ctx, in.Domain))
}

// Thaw implements launcherpb.LauncherServer.
func (s *Server) Thaw(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	a, err := able[domain.GuestAgent](s, "thaw")
	if err != nil {
		return nil, err
	}
	return did(a.Thaw(ctx, in.Domain))
}

// SetTime implements launcherpb.LauncherServer.
func (s *Server) SetTime(ctx context.Context, in *launcherpb.SetTimeRequest) (*launcherpb.Done, error) {
	a, err := able[domain.GuestAgent](s, "set time")
	if err != nil {
		return nil, err
	}
	return did(a.SetTime(ctx, in.Domain, fromNanos(in.Now)))
}

// AgentCommand implements launcherpb.LauncherServer.
func (s *Server) AgentCommand(ctx context.Context, in *launcherpb.AgentCommandRequest) (*launcherpb.AgentCommandResponse, error) {
	a, err := able[domain.GuestAgent](s, "agent command")
	if err != nil {
		return nil, err
	}
	answer, err := a.AgentCommand(ctx, in.Domain, in.Command)
	if err != nil {
		return nil, err
	}
	return &launcherpb.AgentCommandResponse{Answer: text(answer)}, nil
}

// Stats implements launcherpb.LauncherServer.
func (s *Server) Stats(ctx context.Context, _ *launcherpb.StatsRequest) (*launcherpb.StatsResponse, error) {
	r, err := able[domain.StatsReader](s, "stats")
	if err != nil {
		return nil, err
	}
	all, err := r.Stats(ctx)
	if err != nil {
		return nil, err
	}
	return &launcherpb.StatsResponse{Domains: each(all, statsToWire)}, nil
}

// MemoryModel implements launcherpb.LauncherServer.
func (s *Server) MemoryModel(ctx context.Context, in *launcherpb.MemoryModelRequest) (*launcherpb.MemoryModelResponse, error) {
	m, err := able[domain.MemoryHotplugger](s, "memory model")
	if err != nil {
		return nil, err
	}
	model, err := m.MemoryModel(ctx, in.Arch)
	if err != nil {
		return nil, err
	}
	return &launcherpb.MemoryModelResponse{Model: string(model)}, nil
}

// TakeSnapshot implements launcherpb.LauncherServer.
func (s *Server) TakeSnapshot(ctx context.Context, in *launcherpb.SnapshotRequest) (*launcherpb.Done, error) {
	k, err := able[domain.Snapshotter](s, "take snapshot")
	if err != nil {
		return nil, err
	}
	return did(k.TakeSnapshot(ctx, in.Domain, snapshotFromWire(in.Snapshot)))
}

// Snapshots implements launcherpb.LauncherServer.
func (s *Server) Snapshots(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.SnapshotsResponse, error) {
	k, err := able[domain.Snapshotter](s, "snapshots")
	if err != nil {
		return nil, err
	}
	all, err := k.Snapshots(ctx, in.Domain)
	if err != nil {
		return nil, err
	}
	return &launcherpb.SnapshotsResponse{Snapshots: each(all, snapshotToWire)}, nil
}

// RevertSnapshot implements launcherpb.LauncherServer.
func (s *Server) RevertSnapshot(ctx context.Context, in *launcherpb.SnapshotRequest) (*launcherpb.Done, error) {
	k, err := able[domain.Snapshotter](s, "revert snapshot")
	if err != nil {
		return nil, err
	}
	return did(k.RevertSnapshot(ctx, in.Domain, in.Snapshot.GetName()))
}

// DeleteSnapshot implements launcherpb.LauncherServer.
func (s *Server) DeleteSnapshot(ctx context.Context, in *launcherpb.SnapshotRequest) (*launcherpb.Done, error) {
	k, err := able[domain.Snapshotter](s, "delete snapshot")
	if err != nil {
		return nil, err
	}
	return did(k.DeleteSnapshot(ctx, in.Domain, in.Snapshot.GetName()))
}

// FinalizeMigration implements launcherpb.LauncherServer. Links that go down and up make the guest
// renew its addresses. A guest without an agent keeps its own time.
func (s *Server) FinalizeMigration(ctx context.Context, in *launcherpb.FinalizeMigrationRequest) (*launcherpb.Done, error) {
	if err := s.refreshLinks(ctx, in.Domain, in.RefreshLinks); err != nil {
		return nil, err
	}
	a, able := s.Hypervisor.(domain.GuestAgent)
	if !able || in.Now == 0 {
		return did(nil)
	}
	err := a.SetTime(ctx, in.Domain, fromNanos(in.Now))
	if errors.Is(err, domain.ErrNoAgent) || errors.Is(err, domain.ErrUnsupported) {
		err = nil
	}
	return did(err)
}
