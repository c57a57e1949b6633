// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
	"github.com/virtloom/virtloom/domain/stats"
)

// question is the operation of a call, its domain and its default timeout.
type question struct {
	op, name string
	limit    time.Duration
}

// rpc is a call of the protocol.
type rpc[Req, Resp any] func(launcherpb.LauncherClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error)

// ask makes a call.
func ask[Req, Resp any](ctx context.Context, c *channel, do rpc[Req, Resp], req *Req, q question) (*Resp, error) {
	s, err := c.session(ctx, q.op, q.name)
	if err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.limit)
		defer cancel()
	}
	out, err := do(s.api, s.speak(ctx), req)
	return out, fromStatus(ctx, q.op, q.name, err)
}

// askAboutDomain makes a call about one domain.
func askAboutDomain[Resp any](ctx context.Context, c *channel, do rpc[launcherpb.DomainRequest, Resp], q question) (*Resp, error) {
	return ask(ctx, c, do, &launcherpb.DomainRequest{Domain: q.name}, q)
}

// Host implements domain.Hypervisor.
func (c *Client) Host(ctx context.Context) (domain.Host, error) {
	h, err := ask(ctx, c.channel, launcherpb.LauncherClient.Host, &launcherpb.HostRequest{}, question{op: "host", limit: shortTimeout})
	if err != nil {
		return domain.Host{}, err
	}
	return hostFromWire(h), nil
}

// List implements domain.Hypervisor.
func (c *Client) List(ctx context.Context) ([]domain.State, error) {
	l, err := ask(ctx, c.channel, launcherpb.LauncherClient.List, &launcherpb.ListRequest{}, question{op: "list", limit: shortTimeout})
	if err != nil {
		return nil, err
	}
	var out []domain.State
	for _, wire := range l.States {
		wire.Definition = "" // Get's
		st, err := stateFromWire(wire)
		if err != nil {
			return nil, fmt.Errorf("launcher: list: %w", err)
		}
		out = append(out, st)
	}
	return out, nil
}

// Get implements domain.Hypervisor.
func (c *Client) Get(ctx context.Context, name string) (domain.State, error) {
	wire, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.Get, question{"get", name, shortTimeout})
	if err != nil {
		return domain.State{}, err
	}
	st, err := stateFromWire(wire)
	if err == nil && st.Name != name {
		err = fmt.Errorf("the answer is for domain %q", st.Name)
	}
	if err != nil {
		return domain.State{}, fmt.Errorf("launcher: get %s: %w", name, err)
	}
	return st, nil
}

// verbs are the calls for the operations whose only argument is the domain.
var verbs = map[domain.Verb]rpc[launcherpb.DomainRequest, launcherpb.Done]{
	domain.Shutdown: launcherpb.LauncherClient.Shutdown,
	domain.Suspend:  launcherpb.LauncherClient.Pause,
	domain.Resume:   launcherpb.LauncherClient.Unpause,
	domain.Reset:    launcherpb.LauncherClient.Reset,
	domain.Destroy:  launcherpb.LauncherClient.Destroy,
	domain.Undefine: launcherpb.LauncherClient.Undefine,
}

// Apply implements domain.Hypervisor.
func (c *Client) Apply(ctx context.Context, op domain.Operation) error {
	if err := op.Validate(); err != nil {
		return err
	}
	q := question{string(op.Verb), op.Domain, longTimeout}
	if do, simple := verbs[op.Verb]; simple {
		_, err := askAboutDomain(ctx, c.channel, do, q)
		return err
	}
	if op.Verb == domain.Reboot {
		_, err := ask(ctx, c.channel, launcherpb.LauncherClient.Reboot, &launcherpb.RebootRequest{Domain: op.Domain, Agent: op.Agent}, q)
		return err
	}
	req, err := syncToWire(op)
	if err != nil {
		return err
	}
	_, err = ask(ctx, c.channel, launcherpb.LauncherClient.Sync, req, q)
	return err
}

// Watch implements domain.Hypervisor.
func (c *Client) Watch(ctx context.Context) (<-chan domain.Event, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, c.disconnected("watch", "")
	}
	return c.hints.Watch(ctx), nil
}

// guestAgent implements domain.GuestAgent.
type guestAgent struct{ *channel }

// GuestInfo implements domain.GuestAgent.
func (c *guestAgent) GuestInfo(ctx context.Context, name string) (guestagent.Info, error) {
	g, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.GuestInfo, question{"guest info", name, longTimeout})
	if err != nil {
		return guestagent.Info{}, err
	}
	return guestFromWire(g), nil
}

// Freeze implements domain.GuestAgent.
func (c *guestAgent) Freeze(ctx context.Context, name string) error {
	_, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.Freeze, question{"freeze", name, extendedTimeout})
	return err
}

// Thaw implements domain.GuestAgent.
func (c *guestAgent) Thaw(ctx context.Context, name string) error {
	_, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.Thaw, question{"thaw", name, longTimeout})
	return err
}

// SetTime implements domain.GuestAgent.
func (c *guestAgent) SetTime(ctx context.Context, name string, now time.Time) error {
	req := &launcherpb.SetTimeRequest{Domain: name, Now: toNanos(now)}
	_, err := ask(ctx, c.channel, launcherpb.LauncherClient.SetTime, req, question{"set time", name, longTimeout})
	return err
}

// AgentCommand implements domain.GuestAgent.
func (c *guestAgent) AgentCommand(ctx context.Context, name, command string) (string, error) {
	req := &launcherpb.AgentCommandRequest{Domain: name, Command: command}
	a, err := ask(ctx, c.channel, launcherpb.LauncherClient.AgentCommand, req, question{"agent command", name, longTimeout})
	return a.GetAnswer(), err
}

// Stats implements domain.StatsReader.
func (c *Client) Stats(ctx context.Context) ([]stats.Domain, error) {
	s, err := ask(ctx, c.channel, launcherpb.LauncherClient.Stats, &launcherpb.StatsRequest{}, question{op: "stats", limit: shortTimeout})
	if err != nil {
		return nil, err
	}
	return eachOnWire(s.Domains, statsFromWire), nil
}

// MemoryModel implements domain.MemoryHotplugger.
func (c *Client) MemoryModel(ctx context.Context, arch string) (domain.MemoryModel, error) {
	m, err := ask(ctx, c.channel, launcherpb.LauncherClient.MemoryModel, &launcherpb.MemoryModelRequest{Arch: arch}, question{op: "memory model", limit: shortTimeout})
	return domain.MemoryModel(m.GetModel()), err
}

// snapshotter implements domain.Snapshotter.
type snapshotter struct{ *channel }

// TakeSnapshot implements domain.Snapshotter.
func (c *snapshotter) TakeSnapshot(ctx context.Context, name string, s domain.Snapshot) error {
	req := &launcherpb.SnapshotRequest{Domain: name, Snapshot: snapshotToWire(s)}
	_, err := ask(ctx, c.channel, launcherpb.LauncherClient.TakeSnapshot, req, question{"take snapshot", name, extendedTimeout})
	return err
}

// Snapshots implements domain.Snapshotter.
func (c *snapshotter) Snapshots(ctx context.Context, name string) ([]domain.Snapshot, error) {
	s, err := askAboutDomain(ctx, c.channel, launcherpb.LauncherClient.Snapshots, question{"snapshots", name, shortTimeout})
	if err != nil {
		return nil, err
	}
	return eachOnWire(s.Snapshots, snapshotFromWire), nil
}

// RevertSnapshot implements domain.Snapshotter.
func (c *snapshotter) RevertSnapshot(ctx context.Context, name, snapshot string) error {
	req := &launcherpb.SnapshotRequest{Domain: name, Snapshot: &launcherpb.Snapshot{Name: validUTF8(snapshot)}}
	_, err := ask(ctx, c.channel, launcherpb.LauncherClient.RevertSnapshot, req, question{"revert snapshot", name, extendedTimeout})
	return err
}

// DeleteSnapshot implements domain.Snapshotter.
func (c *snapshotter) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	req := &launcherpb.SnapshotRequest{Domain: name, Snapshot: &launcherpb.Snapshot{Name: validUTF8(snapshot)}}
	_, err := ask(ctx, c.channel, launcherpb.LauncherClient.DeleteSnapshot, req, question{"delete snapshot", name, extendedTimeout})
	return err
}
