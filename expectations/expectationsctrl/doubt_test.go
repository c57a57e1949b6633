// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/expectations"
)

// flaky is a server whose creations and reads can fail, before or after they are carried out.
type flaky struct {
	create, read error
	lands        bool
}

func (f *flaky) faults() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if f.create == nil || f.lands {
				if err := c.Create(ctx, obj, opts...); err != nil {
					return err
				}
			}
			return f.create
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if f.read != nil {
				return f.read
			}
			return c.Get(ctx, key, obj, opts...)
		},
	}
}

var errInternal = apierrors.NewInternalError(errors.New("failed calling webhook"))

func doubtful(t *testing.T, f *flaky) *scene {
	t.Helper()
	s := newScene(t, setup{faults: f.faults()})
	if err := s.writes.Create(t.Context(), pod("new")); !errors.Is(err, f.create) {
		t.Fatalf("got %v, want the server's error", err)
	}
	return s
}

func (s *scene) check(t *testing.T, want expectations.State, late int) expectations.Verdict {
	t.Helper()
	v, err := s.gate.Check(t.Context(), owner)
	if err != nil || v.State != want {
		t.Fatalf("got %s %v, %v; want %s", v.State, v.Pending, err, want)
	}
	if got := s.gate.Late(owner); len(got) != late {
		t.Fatalf("late are %v, want %d", got, late)
	}
	return v
}

func TestCheck_UnknownCreationReadAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		lands bool
		want  expectations.State
		late  int
	}{
		"it was not carried out": {false, expectations.Satisfied, 1},
		"it was":                 {true, expectations.Waiting, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := doubtful(t, &flaky{create: errInternal, lands: test.lands})
			s.check(t, test.want, test.late)
			if !test.lands {
				return
			}
			s.tracker.Observe(podKind, s.live(t, "new"), expectations.Added)
			s.check(t, expectations.Satisfied, 0)
		})
	}
}

func TestCheck_UnknownCreationWaitsForServer(t *testing.T) {
	f := &flaky{create: context.DeadlineExceeded}
	s := doubtful(t, f)
	f.read = errors.New("connection refused")
	if v, err := s.gate.Check(t.Context(), owner); !errors.Is(err, f.read) || v.State != expectations.Waiting {
		t.Fatalf("got %s, %v; want to wait, and the error of the read", v.State, err)
	}
	f.read = nil
	s.check(t, expectations.Satisfied, 1)
}

// A request in progress is not in doubt: the pass that sent it gets its outcome.
func TestCheck_CreationInProgressNotRead(t *testing.T) {
	s := newScene(t, setup{})
	s.tracker.ExpectCreate(owner, expectations.Ref{Kind: podKind, Namespace: "ns", Name: "new"})
	s.check(t, expectations.Waiting, 0)
}

// Of a repeated creation and the one that arrives late, one is refused.
func TestLate_CreationIsRepeatedUnderItsName(t *testing.T) {
	f := &flaky{create: errInternal}
	s := doubtful(t, f)
	s.check(t, expectations.Satisfied, 1)
	if err := s.server.Create(t.Context(), pod("new")); !errors.Is(err, f.create) {
		t.Fatal(err)
	}
	f.create = nil
	if err := s.server.Create(t.Context(), pod("new")); err != nil { // the first one, late
		t.Fatal(err)
	}
	if err := s.writes.Create(t.Context(), pod("new")); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("got %v, want that it exists", err)
	}
	s.tracker.Observe(podKind, s.live(t, "new"), expectations.Added)
	s.check(t, expectations.Satisfied, 1)
}

func TestLate_EndsWithTheTTL(t *testing.T) {
	s := doubtful(t, &flaky{create: errInternal})
	sent := s.clock.Now()
	s.clock.SetTime(sent.Add(time.Second))
	s.check(t, expectations.Satisfied, 1)
	if err := s.writes.Create(t.Context(), pod("new")); err == nil {
		t.Fatal("the server does not fail")
	}
	s.check(t, expectations.Satisfied, 1) // the same object, for longer
	if got := s.gate.Late(owner)[0].Until; !got.Equal(sent.Add(time.Minute + time.Second)) {
		t.Errorf("it may arrive until %s, want one TTL after the last attempt", got)
	}
	if other := (expectations.Owner{Key: owner.Key, UID: types.UID("o2")}); len(s.gate.Late(other)) != 0 {
		t.Error("another owner of the name has them too")
	}
	s.clock.SetTime(sent.Add(time.Minute + time.Second))
	s.check(t, expectations.Satisfied, 0)
}

func TestLate_IsForgottenWithTheOwner(t *testing.T) {
	s := doubtful(t, &flaky{create: errInternal})
	s.check(t, expectations.Satisfied, 1)
	s.gate.Forget(owner.Key)
	if got := s.gate.Late(owner); len(got) != 0 {
		t.Errorf("late are %v, want none", got)
	}
}
