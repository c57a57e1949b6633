// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

const benchOwners = 10_000

type subject struct {
	owner expectations.Owner
	ref   expectations.Ref
}

func subjects() []subject {
	all := make([]subject, benchOwners)
	for i := range all {
		name := fmt.Sprintf("vm-%05d", i)
		all[i] = subject{
			owner: expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: name}, UID: types.UID("uid-of-" + name)},
			ref:   expectations.Ref{Kind: pods, Namespace: "ns", Name: "virt-launcher-" + name},
		}
	}
	return all
}

func benchTracker(b *testing.B) *expectations.Tracker {
	b.Helper()
	start := time.Unix(0, 0)
	t, err := expectations.New(expectations.Options{Now: func() time.Time { return start }})
	if err != nil {
		b.Fatal(err)
	}
	return t
}

func BenchmarkExpectCycle(b *testing.B) {
	t, all := benchTracker(b), subjects()
	// One write that stays outstanding keeps Check from its shortest way.
	t.ExpectCreate(expectations.Owner{Key: types.NamespacedName{Name: "other"}}, expectations.Ref{Name: "other"})
	obj := object("u1", "5")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s := &all[i%benchOwners]
		t.ExpectCreate(s.owner, s.ref)
		obj.Name = s.ref.Name
		t.Observe(pods, obj, expectations.Added)
		if !t.Check(s.owner).Satisfied() {
			b.Fatal("not satisfied")
		}
	}
}

func BenchmarkExpectCycleParallel(b *testing.B) {
	t, all := benchTracker(b), subjects()
	var worker atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		obj := object("u1", "5")
		for i := int(worker.Add(1)) * 4999; pb.Next(); i++ {
			s := &all[i%benchOwners]
			t.ExpectCreate(s.owner, s.ref)
			obj.Name = s.ref.Name
			t.Observe(pods, obj, expectations.Added)
			t.Check(s.owner)
		}
	})
}

func BenchmarkCheckSatisfied(b *testing.B) {
	t, all := benchTracker(b), subjects()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if !t.Check(all[i%benchOwners].owner).Satisfied() {
			b.Fatal("not satisfied")
		}
	}
}
