// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Token identifies one noted write for Confirm, Exists, Seen and Cancel. The zero Token is valid and stands for no
// write.
type Token struct {
	handle *handle
	hash   uint32 // of the object
	owner  Owner
	ref    Ref
	since  time.Time
}

func (e *entry) token() Token {
	return Token{handle: e.handle, hash: e.hash[byObject], owner: e.owner, ref: e.ref, since: e.since}
}

func (k *Token) write(v Verb) Write {
	return Write{Owner: k.owner, Ref: k.ref, Verb: v, Since: k.since}
}

// handle outlives its write for as long as a caller holds the Token. Entries are reused, handles never: a handle points
// to its entry while the write is outstanding and to nothing afterwards. It is guarded by the shard of the object. It is
// the only garbage of a write, so it is small.
type handle struct {
	entry *entry // nil when the write is not outstanding
	// early is the object that settled a creation before its answer came; an answer about another one reverts that.
	early metav1.Object
}

// lock returns the shard that guards the token's write, locked, and its entry if it is outstanding.
func (t *Tracker) lock(k *Token) (*shard, *entry) {
	ob := &t.objects[k.hash%shardCount]
	ob.mu.Lock()
	return ob, k.handle.entry
}

// keepEarly records the object that settles the entry if the server's answer may revert that. Call it before unlink.
func (e *entry) keepEarly(obj metav1.Object) {
	if e.verb == Create && e.uid == "" {
		e.handle.early = obj
	}
}

// refuted reports, once, whether the answer to a creation is about another object than the one that had settled it, and
// not about a predecessor of it.
func (h *handle) refuted(answer metav1.Object) bool {
	early := h.early
	h.early = nil
	return early != nil && early.GetUID() != "" && early.GetUID() != answer.GetUID() &&
		!versionReached(early.GetResourceVersion(), answer.GetResourceVersion())
}
