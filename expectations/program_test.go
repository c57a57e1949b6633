// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// A program is a list of operations on a tracker, each of opSize bytes: what to do and with what. Any bytes are a
// program, so that a fuzzer can write one.
const opSize = 6

type op [opSize]byte

func parse(data []byte) []op {
	var ops []op
	for ; len(data) >= opSize && len(ops) < 400; data = data[opSize:] {
		ops = append(ops, op(data))
	}
	return ops
}

// world is the vocabulary of a program. It is small, so that operations collide.
type world struct {
	owners []expectations.Owner
	refs   []expectations.Ref
	clock  bool // whether the program may advance the clock
}

var (
	uids     = []string{"u1", "u2", "u3"}
	versions = []string{
		"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12",
		"", "0", "x7", "x8", "007",
		"9223372036854775807", "9223372036854775808", // around 2^63
		"340282366920938463463374607431768211455", "340282366920938463463374607431768211456", // around 2^128
	}
	kinds = []expectations.EventKind{
		expectations.Added, expectations.Updated, expectations.Updated, expectations.Deleted, expectations.DeletedUnknown,
	}
	leaps = []time.Duration{time.Second, modelTTL / 2, modelTTL - time.Second, modelTTL}
)

const modelTTL = 10 * time.Second

func newWorld(namespaces ...string) world {
	w := world{clock: true}
	for _, ns := range namespaces {
		for _, name := range []string{"vm", "other"} {
			for _, uid := range []types.UID{"first", "second"} {
				w.owners = append(w.owners, expectations.Owner{Key: types.NamespacedName{Namespace: ns, Name: name}, UID: uid})
			}
			w.refs = append(w.refs, expectations.Ref{Kind: pods, Namespace: ns, Name: name})
		}
	}
	w.refs = append(w.refs, expectations.Ref{Kind: schema.GroupKind{Group: "g", Kind: "Pod"}, Namespace: namespaces[0], Name: "vm"})
	return w
}

// run is a program in execution, on a tracker and on the model.
type run struct {
	world
	tracker *expectations.Tracker
	model   *model
	every   bool // compare all verdicts after each step, not only those that the program asks for
	shared  bool // the tracker is shared with other runs
	wordy   bool // write the script

	tokens   []expectations.Token
	writes   []*modelWrite
	pending  []expectations.Pending
	asked    []*modelWrite // the same in the model
	woken    []expectations.Owner
	reported []report
	script   []string
}

func newRun(w world, every, wordy bool) *run {
	r := &run{world: w, every: every, wordy: wordy, model: &model{now: time.Unix(1000, 0), ttl: modelTTL}}
	tracker, err := expectations.New(expectations.Options{
		Now: func() time.Time { return r.model.now }, TTL: modelTTL, Observer: r,
		Wake: func(o expectations.Owner) { r.woken = append(r.woken, o) },
	})
	if err != nil {
		panic(err)
	}
	r.tracker = tracker
	return r
}

func (r *run) Noted(w expectations.Write) {
	r.reported = append(r.reported, report{what: "noted", write: w})
}

func (r *run) Settled(w expectations.Write, by expectations.Evidence, age time.Duration) {
	r.reported = append(r.reported, report{what: "settled", detail: string(by), write: w, age: age})
}

func (r *run) Dropped(w expectations.Write, why expectations.DropReason) {
	r.reported = append(r.reported, report{what: "dropped", detail: string(why), write: w})
}

func (r *run) Troubled(w expectations.Write, p expectations.Problem) {
	r.reported = append(r.reported, report{what: "troubled", detail: string(p), write: w})
}

// execute runs the program and returns the first difference, "" if there is none.
func (r *run) execute(ops []op) string {
	for _, o := range ops {
		if diff := r.step(o); diff != "" {
			return diff
		}
	}
	return ""
}

// say adds a line to the script.
func (r *run) say(format string, args ...any) {
	r.script = append(r.script, fmt.Sprintf(format, args...))
}

func pick[T any](from []T, b byte) T { return from[int(b)%len(from)] }

func (r *run) step(o op) string {
	r.woken, r.reported, r.model.woken, r.model.reported = nil, nil, nil, nil
	got, want := r.do(o)
	if got != want {
		return fmt.Sprintf("result: got %s, want %s", got, want)
	}
	if r.every {
		for _, owner := range r.owners {
			if diff := r.check(owner); diff != "" {
				return diff
			}
		}
	}
	if !sameElements(r.woken, r.model.woken) {
		return fmt.Sprintf("woken:\n got  %v\n want %v", r.woken, r.model.woken)
	}
	if !sameElements(r.reported, r.model.reported) {
		return fmt.Sprintf("reported to the observer:\n got  %v\n want %v", r.reported, r.model.reported)
	}
	if got, want := r.tracker.Outstanding(), r.model.outstanding(); got != want && !r.shared {
		return fmt.Sprintf("outstanding: got %d, want %d", got, want)
	}
	return ""
}

// sameElements compares without regard to order, as the order within a step is not promised.
func sameElements[T comparable](got, want []T) bool {
	left := slices.Clone(want)
	for _, x := range got {
		i := slices.Index(left, x)
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return len(left) == 0
}

// do executes one operation on both and returns the two results.
func (r *run) do(o op) (got, want string) {
	owner, ref := pick(r.owners, o[1]), pick(r.refs, o[2])
	switch o[0] % 16 {
	case 0, 1:
		r.say("t%d := ExpectCreate(%s, %s)", len(r.tokens), show(owner), ref)
		r.noted(r.tracker.ExpectCreate(owner, ref), &modelWrite{Write: expectations.Write{Owner: owner, Ref: ref, Verb: expectations.Create}})
	case 2:
		base, version := pick(versions, o[3]), pick(versions, o[4])
		if o[5]%2 == 0 {
			version = ""
		}
		r.say("t%d := ExpectUpdate(%s, %s, base %q, version %q)", len(r.tokens), show(owner), ref, base, version)
		r.noted(r.tracker.ExpectUpdate(owner, ref, base, version), &modelWrite{
			Write: expectations.Write{Owner: owner, Ref: ref, Verb: expectations.Update}, base: base, needs: version,
		})
	case 3:
		uid, seen := pick(uids, o[3]), pick(versions, o[4])
		r.say("t%d := ExpectDelete(%s, %s, %s, seen %q)", len(r.tokens), show(owner), ref, uid, seen)
		r.noted(r.tracker.ExpectDelete(owner, ref, types.UID(uid), seen), &modelWrite{
			Write: expectations.Write{Owner: owner, Ref: ref, Verb: expectations.Delete}, uid: uid, base: seen,
		})
	case 4, 5, 6, 7:
		return r.doToken(o)
	case 8, 9, 10:
		obj, kind := r.object(o), pick(kinds, o[1])
		r.say("Observe(%s, %s, %s)", ref, show(obj), eventName(kind))
		r.tracker.Observe(ref.Kind, obj.in(ref), kind)
		r.model.observe(ref, *obj, kind)
	case 11:
		ns, version := ref.Namespace, pick(versions, o[3])
		if o[4]%3 == 0 && !r.shared {
			ns = ""
		}
		r.say("ObserveBookmark(%s, %q, %q)", ref.Kind, ns, version)
		r.tracker.ObserveBookmark(ref.Kind, ns, version)
		r.model.bookmark(ref.Kind, ns, version)
	default:
		return r.doOwner(o, owner)
	}
	return "", ""
}

// doToken executes the operations that take a token.
func (r *run) doToken(o op) (got, want string) {
	if len(r.tokens) == 0 {
		return "", ""
	}
	i := len(r.tokens) - 1 - int(o[1])%min(len(r.tokens), 6) // mostly the latest
	tok, w, obj := r.tokens[i], r.writes[i], r.object(o)
	if o[5]%8 == 0 {
		obj = nil
	}
	switch o[0] % 16 {
	case 4, 5:
		r.say("Confirm(t%d, %s)", i, show(obj))
		return fmt.Sprint(r.tracker.Confirm(tok, obj.in(w.Ref))), fmt.Sprint(r.model.confirm(w, obj))
	case 6:
		if o[2]%2 == 0 {
			r.say("Exists(t%d)", i)
			return fmt.Sprint(r.tracker.Exists(tok)), fmt.Sprint(r.model.exists(w))
		}
		r.say("Seen(t%d, %s)", i, show(obj))
		return fmt.Sprint(r.tracker.Seen(tok, obj.in(w.Ref))), fmt.Sprint(r.model.seen(w, obj))
	default:
		r.say("Cancel(t%d)", i)
		r.tracker.Cancel(tok)
		r.model.cancel(w)
		return "", ""
	}
}

// doOwner executes the operations on an owner, and advances the clock.
func (r *run) doOwner(o op, owner expectations.Owner) (got, want string) {
	switch {
	case o[0]%16 == 12:
		r.say("Check(%s)", show(owner))
		return r.check(owner), ""
	case o[0]%16 == 13 && len(r.pending) > 0:
		i, live := int(o[1])%len(r.pending), r.object(o)
		if o[5]%4 == 0 {
			live = nil
		}
		r.say("Answer(pending %d, %s)", i, show(live))
		return r.tracker.Answer(r.pending[i], live.in(r.pending[i].Ref)).String(), r.model.answer(r.asked[i], live).String()
	case o[0]%16 == 14 && r.clock:
		leap := pick(leaps, o[1])
		r.say("clock + %s", leap)
		r.model.now = r.model.now.Add(leap)
	case o[0]%16 == 15 && o[3]%4 == 0:
		r.say("Forget(%s)", show(owner))
		r.tracker.Forget(owner)
		r.model.forget(func(other expectations.Owner) bool { return other == owner })
	case o[0]%16 == 15 && o[3]%4 == 1:
		r.say("ForgetKey(%s)", owner.Key)
		r.tracker.ForgetKey(owner.Key)
		r.model.forget(func(other expectations.Owner) bool { return other.Key == owner.Key })
	case o[0]%16 == 15 && len(r.pending) > 0:
		i := int(o[1]) % len(r.pending)
		r.say("Cancel(pending %d)", i)
		r.tracker.Cancel(r.pending[i].Token())
		r.model.cancel(r.asked[i])
	}
	return "", ""
}

func (r *run) noted(tok expectations.Token, w *modelWrite) {
	r.tokens = append(r.tokens, tok)
	r.writes = append(r.writes, r.model.note(w))
}

// check compares the two verdicts and keeps what is pending for Answer.
func (r *run) check(o expectations.Owner) string {
	v := r.tracker.Check(o)
	state, deadline, want, asked := r.model.check(o)
	var got []outlook
	for _, p := range v.Pending {
		got = append(got, outlook{p.Ref, p.Verb, p.Since, p.Needs, p.Seen, p.Problem})
	}
	var after time.Duration
	if state == expectations.Waiting {
		after = deadline.Sub(r.model.now)
	}
	if v.State != state || !v.Deadline.Equal(deadline) || v.RequeueAfter != after || !slices.Equal(got, want) {
		return fmt.Sprintf("verdict of %s:\n got  %s until %s, in %s: %+v\n want %s until %s, in %s: %+v",
			show(o), v.State, v.Deadline.Format("05.0"), v.RequeueAfter, got, state, deadline.Format("05.0"), after, want)
	}
	if len(v.Pending) > 0 {
		r.pending, r.asked = v.Pending, asked
	}
	return ""
}

func (r *run) object(o op) *view {
	return &view{uid: pick(uids, o[3]), version: pick(versions, o[4]), terminating: o[5]%5 == 1}
}

// in makes the view an object of that name; nil stays nil.
func (v *view) in(ref expectations.Ref) metav1.Object {
	if v == nil {
		return nil
	}
	obj := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(v.uid), ResourceVersion: v.version,
	}}
	if v.terminating {
		obj.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	return obj
}

func show(x any) string {
	switch x := x.(type) {
	case expectations.Owner:
		return fmt.Sprintf("%s of UID %s", x.Key, x.UID)
	case *view:
		if x == nil {
			return "nothing"
		}
		s := fmt.Sprintf("%s at %q", x.uid, x.version)
		if x.terminating {
			s += ", terminating"
		}
		return s
	default:
		return fmt.Sprint(x)
	}
}

func eventName(k expectations.EventKind) string {
	return [...]string{"Added", "Updated", "Deleted", "DeletedUnknown"}[k]
}
