// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
)

// troubles remembers, for each guest, which of its last tasks failed, so that the
// next pass can tell. The zero value is ready; safe for concurrent use.
type troubles struct {
	mu    sync.Mutex
	known map[types.NamespacedName][]domain.Trouble
}

// note stores how the tasks of a pass went; none forgets what was before.
func (t *troubles) note(key types.NamespacedName, failed []domain.Trouble) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(failed) == 0 {
		delete(t.known, key)
		return
	}
	if t.known == nil {
		t.known = map[types.NamespacedName][]domain.Trouble{}
	}
	t.known[key] = failed
}

// of returns the tasks of the guest's last pass that failed.
func (t *troubles) of(key types.NamespacedName) []domain.Trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[key]
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

// silences remembers since when the hypervisor has not answered about a domain. The
// zero value is ready; safe for concurrent use.
type silences struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note returns since when the domain is silent: from since on, unless that was noted
// before.
func (s *silences) note(name string, since time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, silent := s.since[name]; silent {
		return was
	}
	if s.since == nil {
		s.since = map[string]time.Time{}
	}
	s.since[name] = since
	return since
}

// over notes that the hypervisor has answered about the domain.
func (s *silences) over(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.since, name)
}
