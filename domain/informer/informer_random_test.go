// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/memory"
)

// storm applies random operations and faults to a hypervisor.
type storm struct {
	*informed
	rnd   *rand.Rand
	frees []func()
}

var stormVerbs = []domain.Verb{
	domain.Start, domain.Start, domain.Suspend, domain.Resume, domain.Destroy, domain.Undefine, domain.SetMetadata, domain.Shutdown,
}

// step applies one operation or fault.
func (s *storm) step() {
	n := s.rnd.IntN(12)
	name := fmt.Sprintf("guest-%d", n)
	switch k := s.rnd.IntN(40); {
	case k < 20:
		op := domain.Operation{Verb: stormVerbs[s.rnd.IntN(len(stormVerbs))], Domain: name}
		op.Metadata = domain.Metadata{Name: name, UID: "u", Epoch: s.rnd.Uint64N(100)}
		op.Definition = &libvirtxml.Domain{Type: "qemu", Name: name, UUID: uuidOf(n)}
		// It may fail: what the hypervisor says in the end counts.
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		_ = s.Apply(ctx, op)
		cancel()
	case k < 24:
		s.Crash(name)
	case k < 25:
		s.Vanish(name)
	case k < 28:
		call := []string{"Get", "Get", "List"}[s.rnd.IntN(3)]
		s.frees = append(s.frees, s.hang(call, map[string]string{"Get": name}[call]))
	case k < 31:
		s.Inject(memory.Fault{Call: "Get", Times: 3, Latency: time.Duration(s.rnd.IntN(40)) * time.Second})
	case k < 33:
		s.Inject(memory.Fault{Call: "List", Times: 1, Latency: time.Duration(s.rnd.IntN(40)) * time.Second})
	case k < 34:
		s.LoseEvents(s.rnd.IntN(2) == 0)
	case k < 35:
		s.Disconnect()
	case k < 37:
		s.Reconnect()
	default:
		s.heal()
		time.Sleep(time.Duration(s.rnd.IntN(20_000)) * time.Millisecond)
	}
	if s.rnd.IntN(3) == 0 {
		time.Sleep(time.Duration(s.rnd.IntN(500)) * time.Millisecond)
	}
}

// heal releases the calls that hang.
func (s *storm) heal() {
	for _, free := range s.frees {
		free()
	}
	s.frees = nil
}

// truth returns every domain as the hypervisor reports it now.
func truth(t testing.TB, hv domain.Hypervisor) map[string]domain.State {
	t.Helper()
	all, err := hv.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]domain.State{}
	for i := range all {
		if out[all[i].Name], err = hv.Get(t.Context(), all[i].Name); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// A storm of operations and faults: when it is over the cache has the final states,
// and watchers have received all changes.
func TestInformer_FinalStates(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			withInformer(t, func(in *informed) {
				s := &storm{informed: in, rnd: rand.New(rand.NewPCG(seed, 1))}
				if seed%2 == 1 {
					in.late = func() time.Duration { return time.Duration(seed*37%1500) * time.Millisecond }
				}
				received := in.followChanges()
				for range 400 {
					s.step()
				}
				s.heal()
				in.Reconnect()
				in.LoseEvents(false)
				// Only a Resync finds metadata that was changed while events were lost.
				in.Disconnect()
				in.Reconnect()
				// Latencies may be left over, and listings and answers owed.
				time.Sleep(5 * time.Minute)
				synctest.Wait()

				want := truth(in, in.Hypervisor)
				got := map[string]domain.State{}
				for _, st := range in.Informer.List() {
					got[st.Name] = st
				}
				if diff := cmp.Diff(want, got); diff != "" {
					in.Errorf("what is known (-truth +known):\n%s", diff)
				}
				if err := in.stop(); err != nil {
					in.Error(err)
				}
				if diff := cmp.Diff(want, received()); diff != "" {
					in.Errorf("what was received (-truth +received):\n%s", diff)
				}
				if !in.HasSynced() {
					in.Error("it has not synced")
				}
			})
		})
	}
}

// followChanges follows the changes, each of which has to begin where the last one about
// the domain ended. The result waits for the end and returns what they come to.
func (in *informed) followChanges() func() map[string]domain.State {
	seen := map[string]domain.State{}
	ch := in.Informer.Watch(in.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for c := range ch {
			was, known := seen[c.Name]
			if known != (c.Old != nil) || known && !reflect.DeepEqual(was, *c.Old) {
				in.Errorf("%s does not begin where the last change ended, at %v %+v", changeText(c), known, was)
			}
			delete(seen, c.Name)
			if c.New != nil {
				seen[c.Name] = *c.New
			}
		}
	}()
	return func() map[string]domain.State {
		<-ended
		return seen
	}
}

// BenchmarkInformerTick is what a listing of 500 domains costs of which none has
// changed: one bulk question.
func BenchmarkInformerTick(b *testing.B) {
	hv := memory.New("node")
	for n := range 500 {
		name := fmt.Sprintf("guest-%d", n)
		op := domain.Operation{Verb: domain.Start, Domain: name, Definition: &libvirtxml.Domain{Type: "qemu", Name: name, UUID: uuidOf(n)}}
		if err := hv.Apply(b.Context(), op); err != nil {
			b.Fatal(err)
		}
	}
	in := &informer.Informer{Hypervisor: hv, Resync: time.Nanosecond}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	for !in.HasSynced() {
		time.Sleep(time.Millisecond)
	}
	gets, lists := hv.Calls("Get"), hv.Calls("List")
	b.ReportAllocs()
	b.ResetTimer()
	for hv.Calls("List") < lists+b.N {
		time.Sleep(50 * time.Microsecond)
	}
	b.StopTimer()
	if more := hv.Calls("Get") - gets; more > 0 {
		b.Errorf("%d questions about single domains", more)
	}
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}
