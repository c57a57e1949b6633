// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"sync"
	"time"
)

// unplugAgain is the pause before a request to release a device is repeated. A guest that had not
// booted has missed the first request.
const unplugAgain = 5 * time.Second

// unplugs are pending requests to release a device. Repeating one has no effect, and when the
// device is released at that very moment it crashes the daemon of libvirt 9.0.
type unplugs struct {
	mu      sync.Mutex
	waiting map[deviceKey]*time.Timer
}

// deviceKey is a device of a domain.
type deviceKey struct{ domain, alias string }

// begin reports whether to send a request, and records it.
func (u *unplugs) begin(k deviceKey) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting == nil {
		u.waiting = map[deviceKey]*time.Timer{}
	}
	if u.waiting[k] != nil {
		return false
	}
	u.waiting[k] = time.AfterFunc(unplugAgain, func() { u.end(k) })
	return true
}

// end removes a request: it was answered, failed or has become too old.
func (u *unplugs) end(k deviceKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.waiting[k]; t != nil {
		t.Stop()
		delete(u.waiting, k)
	}
}

// close removes all requests.
func (u *unplugs) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for k, t := range u.waiting {
		t.Stop()
		delete(u.waiting, k)
	}
}
