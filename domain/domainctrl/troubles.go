// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// troubles remembers, for each guest, why its last task failed, so that the
// next pass can tell. The zero value is ready; safe for concurrent use.
type troubles struct {
	mu  sync.Mutex
	why map[types.NamespacedName]string
}

// note stores how the tasks of a pass went; nil forgets what was before.
func (t *troubles) note(key types.NamespacedName, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		delete(t.why, key)
		return
	}
	if t.why == nil {
		t.why = map[types.NamespacedName]string{}
	}
	t.why[key] = err.Error()
}

// of returns why the last task of the guest failed, empty if it did not.
func (t *troubles) of(key types.NamespacedName) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why[key]
}

// notices remembers what was last told of each guest, so that it is told once. The
// zero value is ready; safe for concurrent use.
type notices struct {
	mu   sync.Mutex
	told map[types.NamespacedName]string
}

// news reports whether there is something to tell of the guest that was not what
// was told last. Empty is nothing to tell, and forgets what was.
func (n *notices) news(key types.NamespacedName, what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if what == "" {
		delete(n.told, key)
		return false
	}
	if n.told[key] == what {
		return false
	}
	if n.told == nil {
		n.told = map[types.NamespacedName]string{}
	}
	n.told[key] = what
	return true
}
