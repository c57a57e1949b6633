// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Token identifies one noted write towards Confirm, Exists, Seen and Cancel. The zero Token is valid and stands for
// nothing.
type Token struct {
	handle *handle
	owner  Owner
	ref    Ref
	since  time.Time
}

func (k Token) write(v Verb) Write { return Write{Owner: k.owner, Ref: k.ref, Verb: v, Since: k.since} }

// handle is what lasts of a write for as long as somebody has its Token. Entries are used again, handles never: one
// leads to its entry as long as the write is outstanding and to nothing afterwards. It is guarded by the shard of the
// object.
type handle struct {
	hash  uint32 // of the object; never changes
	entry *entry // nil when the write is not outstanding
	// What settled a creation before its answer came; an answer about another object takes that back.
	seenUID types.UID
	seen    string
}

// lock returns the shard that guards the handle, locked, and the entry if the write is outstanding.
func (t *Tracker) lock(h *handle) (*shard, *entry) {
	ob := &t.objects[h.hash%shardCount]
	ob.mu.Lock()
	return ob, h.entry
}

// keepEvidence remembers what settled the entry if that is preliminary. It comes before unlink.
func (e *entry) keepEvidence() {
	if e.verb == Create && e.uid == "" {
		e.handle.seenUID, e.handle.seen = e.seenUID, e.seen
	}
}

// refuted reports, once, whether the answer to a creation is about another object than the one that had settled it.
func (h *handle) refuted(answer metav1.Object) bool {
	seenUID, seen := h.seenUID, h.seen
	h.seenUID, h.seen = "", ""
	return seenUID != "" && seenUID != answer.GetUID() && !reached(seen, answer.GetResourceVersion())
}
