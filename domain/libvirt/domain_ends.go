// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"sync"

	virt "libvirt.org/go/libvirt"
)

// ends notifies operations that their domain was ended while they ran, because its end does not
// wait for them.
type ends struct {
	mu     sync.Mutex
	during map[string]bool // by domain with an operation under way
}

// watch begins an operation.
func (e *ends) watch(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.during == nil {
		e.during = map[string]bool{}
	}
	e.during[name] = false
}

// note records that a domain is being ended.
func (e *ends) note(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.during[name]; ok {
		e.during[name] = true
	}
}

// seen finishes an operation and reports whether its domain was being ended.
func (e *ends) seen(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer delete(e.during, name)
	return e.during[name]
}

// afterEnd makes an operation that fails because its domain is ended concurrently behave as if it
// had come after the end.
func (d *connection) afterEnd(ctx context.Context, name string, f func(*virt.Connect) error) func(*virt.Connect) error {
	return func(c *virt.Connect) error {
		d.ends.watch(name)
		begun := d.starts.busy(name)
		err := f(c)
		ended := d.ends.seen(name) || begun
		if err == nil || !ended {
			return err
		}
		release, turnErr := d.starts.take(ctx, name)
		if turnErr != nil {
			return err
		}
		release()
		return f(c)
	}
}
