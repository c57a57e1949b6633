// SPDX-License-Identifier: Apache-2.0

package vmictrl

import "sync"

// once repeats a function until it has succeeded once.
type once struct {
	mu   sync.Mutex
	done bool // guarded by mu
}

func (o *once) do(what func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return nil
	}
	err := what()
	o.done = err == nil
	return err
}
