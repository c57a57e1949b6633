// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
)

// Cluster is the part of a manager that a Gate needs. manager.Manager and cluster.Cluster implement it.
type Cluster interface {
	// GetClient returns the client for writes.
	GetClient() client.Client
	// GetAPIReader returns a reader of the API server that bypasses the cache.
	GetAPIReader() client.Reader
	// GetCache returns the cache whose events the controller watches.
	GetCache() cache.Cache
}

// Options configure a Gate. The zero value is valid.
type Options struct {
	// Clock returns the current time. Defaults to the real clock.
	Clock clock.PassiveClock
	// TTL is how long a write may stay unseen before Check reads live. Defaults to expectations.DefaultTTL.
	TTL time.Duration
	// Client sends the writes. Defaults to the cluster's.
	Client client.Client
	// APIReader sends the live reads. Defaults to the cluster's.
	APIReader client.Reader
	// Observer records the life of every write, and live reads if it implements LiveReads, as Metrics does. Defaults to
	// none.
	Observer expectations.Observer
	// Hidden reports an object that the cache leaves out by its selectors or namespaces; obj has metadata at least. A
	// write to such an object is settled by the server's answer, as no event will come, unless the cache shows the
	// object nevertheless. It must be safe for concurrent use. Defaults to none: such a write then waits for the TTL
	// and is settled by a live read.
	Hidden func(kind schema.GroupKind, obj metav1.Object) bool
}

// Gate keeps the owners of one controller from acting on a cache that does not show their own writes yet. It is safe for
// concurrent use. Create it with NewGate.
type Gate struct {
	tracker *expectations.Tracker
	client  client.Client
	cache   client.Reader
	live    client.Reader
	hidden  func(schema.GroupKind, metav1.Object) bool
	reads   LiveReads // may be nil
	kinds   *kinds
	wakes   *wakes
	doubts  doubts
	now     func() time.Time
	ttl     time.Duration
}

// ErrUnresolved is returned when a live read could not settle an expectation because the versions cannot be compared.
var ErrUnresolved = errors.New("live read does not settle the write")

// NewGate returns a Gate for one controller of the cluster.
func NewGate(c Cluster, o Options) (*Gate, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Client == nil {
		o.Client = c.GetClient()
	}
	if o.APIReader == nil {
		o.APIReader = c.GetAPIReader()
	}
	if o.TTL == 0 {
		o.TTL = expectations.DefaultTTL
	}
	if o.Hidden == nil {
		o.Hidden = func(schema.GroupKind, metav1.Object) bool { return false }
	}
	g := &Gate{
		client: o.Client, cache: c.GetCache(), live: o.APIReader, hidden: o.Hidden,
		kinds: &kinds{scheme: o.Client.Scheme()}, wakes: &wakes{}, now: o.Clock.Now, ttl: o.TTL,
	}
	g.reads, _ = o.Observer.(LiveReads)
	var err error
	g.tracker, err = expectations.New(expectations.Options{Now: o.Clock.Now, TTL: o.TTL, Wake: g.wakes.wake, Observer: o.Observer})
	if err != nil {
		return nil, fmt.Errorf("expectationsctrl: %w", err)
	}
	return g, nil
}

// Attach passes every event that the controller under construction watches to the gate, and lets the gate enqueue owners
// whose writes have become visible. Event filters of the builder run in the order in which they were added:
// attach before adding one that drops events, or the gate will not see them and fall back to live reads.
func (g *Gate) Attach(b *builder.Builder) *builder.Builder {
	return b.WithEventFilter(g.Observing()).WatchesRawSource(g.Source())
}

// OwnerOf returns the object as an owner.
func OwnerOf(obj client.Object) expectations.Owner {
	return expectations.Owner{Key: client.ObjectKeyFromObject(obj), UID: obj.GetUID()}
}

// Check reports whether the cache shows every write of the owner. If one has been unseen for too long, or is a creation
// whose outcome is unknown, it reads the object live, metadata only, and returns the verdict that then holds; see Late on
// creations that were not found. Objects that could not be read or compared are reported in one error; their writes stay
// outstanding. A verdict that holds the owner back, and every live read, is an event on the context's OpenTelemetry span.
func (g *Gate) Check(ctx context.Context, o expectations.Owner) (expectations.Verdict, error) {
	v := g.tracker.Check(o)
	g.doubts.keep(o, v.Pending, g.now(), g.ttl)
	var errs []error
	asked := false
	for _, p := range v.Pending {
		var err error
		switch {
		case g.doubts.has(o, p.Token()):
			err = g.settleDoubt(ctx, o, p)
		case p.Problem != expectations.NoProblem:
			_, err = g.resolve(ctx, p)
		default:
			continue
		}
		asked = true
		if err != nil {
			errs = append(errs, fmt.Errorf("resolve %s: %w", p, err))
		}
	}
	if asked {
		v = g.tracker.Check(o)
	}
	traceVerdict(ctx, v)
	return v, errors.Join(errs...)
}

// resolve settles a write by a live read. The cache may show the server's state by now, so it is read too.
func (g *Gate) resolve(ctx context.Context, p expectations.Pending) (expectations.Finding, error) {
	live, err := g.readLive(ctx, p.Ref)
	if err != nil {
		return 0, err
	}
	found := g.tracker.Answer(p, live)
	if found.Settled() {
		return found, nil
	}
	cached := g.readCached(ctx, p.Ref)
	if cached != nil && g.tracker.Seen(p.Token(), cached) {
		return found, nil
	}
	switch {
	case cached == nil && g.hidden(p.Kind, live), found == expectations.Unordered && cacheIsCurrent(cached, live):
		g.tracker.Cancel(p.Token())
	case found == expectations.Unordered:
		return found, ErrUnresolved
	}
	return found, nil
}

// cacheIsCurrent reports whether the cache shows the current state of the server: versions without an order can be equal.
func cacheIsCurrent(cached client.Object, live metav1.Object) bool {
	return cached != nil && cached.GetUID() == live.GetUID() && cached.GetResourceVersion() == live.GetResourceVersion()
}

// readLive returns the object of that name from the API server, or nil if it does not exist.
func (g *Gate) readLive(ctx context.Context, ref expectations.Ref) (metav1.Object, error) {
	mapping, err := g.client.RESTMapper().RESTMapping(ref.Kind)
	if err != nil {
		return nil, fmt.Errorf("find version of %s: %w", ref.Kind, err)
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(mapping.GroupVersionKind)
	err = g.live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, live)
	found, err := err == nil, client.IgnoreNotFound(err)
	traceLiveRead(ctx, ref, found, err)
	if g.reads != nil {
		g.reads.LiveRead(ref, found, err)
	}
	if !found {
		return nil, err
	}
	return live, nil
}

// readCached returns the object of that name from the cache, or nil if that fails. It reads the kind in the
// representation whose events were observed, so that it never makes the cache watch another. Before the first
// event of a kind it finds no object.
func (g *Gate) readCached(ctx context.Context, ref expectations.Ref) client.Object {
	obj := g.kinds.empty(ref.Kind)
	if obj == nil || g.cache.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, obj) != nil {
		return nil
	}
	return obj
}

// Forget drops the writes of every owner that had this key. Call it when the owner is not found.
func (g *Gate) Forget(key types.NamespacedName) {
	g.tracker.ForgetKey(key)
	g.doubts.forget(key)
}

// Wake enqueues an owner on behalf of the caller.
func (g *Gate) Wake(key types.NamespacedName) { g.wakes.wake(expectations.Owner{Key: key}) }

// Tracker returns the tracker behind the gate, for observing events that do not come from a watch of the controller.
func (g *Gate) Tracker() *expectations.Tracker { return g.tracker }
