// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// defaultLongest is the default of [Server].Longest.
const defaultLongest = 5 * time.Minute

// maxMessage is the largest message of the channel in bytes. A definition of the largest guest
// takes a fraction of it.
const maxMessage = 16 << 20

const (
	// parting is the time for open calls when the server ends.
	parting = 5 * time.Second
	// quickestProbe is the least interval of a client's probes of the connection.
	quickestProbe = 5 * time.Second
	// versionKey is the header that carries the version of a call.
	versionKey = "virtloom-launcher-version"
)

// Guest identifies the VMI of a launcher.
type Guest struct {
	// Namespace, Name and UID are those of the VirtualMachineInstance.
	Namespace, Name string
	UID             types.UID
}

// String returns namespace, name and UID.
func (g Guest) String() string {
	return fmt.Sprintf("%s/%s with UID %s", g.Namespace, g.Name, g.UID)
}

// Domain returns the name of the VMI's domain.
func (g Guest) Domain() string { return domain.Name(g.Namespace, g.Name) }

// Server is the launcher's end of the command channel. Fields are set before Serve and
// not changed afterwards; those without a default are required.
type Server struct {
	// Hypervisor runs the domain. Its abilities are found by type assertion.
	Hypervisor domain.Hypervisor
	// Guest is the VMI of this launcher.
	Guest Guest
	// Version is the launcher's own version, for logs of agents. Default: empty.
	Version string
	// Shared is the folder of the channel's socket, as the launcher sees it, which the agent sees
	// as well. The sockets of migrations have to be below it. Default: none, migrations need a
	// transport without sockets.
	Shared string
	// Longest bounds every call but migrations, watches and consoles. Default: 5 minutes.
	Longest time.Duration
	// Clock paces the progress of migrations. Default: the real one.
	Clock clock.WithTicker
	// Undefined is called when the domain was undefined over the channel, which ends a launcher,
	// once the answer is sent. Default: no call.
	Undefined func()

	once       sync.Once
	done       chan struct{} // closed when the server ends
	migrations migrations
}

// Serve answers calls until ctx ends and returns when the last is answered; migrations are carried
// to their ends. The listener is closed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.Hypervisor == nil {
		return errors.New("launcher: Server.Hypervisor is required")
	}
	s.complete()
	g := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: quickestProbe, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.StatsHandler(afterwards{}),
	)
	launcherpb.RegisterLauncherServer(g, service{
		Server: s, operationCalls: operationCalls{s}, agentCalls: agentCalls{s}, snapshotCalls: snapshotCalls{s}, migrationCalls: migrationCalls{s},
	})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	close(s.done)
	forced := s.Clock.NewTimer(parting)
	defer forced.Stop()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.GracefulStop()
	}()
	select {
	case <-stopped:
	case <-forced.C():
		g.Stop()
		<-stopped
	}
	s.migrations.wait()
	if err != nil {
		return fmt.Errorf("launcher: serve %s: %w", l.Addr(), err)
	}
	return nil
}

func (s *Server) complete() {
	s.once.Do(func() {
		s.done = make(chan struct{})
		if s.Longest <= 0 {
			s.Longest = defaultLongest
		}
		if s.Clock == nil {
			s.Clock = clock.RealClock{}
		}
		if s.Undefined == nil {
			s.Undefined = func() {}
		}
	})
}

// unary wraps every call: it checks the version, bounds the time, and converts the error.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if info.FullMethod != launcherpb.Launcher_Info_FullMethodName {
		if err := spokenIn(ctx); err != nil {
			return nil, toStatus(err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.Longest)
	defer cancel()
	out, err := handle(ctx, req)
	return out, toStatus(err)
}

// stream is the same for streams.
func (s *Server) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := spokenIn(stream.Context()); err != nil {
		return toStatus(err)
	}
	return toStatus(handle(srv, stream))
}

// spokenIn checks that the version of a call is supported.
func spokenIn(ctx context.Context) error {
	said := metadata.ValueFromIncomingContext(ctx, versionKey)
	if len(said) == 1 {
		if v, err := strconv.ParseUint(said[0], 10, 32); err == nil && slices.Contains(versions, uint32(v)) {
			return nil
		}
	}
	return fmt.Errorf("version %q of the command channel is not supported; call Info first; the launcher supports %s: %w",
		said, spoken(versions), domain.ErrUnsupported)
}

// service answers the calls of the protocol.
type service struct {
	unimplemented
	*Server
	operationCalls
	agentCalls
	snapshotCalls
	migrationCalls
}

// unimplemented is a level deeper than the calls, so that these take precedence.
type unimplemented struct {
	launcherpb.UnimplementedLauncherServer
}

// Info implements launcherpb.LauncherServer.
func (s service) Info(_ context.Context, in *launcherpb.InfoRequest) (*launcherpb.InfoResponse, error) {
	best, err := agree(versions, in.Versions)
	if err != nil {
		return nil, err
	}
	return &launcherpb.InfoResponse{
		Version: best, Versions: versions, Launcher: s.Version,
		VmiNamespace: s.Guest.Namespace, VmiName: s.Guest.Name, VmiUid: string(s.Guest.UID),
	}, nil
}

// Host implements launcherpb.LauncherServer.
func (s service) Host(ctx context.Context, _ *launcherpb.HostRequest) (*launcherpb.HostResponse, error) {
	h, err := s.Hypervisor.Host(ctx)
	if err != nil {
		return nil, err
	}
	return hostToWire(h), nil
}

// List implements launcherpb.LauncherServer.
func (s service) List(ctx context.Context, _ *launcherpb.ListRequest) (*launcherpb.ListResponse, error) {
	all, err := s.Hypervisor.List(ctx)
	if err != nil {
		return nil, err
	}
	out := &launcherpb.ListResponse{}
	for _, st := range all {
		wire, err := stateToWire(st)
		if err != nil {
			return nil, err
		}
		out.States = append(out.States, wire)
	}
	return out, nil
}

// Get implements launcherpb.LauncherServer.
func (s service) Get(ctx context.Context, in *launcherpb.DomainRequest) (*launcherpb.State, error) {
	st, err := s.Hypervisor.Get(ctx, in.Domain)
	if err != nil {
		return nil, err
	}
	return stateToWire(st)
}

// Watch implements launcherpb.LauncherServer.
func (s service) Watch(_ *launcherpb.WatchRequest, stream grpc.ServerStreamingServer[launcherpb.Event]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	events, err := s.Hypervisor.Watch(ctx)
	if err != nil {
		return err
	}
	for {
		select {
		case e, more := <-events:
			if !more {
				return fmt.Errorf("watch: %w", domain.ErrDisconnected)
			}
			if err := stream.Send(eventToWire(e)); err != nil {
				return err
			}
		case <-s.done:
			return fmt.Errorf("watch: the launcher is shutting down: %w", domain.ErrDisconnected)
		}
	}
}

// servedAbility returns an ability of the hypervisor.
func servedAbility[A any](s *Server, what string) (A, error) {
	a, ok := s.Hypervisor.(A)
	if !ok {
		return a, fmt.Errorf("%s: not supported by the launcher's hypervisor: %w", what, domain.ErrUnsupported)
	}
	return a, nil
}

// doneAnswer is the answer to a successful call.
func doneAnswer(err error) (*launcherpb.Done, error) {
	if err != nil {
		return nil, err
	}
	return &launcherpb.Done{}, nil
}
