// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// operationCalls are about operations.
type operationCalls struct{ *Server }

// Sync implements launcherpb.LauncherServer.
func (s operationCalls) Sync(ctx context.Context, in *launcherpb.SyncRequest) (*launcherpb.Done, error) {
	op, err := syncFromWire(in)
	if err != nil {
		return nil, err
	}
	return doneAnswer(s.Hypervisor.Apply(ctx, op))
}

// apply carries out a verb whose only argument is the domain.
func (s operationCalls) apply(ctx context.Context, verb domain.Verb, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return doneAnswer(s.Hypervisor.Apply(ctx, domain.Operation{Verb: verb, Domain: in.Domain}))
}

// Shutdown implements launcherpb.LauncherServer.
func (s operationCalls) Shutdown(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Shutdown, in)
}

// Pause implements launcherpb.LauncherServer.
func (s operationCalls) Pause(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Suspend, in)
}

// Unpause implements launcherpb.LauncherServer.
func (s operationCalls) Unpause(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Resume, in)
}

// Reset implements launcherpb.LauncherServer.
func (s operationCalls) Reset(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Reset, in)
}

// Reboot implements launcherpb.LauncherServer.
func (s operationCalls) Reboot(ctx context.Context, in *launcherpb.RebootRequest) (*launcherpb.Done, error) {
	return doneAnswer(s.Hypervisor.Apply(ctx, domain.Operation{Verb: domain.Reboot, Domain: in.Domain, Agent: in.Agent}))
}

// Destroy implements launcherpb.LauncherServer.
func (s operationCalls) Destroy(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	return s.apply(ctx, domain.Destroy, in)
}

// Undefine implements launcherpb.LauncherServer. Where there was nothing to undefine the domain may
// still be created.
func (s operationCalls) Undefine(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	_, before := s.Hypervisor.Get(ctx, in.Domain)
	out, err := s.apply(ctx, domain.Undefine, in)
	if err == nil && before == nil && in.Domain == s.Guest.Domain() {
		later(ctx, s.Undefined)
	}
	return out, err
}

// agentCalls are about the guest agent.
type agentCalls struct{ *Server }

// GuestInfo implements launcherpb.LauncherServer.
func (s agentCalls) GuestInfo(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.GuestInfoResponse, error) {
	a, err := servedAbility[domain.GuestAgent](s.Server, "guest info")
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
func (s agentCalls) Freeze(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	a, err := servedAbility[domain.GuestAgent](s.Server, "freeze")
	if err != nil {
		return nil, err
	}
	return doneAnswer(a.Freeze(ctx, in.Domain))
}

// Thaw implements launcherpb.LauncherServer.
func (s agentCalls) Thaw(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.Done, error) {
	a, err := servedAbility[domain.GuestAgent](s.Server, "thaw")
	if err != nil {
		return nil, err
	}
	return doneAnswer(a.Thaw(ctx, in.Domain))
}

// SetTime implements launcherpb.LauncherServer.
func (s agentCalls) SetTime(ctx context.Context, in *launcherpb.SetTimeRequest) (*launcherpb.Done, error) {
	a, err := servedAbility[domain.GuestAgent](s.Server, "set time")
	if err != nil {
		return nil, err
	}
	return doneAnswer(a.SetTime(ctx, in.Domain, fromNanos(in.Now)))
}

// AgentCommand implements launcherpb.LauncherServer.
func (s agentCalls) AgentCommand(ctx context.Context, in *launcherpb.AgentCommandRequest) (*launcherpb.AgentCommandResponse, error) {
	a, err := servedAbility[domain.GuestAgent](s.Server, "agent command")
	if err != nil {
		return nil, err
	}
	answer, err := a.AgentCommand(ctx, in.Domain, in.Command)
	if err != nil {
		return nil, err
	}
	return &launcherpb.AgentCommandResponse{Answer: validUTF8(answer)}, nil
}

// Stats implements launcherpb.LauncherServer.
func (s service) Stats(ctx context.Context, _ *launcherpb.StatsRequest) (*launcherpb.StatsResponse, error) {
	r, err := servedAbility[domain.StatsReader](s.Server, "stats")
	if err != nil {
		return nil, err
	}
	all, err := r.Stats(ctx)
	if err != nil {
		return nil, err
	}
	return &launcherpb.StatsResponse{Domains: eachOnWire(all, statsToWire)}, nil
}

// MemoryModel implements launcherpb.LauncherServer.
func (s service) MemoryModel(ctx context.Context, in *launcherpb.MemoryModelRequest) (*launcherpb.MemoryModelResponse, error) {
	m, err := servedAbility[domain.MemoryHotplugger](s.Server, "memory model")
	if err != nil {
		return nil, err
	}
	model, err := m.MemoryModel(ctx, in.Arch)
	if err != nil {
		return nil, err
	}
	return &launcherpb.MemoryModelResponse{Model: string(model)}, nil
}

// snapshotCalls are about snapshots.
type snapshotCalls struct{ *Server }

// TakeSnapshot implements launcherpb.LauncherServer.
func (s snapshotCalls) TakeSnapshot(ctx context.Context, in *launcherpb.SnapshotRequest) (*launcherpb.Done, error) {
	k, err := servedAbility[domain.Snapshotter](s.Server, "take snapshot")
	if err != nil {
		return nil, err
	}
	return doneAnswer(k.TakeSnapshot(ctx, in.Domain, snapshotFromWire(in.Snapshot)))
}

// Snapshots implements launcherpb.LauncherServer.
func (s snapshotCalls) Snapshots(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.SnapshotsResponse, error) {
	k, err := servedAbility[domain.Snapshotter](s.Server, "snapshots")
	if err != nil {
		return nil, err
	}
	all, err := k.Snapshots(ctx, in.Domain)
	if err != nil {
		return nil, err
	}
	return &launcherpb.SnapshotsResponse{Snapshots: eachOnWire(all, snapshotToWire)}, nil
}

// RevertSnapshot implements launcherpb.LauncherServer.
func (s snapshotCalls) RevertSnapshot(ctx context.Context, in *launcherpb.SnapshotRequest) (*launcherpb.Done, error) {
	k, err := servedAbility[domain.Snapshotter](s.Server, "revert snapshot")
	if err != nil {
		return nil, err
	}
	return doneAnswer(k.RevertSnapshot(ctx, in.Domain, in.Snapshot.GetName()))
}

// DeleteSnapshot implements launcherpb.LauncherServer.
func (s snapshotCalls) DeleteSnapshot(ctx context.Context, in *launcherpb.SnapshotRequest) (*launcherpb.Done, error) {
	k, err := servedAbility[domain.Snapshotter](s.Server, "delete snapshot")
	if err != nil {
		return nil, err
	}
	return doneAnswer(k.DeleteSnapshot(ctx, in.Domain, in.Snapshot.GetName()))
}

// FinalizeMigration implements launcherpb.LauncherServer. Links that go down and up make the guest
// renew its addresses. A guest without an agent keeps its own time.
func (s migrationCalls) FinalizeMigration(ctx context.Context, in *launcherpb.FinalizeMigrationRequest) (*launcherpb.Done, error) {
	if err := s.refreshLinks(ctx, in.Domain, in.RefreshLinks); err != nil {
		return nil, err
	}
	a, able := s.Hypervisor.(domain.GuestAgent)
	if !able || in.Now == 0 {
		return doneAnswer(nil)
	}
	err := a.SetTime(ctx, in.Domain, fromNanos(in.Now))
	if errors.Is(err, domain.ErrNoAgent) || errors.Is(err, domain.ErrUnsupported) {
		err = nil
	}
	return doneAnswer(err)
}
