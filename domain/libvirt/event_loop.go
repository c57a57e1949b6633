// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"sync"

	virt "libvirt.org/go/libvirt"
)

// startLoop starts libvirt's event loop. It has to exist before the first connection, else libvirt
// delivers neither events nor the loss of a connection, and a process can have only one.
var startLoop = sync.OnceValue(func() error {
	if err := virt.EventRegisterDefaultImpl(); err != nil {
		return translate("start event loop", "", err)
	}
	go func() {
		for {
			// A failed iteration concerns one handle and is repeated in the next; there is no
			// receiver for the error.
			_ = virt.EventRunDefaultImpl()
		}
	}()
	return nil
})
