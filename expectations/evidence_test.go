// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/virtloom/virtloom/expectations"
)

func TestEvidence(t *testing.T) {
	const (
		satisfied = expectations.Satisfied
		waiting   = expectations.Waiting
		expired   = expectations.Expired
	)
	create := func(b *bench) expectations.Token { return b.ExpectCreate(owner, ref) }
	update := func(base, to string) func(*bench) expectations.Token {
		return func(b *bench) expectations.Token { return b.ExpectUpdate(owner, ref, base, to) }
	}
	remove := func(seen string) func(*bench) expectations.Token {
		return func(b *bench) expectations.Token { return b.ExpectDelete(owner, ref, "u1", seen) }
	}
	see := func(kind expectations.EventKind, o *metav1.PartialObjectMetadata) func(*bench, expectations.Token) {
		return func(b *bench, _ expectations.Token) { b.Observe(pods, o, kind) }
	}
	confirm := func(o *metav1.PartialObjectMetadata) func(*bench, expectations.Token) {
		return func(b *bench, tok expectations.Token) { b.Confirm(tok, o) }
	}
	later := func(d time.Duration) func(*bench, expectations.Token) {
		return func(b *bench, _ expectations.Token) { b.now = b.now.Add(d) }
	}
	bookmark := func(gk schema.GroupKind, ns, rv string) func(*bench, expectations.Token) {
		return func(b *bench, _ expectations.Token) { b.ObserveBookmark(gk, ns, rv) }
	}
	cancel := func(b *bench, tok expectations.Token) { b.Cancel(tok) }
	exists := func(b *bench, tok expectations.Token) { b.Exists(tok) }
	cached := func(o *metav1.PartialObjectMetadata) func(*bench, expectations.Token) {
		return func(b *bench, tok expectations.Token) { b.Seen(tok, o) }
	}
	missed := func(b *bench, tok expectations.Token) { b.Seen(tok, nil) }
	type steps []func(*bench, expectations.Token)

	for name, tc := range map[string]struct {
		expect func(*bench) expectations.Token
		steps  steps
		want   expectations.State
	}{
		"creation unseen waits": {create, nil, waiting},
		"creation seen by name": {create, steps{see(expectations.Added, object("u1", "5"))}, satisfied},
		"creation seen by another object of the name waits once confirmed": {
			create, steps{confirm(object("u2", "9")), see(expectations.Updated, object("u1", "8"))}, waiting},
		"creation seen by UID once confirmed": {
			create, steps{confirm(object("u2", "9")), see(expectations.Added, object("u2", "9"))}, satisfied},
		"creation seen before the answer": {
			create, steps{see(expectations.Added, object("u2", "9")), confirm(object("u2", "9"))}, satisfied},
		"evidence about a predecessor is taken back by the answer": {
			create, steps{see(expectations.Updated, object("u1", "8")), confirm(object("u2", "9"))}, waiting},
		"evidence taken back is given again by the right object": {
			create, steps{see(expectations.Updated, object("u1", "8")), confirm(object("u2", "9")), see(expectations.Added, object("u2", "9"))}, satisfied},
		"created object replaced before it was seen": {
			create, steps{confirm(object("u2", "9")), see(expectations.Added, object("u3", "12"))}, satisfied},
		"removal of a predecessor is not a creation": {create, steps{see(expectations.Deleted, object("u1", "8"))}, waiting},
		"removal of the created object before the answer": {
			create, steps{see(expectations.Deleted, object("u2", "10")), confirm(object("u2", "9"))}, satisfied},
		"tombstone never settles a creation": {create, steps{see(expectations.DeletedUnknown, object("u1", "5"))}, expired},
		"creation refused":                   {create, steps{cancel}, satisfied},
		"creation overdue needs a live read": {create, steps{later(time.Minute)}, expired},
		"creation confirmed and bookmarked":  {create, steps{confirm(object("u2", "9")), bookmark(pods, "", "9")}, satisfied},
		"creation not confirmed, bookmarked": {create, steps{bookmark(pods, "", "9")}, waiting},
		"bookmark of another kind":           {create, steps{confirm(object("u2", "9")), bookmark(schema.GroupKind{Kind: "Node"}, "", "99")}, waiting},
		"bookmark of another namespace":      {create, steps{confirm(object("u2", "9")), bookmark(pods, "other", "99")}, waiting},
		"older bookmark":                     {create, steps{confirm(object("u2", "9")), bookmark(pods, "ns", "8")}, waiting},

		"bookmark that came before the answer": {
			create, steps{bookmark(pods, "ns", "12"), confirm(object("u2", "9"))}, satisfied},
		"older bookmark that came before the answer": {
			create, steps{bookmark(pods, "ns", "8"), confirm(object("u2", "9"))}, waiting},
		"another object whose version has no order": {
			create, steps{confirm(object("u2", "9")), see(expectations.Updated, object("u1", "x"))}, expired},
		"created object seen removed": {
			create, steps{confirm(object("u2", "9")), see(expectations.Deleted, object("u2", "9"))}, satisfied},
		"predecessor seen removed": {
			create, steps{confirm(object("u2", "9")), see(expectations.Deleted, object("u1", "8"))}, waiting},
		"answer that comes after the write was cancelled": {
			create, steps{see(expectations.Deleted, object("u1", "8")), cancel, confirm(object("u2", "9"))}, satisfied},

		"taken name, unseen":                         {create, steps{exists}, waiting},
		"taken name, whose object is seen":           {create, steps{exists, see(expectations.Added, object("u1", "5"))}, satisfied},
		"taken name, whose object was seen":          {create, steps{see(expectations.Added, object("u1", "5")), exists}, satisfied},
		"taken name, whose object is in the cache":   {create, steps{exists, cached(object("u1", "5"))}, satisfied},
		"taken name, not in the cache":               {create, steps{exists, missed}, waiting},
		"taken name, whose object goes":              {create, steps{exists, see(expectations.Deleted, object("u1", "5"))}, satisfied},
		"taken name, whose object went":              {create, steps{see(expectations.Deleted, object("u1", "5")), exists}, satisfied},
		"taken name, whose object is lost by relist": {create, steps{exists, see(expectations.DeletedUnknown, object("u1", "5"))}, expired},
		"creation found in the cache":                {create, steps{confirm(object("u2", "9")), cached(object("u2", "9"))}, satisfied},
		"predecessor found in the cache":             {create, steps{confirm(object("u2", "9")), cached(object("u1", "8"))}, waiting},
		"predecessor found in the cache before the answer": {
			create, steps{cached(object("u1", "8")), confirm(object("u2", "9"))}, waiting},

		"update unseen waits":     {update("", "10"), nil, waiting},
		"update seen exactly":     {update("", "10"), steps{see(expectations.Updated, object("u1", "10"))}, satisfied},
		"update seen newer":       {update("", "9"), steps{see(expectations.Updated, object("u1", "10"))}, satisfied},
		"update seen older waits": {update("", "10"), steps{see(expectations.Updated, object("u1", "9"))}, waiting},
		"versions beyond 64 bits are ordered": {
			update("", "340282366920938463463374607431768211455"), steps{see(expectations.Updated, object("u1", "340282366920938463463374607431768211456"))}, satisfied},
		"versions beyond 64 bits, older": {
			update("", "340282366920938463463374607431768211455"), steps{see(expectations.Updated, object("u1", "340282366920938463463374607431768211454"))}, waiting},
		"incomparable version is reported":       {update("", "10"), steps{see(expectations.Updated, object("u1", "x7"))}, expired},
		"zero version is no evidence":            {update("", "10"), steps{see(expectations.Updated, object("u1", "0"))}, expired},
		"identical opaque version is the same":   {update("", "x7"), steps{see(expectations.Updated, object("u1", "x7"))}, satisfied},
		"update whose answer is unknown waits":   {update("5", ""), steps{see(expectations.Updated, object("u1", "99"))}, waiting},
		"update seen before the answer":          {update("5", ""), steps{see(expectations.Updated, object("u1", "7")), confirm(object("u1", "7"))}, satisfied},
		"update seen older before the answer":    {update("5", ""), steps{see(expectations.Updated, object("u1", "6")), confirm(object("u1", "7"))}, waiting},
		"update that changed nothing":            {update("5", ""), steps{confirm(object("u1", "5"))}, satisfied},
		"update of an object removed afterwards": {update("", "10"), steps{see(expectations.Deleted, object("u1", "12"))}, satisfied},
		"tombstone never settles an update":      {update("", "10"), steps{see(expectations.DeletedUnknown, object("u1", "12"))}, expired},
		"bookmark settles an update":             {update("", "10"), steps{bookmark(pods, "ns", "10")}, satisfied},

		"update of an object removed afterwards, version unchanged": {
			update("", ""), steps{confirm(object("u1", "10")), see(expectations.Deleted, object("u1", "9"))}, satisfied},
		"update of an object removed before the answer": {
			update("", ""), steps{see(expectations.Deleted, object("u1", "9")), confirm(object("u1", "10"))}, satisfied},
		"update whose namesake was removed":             {update("", ""), steps{confirm(object("u2", "10")), see(expectations.Deleted, object("u1", "9"))}, waiting},
		"bookmark before the answer":                    {update("5", ""), steps{bookmark(pods, "", "10"), confirm(object("u1", "10"))}, satisfied},
		"update found in the cache":                     {update("", "10"), steps{cached(object("u1", "10"))}, satisfied},
		"earlier state found in the cache":              {update("", "10"), steps{cached(object("u1", "9"))}, waiting},
		"incomparable state in the cache alarms nobody": {update("", "10"), steps{cached(object("u1", "x"))}, waiting},
		"incomparable state seen before the answer":     {update("", ""), steps{see(expectations.Updated, object("u1", "x")), confirm(object("u1", "10"))}, expired},

		"deletion of what is terminating in the cache": {remove("5"), steps{cached(terminating("u1", "5"))}, satisfied},
		"target found in the cache":                    {remove("5"), steps{cached(object("u1", "5"))}, waiting},
		"target not found in the cache":                {remove("5"), steps{missed}, waiting},
		"successor found in the cache":                 {remove("5"), steps{cached(object("u2", "9"))}, satisfied},
		"successor whose version has no order":         {remove("5"), steps{see(expectations.Added, object("u2", "x"))}, expired},
		"successor of a version learned by an event":   {remove(""), steps{see(expectations.Updated, object("u1", "6")), see(expectations.Added, object("u2", "9"))}, satisfied},
		"deletion unseen waits":                        {remove(""), nil, waiting},
		"deletion seen":                                {remove(""), steps{see(expectations.Deleted, object("u1", "9"))}, satisfied},
		"deletion seen as termination":                 {remove(""), steps{see(expectations.Updated, terminating("u1", "9"))}, satisfied},
		"deletion of another object of the name":       {remove(""), steps{see(expectations.Deleted, object("u2", "9"))}, waiting},
		"target still there":                           {remove(""), steps{see(expectations.Updated, object("u1", "9"))}, waiting},
		"newer successor proves removal":               {remove("5"), steps{see(expectations.Added, object("u2", "9"))}, satisfied},
		"late event of a predecessor proves nothing":   {remove("5"), steps{see(expectations.Updated, object("u0", "4"))}, waiting},
		"successor without known version":              {remove(""), steps{see(expectations.Added, object("u2", "9"))}, waiting},
		"tombstone never settles a deletion":           {remove("5"), steps{see(expectations.DeletedUnknown, object("u1", "5"))}, expired},
		"deletion event after a tombstone":             {remove("5"), steps{see(expectations.DeletedUnknown, object("u1", "5")), see(expectations.Deleted, object("u1", "9"))}, satisfied},
		"bookmark never settles a deletion":            {remove("5"), steps{bookmark(pods, "", "99")}, waiting},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tok := tc.expect(b)
			for _, step := range tc.steps {
				step(b, tok)
			}
			got := b.Check(owner)
			if got.State != tc.want {
				t.Fatalf("got %s %v, want %s", got.State, got.Pending, tc.want)
			}
			if left := b.Outstanding(); (left == 0) != (tc.want == satisfied) {
				t.Errorf("%d writes outstanding in state %s", left, tc.want)
			}
		})
	}
}
