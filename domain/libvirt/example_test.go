// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/libvirt"
)

// What an error of libvirt means is a sentinel of package domain; code and text are there for logs.
func ExampleError() {
	inspect := func(ctx context.Context, uri string) error {
		// A host that must not fall back to emulation sets KVMOn, one where /dev/kvm cannot be trusted KVMOff.
		d, err := libvirt.Open(ctx, uri, libvirt.Options{KVM: libvirt.KVMAuto})
		if err != nil {
			return err
		}
		defer d.Close()
		_, err = d.Get(ctx, "default_web")
		var failed *libvirt.Error
		switch {
		case errors.Is(err, domain.ErrNotFound):
			fmt.Println("it does not exist")
			return nil
		case errors.As(err, &failed):
			fmt.Printf("%s of %s: error %d: %s\n", failed.Op, failed.Domain, failed.Code, failed.Message)
		}
		return err
	}
	_ = inspect
}
