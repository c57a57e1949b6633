// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/memory"
)

// informed is an informer that runs in a synctest bubble, which fails if a goroutine of the
// informer is left.
type informed struct {
	testing.TB
	*memory.Hypervisor
	*informer.Informer
	// late is the delay of an answer about a domain; set before the first call.
	late func() time.Duration
	stop func() error
}

// belated delays answers about domains, which are as of the time of the call.
type belated struct {
	domain.Hypervisor
	in *informed
}

func (b belated) Get(ctx context.Context, name string) (domain.State, error) {
	st, err := b.Hypervisor.Get(ctx, name)
	if b.in.late != nil {
		time.Sleep(b.in.late())
	}
	return st, err
}

// withInformer runs a test with an informer, on a fake clock.
func withInformer(t *testing.T, test func(*informed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hv := memory.New("node")
		in := &informed{TB: t, Hypervisor: hv}
		in.Informer = &informer.Informer{Hypervisor: belated{hv, in}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- in.Run(ctx) }()
		in.stop = sync.OnceValue(func() error {
			cancel()
			return <-ended
		})
		test(in)
		if err := in.stop(); err != nil {
			t.Errorf("the informer ended with %v", err)
		}
	})
}

func uuidOf(n int) string { return fmt.Sprintf("5f0c6c9a-9d0d-4f5e-8f1e-%012d", n) }

// apply carries out an operation that must succeed.
func (in *informed) apply(verb domain.Verb, name string) {
	in.Helper()
	op := domain.Operation{Verb: verb, Domain: name, Metadata: domain.Metadata{Name: name, UID: "u", Epoch: 7}}
	if verb == domain.Start {
		op.Definition = &libvirtxml.Domain{Type: "qemu", Name: name, UUID: uuidOf(int(name[0]))}
	}
	if err := in.Apply(in.Context(), op); err != nil {
		in.Fatalf("%s %s: %v", verb, name, err)
	}
}

// word returns the cached state of a domain in a few words.
func (in *informed) word(name string) string {
	st, known := in.Informer.Get(name)
	if !known {
		return "none"
	}
	out := string(st.Status)
	if st.Domain == nil {
		out += " unseen"
	}
	if !st.Stale.IsZero() {
		out += " stale"
	}
	return out
}

// knows checks the cached state of the domain once all goroutines are blocked.
func (in *informed) knows(name, want string) {
	in.Helper()
	synctest.Wait()
	if got := in.word(name); got != want {
		in.Errorf("known of %s: %s, want %s", name, got, want)
	}
}

func (in *informed) hang(call, name string) (free func()) {
	return in.Inject(memory.Fault{Call: call, Domain: name, Hang: true})
}

func TestInformer(t *testing.T) {
	for name, test := range map[string]func(*informed){
		"knows what is there when it starts, and what happens then": func(in *informed) {
			in.apply(domain.Start, "a")
			in.knows("a", "Running")
			in.apply(domain.Suspend, "a")
			in.knows("a", "Paused")
			in.apply(domain.Destroy, "a")
			in.knows("a", "Shutoff")
			in.apply(domain.Undefine, "a")
			in.knows("a", "none")
		},
		"sees by hints what a listing does not show": func(in *informed) {
			in.apply(domain.Start, "a")
			in.apply(domain.SetMetadata, "a")
			synctest.Wait()
			if st, _ := in.Informer.Get("a"); st.Metadata.Epoch != 7 {
				in.Errorf("metadata: %+v", st.Metadata)
			}
		},
		"finds by listings what no event reports": func(in *informed) {
			in.apply(domain.Start, "a")
			in.apply(domain.Start, "b")
			synctest.Wait()
			in.LoseEvents(true)
			in.Crash("a")
			in.Vanish("b")
			in.apply(domain.Start, "c")
			in.knows("a", "Running")
			time.Sleep(informer.DefaultResync)
			in.knows("a", "Shutoff")
			in.knows("b", "none")
			in.knows("c", "Running")
		},
		"asks about single domains only with a cause": func(in *informed) {
			for _, name := range []string{"a", "b", "c"} {
				in.apply(domain.Start, name)
			}
			synctest.Wait()
			gets, lists := in.Calls("Get"), in.Calls("List")
			time.Sleep(10 * informer.DefaultResync)
			synctest.Wait()
			if got := in.Calls("Get"); got != gets {
				in.Errorf("%d questions about single domains, want %d", got, gets)
			}
			if got := in.Calls("List"); got != lists+10 {
				in.Errorf("%d listings, want %d", got, lists+10)
			}
		},
		"keeps what it knew of a domain that hangs, and serves the others": func(in *informed) {
			in.apply(domain.Start, "a")
			in.apply(domain.Start, "b")
			synctest.Wait()
			free := in.hang("Get", "a")
			in.apply(domain.Suspend, "a")
			in.knows("a", "Running")
			in.apply(domain.Suspend, "b")
			in.knows("b", "Paused")
			time.Sleep(time.Second)
			in.knows("a", "Running stale")
			time.Sleep(informer.DefaultResync)
			in.knows("a", "Paused stale") // as the listing says
			free()
			time.Sleep(informer.DefaultResync)
			in.knows("a", "Paused")
		},
		"knows of a domain that never answered by listings": func(in *informed) {
			free := in.hang("Get", "a")
			in.apply(domain.Start, "a")
			in.knows("a", "none")
			time.Sleep(informer.DefaultResync)
			in.knows("a", "Running unseen stale")
			in.Vanish("a")
			time.Sleep(informer.DefaultResync)
			in.knows("a", "none")
			free()
			time.Sleep(2 * informer.DefaultResync)
			in.knows("a", "none")
		},
		"says that a domain that changed cannot be asked about": func(in *informed) {
			in.apply(domain.Start, "a")
			in.knows("a", "Running")
			free := in.Inject(memory.Fault{Call: "Get", Domain: "a", Err: domain.ErrDisconnected})
			in.apply(domain.SetMetadata, "a")
			in.knows("a", "Running stale")
			free()
			time.Sleep(informer.DefaultResync)
			in.knows("a", "Running")
		},
		"many that hang hold up nobody": func(in *informed) {
			for n := range 3 * informer.DefaultQuestions {
				name := fmt.Sprintf("%c", 'A'+n)
				in.hang("Get", name)
				in.apply(domain.Start, name)
			}
			// Each group of questions gives its slots back when it turns out to hang.
			time.Sleep(4 * time.Second)
			in.apply(domain.Start, "z")
			in.knows("z", "Running")
		},
		"keeps what it knew while the connection is lost, and misses nothing": func(in *informed) {
			in.apply(domain.Start, "a")
			in.apply(domain.Start, "b")
			synctest.Wait()
			if !in.Connected() || !in.HasSynced() {
				in.Errorf("connection %+v, synced %t", in.Connection(), in.HasSynced())
			}
			at := time.Now()
			before := in.Connection()
			in.Disconnect()
			<-before.Changed
			in.knows("a", "Running")
			time.Sleep(time.Minute)
			if c := in.Connection(); c.Up || !c.Since.Equal(at) || !errors.Is(c.Err, domain.ErrDisconnected) {
				in.Errorf("connection: %+v, want one lost at %v", c, at)
			}
			in.SetState("a", domain.StatusShutoff, domain.ReasonCrashed)
			in.Vanish("b")
			in.knows("a", "Running")
			in.Reconnect()
			in.knows("a", "Shutoff")
			in.knows("b", "none")
			if !in.Connected() {
				in.Error("the connection is not back")
			}
		},
		"asks about everything again after a lost connection": func(in *informed) {
			in.apply(domain.Start, "a")
			synctest.Wait()
			in.LoseEvents(true)
			in.apply(domain.SetMetadata, "a")
			in.LoseEvents(false)
			in.Disconnect()
			in.Reconnect()
			synctest.Wait()
			if st, _ := in.Informer.Get("a"); st.Metadata.Epoch != 7 {
				in.Errorf("metadata: %+v", st.Metadata)
			}
		},
		"goes on while the listing hangs": func(in *informed) {
			in.apply(domain.Start, "a")
			synctest.Wait()
			free := in.hang("List", "")
			time.Sleep(informer.DefaultResync)
			in.apply(domain.Suspend, "a")
			in.knows("a", "Paused")
			time.Sleep(informer.DefaultDeadline + time.Second)
			if c := in.Connection(); c.Up || !errors.Is(c.Err, domain.ErrTimeout) {
				in.Errorf("connection: %+v", c)
			}
			free()
			time.Sleep(informer.DefaultDeadline + time.Second)
			if !in.Connected() {
				in.Errorf("connection: %+v", in.Connection())
			}
		},
		"asks again what happened while an answer was on its way": func(in *informed) {
			in.late = func() time.Duration { return time.Second / 2 }
			in.apply(domain.Start, "a")
			synctest.Wait()
			in.apply(domain.SetMetadata, "a")
			time.Sleep(time.Second + time.Millisecond)
			synctest.Wait()
			if st, _ := in.Informer.Get("a"); st.Metadata.Epoch != 7 {
				in.Errorf("metadata: %+v", st.Metadata)
			}
		},
		"an error about a domain is asked again about": func(in *informed) {
			in.apply(domain.Start, "a")
			synctest.Wait()
			in.Inject(memory.Fault{Call: "Get", Domain: "a", Times: 1, Err: errors.New("not now")})
			in.apply(domain.SetMetadata, "a")
			in.knows("a", "Running stale")
			time.Sleep(informer.DefaultResync)
			in.knows("a", "Running")
		},
	} {
		t.Run(name, func(t *testing.T) { withInformer(t, test) })
	}
}

func TestInformer_NoEvents(t *testing.T) {
	for name, fault := range map[string]memory.Fault{
		"refused for a while": {Call: "Watch", Times: 3, Err: domain.ErrDisconnected},
		"never answered":      {Call: "Watch", Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := &informed{TB: t, Hypervisor: memory.New("node")}
				in.Informer = &informer.Informer{Hypervisor: in.Hypervisor}
				in.Inject(fault)
				in.apply(domain.Start, "a")
				go func() { _ = in.Run(t.Context()) }()
				time.Sleep(time.Second)
				in.knows("a", "Running")
				in.apply(domain.Suspend, "a")
				time.Sleep(informer.DefaultResync)
				in.knows("a", "Paused")
			})
		})
	}
}

func TestInformerRun_Once(t *testing.T) {
	if err := (&informer.Informer{}).Run(t.Context()); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("without a hypervisor: %v, want ErrInvalid", err)
	}
	withInformer(t, func(in *informed) {
		synctest.Wait()
		if err := in.Run(t.Context()); !errors.Is(err, domain.ErrInvalidState) {
			t.Errorf("run twice: %v, want ErrInvalidState", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		hv := memory.New("node")
		ended := make(chan error, 1)
		i := &informer.Informer{Hypervisor: hv}
		go func() { ended <- i.Run(t.Context()) }()
		synctest.Wait()
		_ = hv.Close()
		if err := <-ended; !errors.Is(err, domain.ErrDisconnected) {
			t.Errorf("with a closed driver: %v, want ErrDisconnected", err)
		}
		if i.Connected() {
			t.Error("an informer that has ended says that it is connected")
		}
	})
}
