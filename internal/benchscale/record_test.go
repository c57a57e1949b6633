// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestRecorder_Durations(t *testing.T) {
	r := newRecorder()
	for i := range 4 {
		name := fmt.Sprint(i)
		r.note(guestCreated, name, noon.Add(time.Duration(i)*time.Second))
		if i != 3 {
			r.note(podCreated, name, noon.Add(time.Duration(3*i+1)*time.Second))
		}
	}
	r.note(podCreated, "0", noon.Add(time.Hour)) // once is enough
	r.note(podCreated, "of nobody", noon)        // never created, as far as is known
	r.note(guestScheduled, "0", noon.Add(-1))    // a clock that went back
	took := r.between(guestCreated, podCreated)
	slices.Sort(took)
	if want := []time.Duration{time.Second, 3 * time.Second, 5 * time.Second}; !slices.Equal(took, want) {
		t.Errorf("took %v, want %v", took, want)
	}
	if took := r.between(guestCreated, guestScheduled); !slices.Equal(took, []time.Duration{0}) {
		t.Errorf("took %v, want nothing less than no time", took)
	}
	if first, last := r.first(guestCreated), r.nth(guestCreated, 4); !first.Equal(noon) || !last.Equal(noon.Add(3*time.Second)) {
		t.Errorf("first %v, last %v", first, last)
	}
	for name, n := range map[string]int{"none": 0, "more than there are": 5} {
		if at := r.nth(guestCreated, n); !at.IsZero() {
			t.Errorf("%s: %v", name, at)
		}
	}
	r.forget(guestCreated, podCreated)
	if n := r.count(guestCreated) + r.count(podCreated); n != 0 || r.count(guestScheduled) != 1 {
		t.Errorf("%d are left after forgetting, and %d Scheduled", n, r.count(guestScheduled))
	}
}

func TestRecorder_WakesWaiters(t *testing.T) {
	broken := errors.New("the watch has ended")
	for name, test := range map[string]struct {
		wanted, come int
		fail         error
		want         error
	}{
		"enough":                 {wanted: 2, come: 2},
		"more than enough":       {wanted: 1, come: 3},
		"nothing is wanted":      {},
		"too few, and no more":   {wanted: 2, come: 1, want: context.DeadlineExceeded},
		"the watch breaks":       {wanted: 2, come: 1, fail: broken, want: broken},
		"it broke though enough": {wanted: 1, come: 1, fail: broken, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r := newRecorder()
				r.note(podCreated, "of another stage", noon)
				ended := make(chan error, 1)
				if test.fail != nil {
					r.fail(test.fail)
					r.fail(errors.New("a second reason"))
				}
				go func() { ended <- r.await(ctx, guestScheduled, test.wanted) }()
				synctest.Wait()
				for i := range test.come {
					r.note(guestScheduled, fmt.Sprint(i), noon)
				}
				if err := <-ended; !errors.Is(err, test.want) || (test.want == nil) != (err == nil) {
					t.Errorf("got %v, want %v", err, test.want)
				}
			})
		})
	}
}
