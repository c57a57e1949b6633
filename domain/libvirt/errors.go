// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// sentinels maps libvirt's error numbers to the sentinels of package domain.
var sentinels = map[virt.ErrorNumber]error{
	virt.ERR_NO_DOMAIN:             domain.ErrNotFound,
	virt.ERR_DEVICE_MISSING:        domain.ErrNotFound,
	virt.ERR_NO_DOMAIN_SNAPSHOT:    domain.ErrNotFound,
	virt.ERR_AGENT_UNRESPONSIVE:    domain.ErrNoAgent,
	virt.ERR_OPERATION_INVALID:     domain.ErrInvalidState,
	virt.ERR_NO_SUPPORT:            domain.ErrUnsupported,
	virt.ERR_CONFIG_UNSUPPORTED:    domain.ErrUnsupported,
	virt.ERR_OPERATION_UNSUPPORTED: domain.ErrUnsupported,
	virt.ERR_ARGUMENT_UNSUPPORTED:  domain.ErrUnsupported,
	virt.ERR_OPERATION_TIMEOUT:     domain.ErrTimeout,
	virt.ERR_OPERATION_ABORTED:     domain.ErrMigrationAborted,
	virt.ERR_MIGRATE_UNSAFE:        domain.ErrMigrationUnsafe,
	virt.ERR_XML_ERROR:             domain.ErrInvalid,
	virt.ERR_XML_DETAIL:            domain.ErrInvalid,
	virt.ERR_XML_INVALID_SCHEMA:    domain.ErrInvalid,
	virt.ERR_INVALID_ARG:           domain.ErrInvalid,
	virt.ERR_INVALID_CONN:          domain.ErrDisconnected,
}

// translate converts an error of the binding.
func translate(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var ours *Error
	if errors.As(err, &ours) {
		return err
	}
	var v virt.Error
	if !errors.As(err, &v) {
		return fmt.Errorf("libvirt: %s %s: %w", op, name, err)
	}
	return &Error{Op: op, Domain: name, Code: int(v.Code), Message: v.Message, Err: sentinels[v.Code]}
}

// code reports whether err is libvirt's error of that number.
func code(err error, n virt.ErrorNumber) bool {
	var v virt.Error
	var ours *Error
	switch {
	case errors.As(err, &v):
		return v.Code == n
	case errors.As(err, &ours):
		return ours.Code == int(n)
	}
	return false
}

// disconnected is the error of a call without a connection.
func disconnected(op, name, why string) error {
	return &Error{Op: op, Domain: name, Message: why, Err: domain.ErrDisconnected}
}

// ended is the error of a call that its context has ended.
func ended(ctx context.Context, op, name string) error {
	err := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", domain.ErrTimeout, err)
	}
	return fmt.Errorf("libvirt: %s %s: %w", op, name, err)
}
