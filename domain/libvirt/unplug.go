// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"sync"
	"time"
)

// unplugAgain is how long a guest may take to release a device before it is asked
// again. One that had not booted has not heard the first request.
const unplugAgain = 5 * time.Second

// unplugs are requests to release a device that guests have not answered yet.
// Asking again while the first request is under way gains nothing, and when the
// device goes away at that very moment it crashes the daemon of libvirt 9.0.
type unplugs struct {
	mu      sync.Mutex
	waiting map[deviceKey]*time.Timer
}

// deviceKey is a device of a domain.
type deviceKey struct{ domain, alias string }

// begin tells whether the guest should be asked, and notes that it has been.
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

// end forgets a request: it was answered, failed or has become too old.
func (u *unplugs) end(k deviceKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.waiting[k]; t != nil {
		t.Stop()
		delete(u.waiting, k)
	}
}

// close forgets all requests.
func (u *unplugs) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for k, t := range u.waiting {
		t.Stop()
		delete(u.waiting, k)
	}
}
