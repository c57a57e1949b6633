// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// Default timeouts of calls whose context has no deadline, by KubeVirt's classes.
const (
	// shortTimeout is for queries.
	shortTimeout = 5 * time.Second
	// longTimeout is for changes.
	longTimeout = 20 * time.Second
	// extendedTimeout is for calls that wait for the guest itself, such as to freeze its file
	// systems.
	extendedTimeout = 60 * time.Second
)

const (
	// An idle connection is probed after probeAfter, and broken if the probe is not answered within
	// probeTimeout.
	probeAfter, probeTimeout = 10 * time.Second, 5 * time.Second
	// Pauses between attempts to reconnect double from the first to the second.
	firstPause, longestPause = 50 * time.Millisecond, 2 * time.Second
	// Events are received at any rate up to eventBurst, then one each eventEvery.
	eventBurst, eventEvery = 100, 50 * time.Millisecond
)

// Options configure a [Client]. The zero value is ready to use.
type Options struct {
	// Root is the lowest trusted folder above the socket: no symbolic link is followed below it.
	// Default: the socket's own folder.
	Root string
	// Clock paces reconnects. Default: the real one.
	Clock clock.Clock
	// Log receives lost and restored connections. Default: nothing.
	Log logr.Logger
}

// Client is the hypervisor of a launcher, with all abilities. It reconnects by itself and is safe
// for concurrent use.
type Client struct {
	*channel
	migrator
	guestAgent
	snapshotter
}

// channel is the agent's end of the command channel, which the parts of a client share.
type channel struct {
	root, path string
	opts       Options
	guest      Guest
	dir        *os.File // the folder of the socket, until the client is closed
	hints      domain.Hints

	mu      sync.Mutex
	current *session // nil while disconnected
	why     error    // why it is disconnected
	closed  bool

	done    chan struct{}
	running sync.WaitGroup
}

var (
	_ domain.Hypervisor       = (*Client)(nil)
	_ domain.Migrator         = (*Client)(nil)
	_ domain.PostCopier       = (*Client)(nil)
	_ domain.MigrationTuner   = (*Client)(nil)
	_ domain.SocketMigrator   = (*Client)(nil)
	_ domain.GuestAgent       = (*Client)(nil)
	_ domain.StatsReader      = (*Client)(nil)
	_ domain.Snapshotter      = (*Client)(nil)
	_ domain.ConsoleOpener    = (*Client)(nil)
	_ domain.MemoryHotplugger = (*Client)(nil)
)

// Dial connects to the launcher behind a socket. The context bounds the first connection only. The
// error is [domain.ErrNotReady] if the socket does not exist, or has no listener, and
// [domain.ErrUnsupported] if the launcher has no protocol version in common with this package.
func Dial(ctx context.Context, socket string, o Options) (*Client, error) {
	c := &channel{root: filepath.Dir(socket), path: filepath.Base(socket), opts: o, done: make(chan struct{})}
	if o.Root != "" {
		below, err := filepath.Rel(o.Root, socket)
		if err != nil {
			return nil, fmt.Errorf("launcher: dial %s: %w", socket, err)
		}
		c.root, c.path = o.Root, below
	}
	if c.opts.Clock == nil {
		c.opts.Clock = clock.RealClock{}
	}
	if c.opts.Log.GetSink() == nil {
		c.opts.Log = logr.Discard()
	}
	s, err := c.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("launcher: dial %s: %w", socket, err)
	}
	c.guest, c.dir, c.current = s.guest, s.dir, s
	c.running.Go(func() { c.keep(context.WithoutCancel(ctx), s) })
	return &Client{channel: c, migrator: migrator{c}, guestAgent: guestAgent{c}, snapshotter: snapshotter{c}}, nil
}

// Guest returns the VMI of the launcher, as the launcher reports it.
func (c *Client) Guest() Guest { return c.guest }

// Close ends all watches and the connection. The guest keeps running.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	close(c.done)
	c.running.Wait()
	c.hints.Close()
	return c.dir.Close()
}

// session is one connection.
type session struct {
	conn    *grpc.ClientConn
	api     launcherpb.LauncherClient
	dir     *os.File // the folder of the socket
	pid     int      // the listener, 0 if it is invisible from this PID namespace
	guest   Guest
	version string
	events  grpc.ServerStreamingClient[launcherpb.Event]
	cancel  context.CancelFunc // ends the event stream
}

func (s *session) close() {
	s.cancel()
	_ = s.conn.Close()
}

// open connects, negotiates a version and waits for the first event, within shortTimeout.
func (c *channel) open(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, shortTimeout)
	defer cancel()
	raw, dir, err := connect(ctx, c.root, c.path)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///launcher", dialOptions(raw)...)
	if err != nil {
		return nil, errors.Join(err, raw.Close(), dir.Close())
	}
	long, end := context.WithCancel(context.WithoutCancel(ctx))
	s := &session{conn: conn, api: launcherpb.NewLauncherClient(conn), dir: dir, pid: launcherPeerPID(raw), cancel: end}
	stop := context.AfterFunc(ctx, end)
	if err = s.greet(ctx, long); err == nil && !stop() {
		err = contextError(ctx, "watch", "")
	}
	if err != nil {
		s.close()
		_ = raw.Close() // if it was not taken
		return nil, errors.Join(err, dir.Close())
	}
	return s, nil
}

// greet negotiates a version and begins to watch, in long.
func (s *session) greet(ctx, long context.Context) error {
	info, err := s.api.Info(ctx, &launcherpb.InfoRequest{Versions: versions})
	if err != nil {
		return fromStatus(ctx, "info", "", err)
	}
	best, err := agree(info.Versions, versions)
	if err != nil {
		return err
	}
	s.version = strconv.FormatUint(uint64(best), 10)
	s.guest = Guest{Namespace: info.VmiNamespace, Name: info.VmiName, UID: types.UID(info.VmiUid)}
	if s.events, err = s.api.Watch(s.speak(long), &launcherpb.WatchRequest{}); err == nil {
		_, err = s.events.Recv()
	}
	return fromStatus(ctx, "watch", "", err)
}

// speak adds the version to the header of a call.
func (s *session) speak(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, versionKey, s.version)
}

// dialOptions make gRPC use an existing connection; there is no second one for it.
func dialOptions(raw net.Conn) []grpc.DialOption {
	var taken atomic.Bool
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the socket's file mode protects it
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if taken.Swap(true) {
				return nil, net.ErrClosed
			}
			return raw, nil
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: probeAfter, Timeout: probeTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxMessage), grpc.ForceCodecV2(codec{})),
	}
}

// keep passes on the events of a session; when the session is lost it notifies the watchers and
// opens the next, until the client is closed.
func (c *channel) keep(ctx context.Context, s *session) {
	for {
		err := c.follow(s)
		c.drop(err)
		s.close()
		select {
		case <-c.done:
			return
		default:
		}
		c.opts.Log.Info("Lost the connection to the launcher", "socket", c.path, "cause", err.Error())
		c.hints.Tell(domain.Event{Kind: domain.Lost, Err: c.disconnected("watch", "")})
		if s = c.reopen(ctx); s == nil {
			return
		}
		c.mu.Lock()
		c.current = s
		c.mu.Unlock()
		c.opts.Log.Info("Restored the connection to the launcher", "socket", c.path)
		c.hints.Tell(domain.Event{Kind: domain.Resync})
	}
}

// follow passes events on until there are no more.
func (c *channel) follow(s *session) error {
	ended := make(chan struct{})
	defer close(ended)
	c.running.Go(func() {
		select {
		case <-c.done:
			s.cancel()
		case <-ended:
		}
	})
	pace := rate.NewLimiter(rate.Every(eventEvery), eventBurst)
	for {
		e, err := s.events.Recv()
		if err != nil {
			return err
		}
		c.hints.Tell(eventFromWire(e))
		c.rest(pace)
	}
}

// rest keeps a launcher from causing passes all the time: events beyond the rate wait unread, and
// are merged on its side.
func (c *channel) rest(pace *rate.Limiter) {
	now := c.opts.Clock.Now()
	wait := pace.ReserveN(now, 1).DelayFrom(now)
	if wait <= 0 {
		return
	}
	t := c.opts.Clock.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C():
	case <-c.done:
	}
}

// drop makes calls fail from now on.
func (c *channel) drop(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.why = nil, why
}

// reopen reconnects until it succeeds; nil if the client was closed.
func (c *channel) reopen(ctx context.Context) *session {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.running.Go(func() {
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	})
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		s, err := c.open(ctx)
		if err == nil && s.guest != c.guest {
			s.close()
			_ = s.dir.Close()
			err = fmt.Errorf("the launcher belongs to %s/%s (%s) now", s.guest.Namespace, s.guest.Name, s.guest.UID)
		}
		if err == nil {
			_ = s.dir.Close() // the client keeps the first one
			return s
		}
		c.drop(err)
		t := c.opts.Clock.NewTimer(pause)
		select {
		case <-t.C():
		case <-c.done:
			t.Stop()
			return nil
		}
	}
}

// disconnected is the error of a call without a connection.
func (c *channel) disconnected(op, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	message := "the connection to the launcher is closed"
	if c.why != nil {
		message = "no connection to the launcher: " + c.why.Error()
	}
	return &Error{Op: op, Domain: name, Message: message, means: []error{domain.ErrDisconnected}}
}

// pid returns the process that serves the domain, zero if it is invisible from this pid namespace.
// It is the launcher's for as long as there is a connection.
func (c *Client) pid() (int, error) {
	c.mu.Lock()
	s := c.current
	c.mu.Unlock()
	if s == nil {
		return 0, c.disconnected("pid", "")
	}
	return s.pid, nil
}

// absent reports whether it is certain that no process serves the socket any more.
func (c *Client) absent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current == nil && errors.Is(c.why, domain.ErrNotReady)
}

// session returns the connection for a call.
func (c *channel) session(ctx context.Context, op, name string) (*session, error) {
	if err := contextError(ctx, op, name); err != nil {
		return nil, err
	}
	c.mu.Lock()
	s, closed := c.current, c.closed
	c.mu.Unlock()
	if s == nil || closed {
		return nil, c.disconnected(op, name)
	}
	return s, nil
}
