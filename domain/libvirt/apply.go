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

// Apply implements domain.Hypervisor.
func (d *Driver) Apply(ctx context.Context, op domain.Operation) error {
	if err := op.Validate(); err != nil {
		return err
	}
	act, err := d.action(op)
	if err != nil {
		return err
	}
	switch op.Verb {
	case domain.Start:
		return runStartCall(ctx, d.connection, string(op.Verb), op.Domain, act)
	case domain.Destroy:
		return runEndCall(ctx, d.connection, string(op.Verb), op.Domain, act)
	}
	return operate(ctx, d.connection, string(op.Verb), op.Domain, d.afterEnd(ctx, op.Domain, act))
}

// action prepares an operation, so that an invalid request is detected before libvirt is called.
func (d *Driver) action(op domain.Operation) (func(*virt.Connect) error, error) {
	switch op.Verb {
	case domain.Start:
		xml, err := op.Definition.Marshal()
		return func(c *virt.Connect) error { return startDomain(c, op, xml) }, err
	case domain.Destroy:
		return unlessGone(op.Domain, destroy), nil
	case domain.Undefine:
		return unlessGone(op.Domain, undefine), nil
	}
	change, err := d.change(op)
	if err != nil {
		return nil, err
	}
	return func(c *virt.Connect) error { return withDomain(c, op.Domain, change) }, nil
}

// unlessGone makes a domain that does not exist a success.
func unlessGone(name string, f func(*virt.Domain) error) func(*virt.Connect) error {
	return func(c *virt.Connect) error {
		err := withDomain(c, name, f)
		if code(err, virt.ERR_NO_DOMAIN) {
			return nil
		}
		return err
	}
}

// change prepares an operation on an existing domain.
func (d *Driver) change(op domain.Operation) (func(*virt.Domain) error, error) {
	switch op.Verb {
	case domain.SetMetadata:
		xml, err := op.Metadata.XML()
		return func(dom *virt.Domain) error { return setMetadata(dom, xml) }, err
	case domain.AttachDevice, domain.DetachDevice, domain.UpdateDevice:
		change, err := newDeviceChange(op, &d.asked)
		return change.apply, err
	case domain.Reboot:
		return func(dom *virt.Domain) error { return reboot(dom, op.Agent) }, nil
	case domain.SetVCPUs:
		return func(dom *virt.Domain) error { return setVCPUs(dom, op.VCPUs) }, nil
	case domain.ResizeDisk:
		return func(dom *virt.Domain) error { return resizeDisk(dom, op.Disk, op.Bytes) }, nil
	}
	simple, ok := map[domain.Verb]func(*virt.Domain) error{
		domain.Shutdown: shutdown, domain.Suspend: suspend, domain.Resume: resume, domain.Reset: reset,
	}[op.Verb]
	if !ok {
		return nil, fmt.Errorf("%s: %w", op, domain.ErrUnsupported)
	}
	return simple, nil
}

// startDomain defines and starts. A domain that fails to start is undefined again, so that nothing
// partial is left.
func startDomain(c *virt.Connect, op domain.Operation, xml string) error {
	running := false
	err := withDomain(c, op.Domain, func(dom *virt.Domain) (err error) {
		running, err = dom.IsActive()
		return err
	})
	if running || err != nil && !code(err, virt.ERR_NO_DOMAIN) {
		return err
	}
	dom, err := c.DomainDefineXMLFlags(xml, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dom.Free() }()
	var flags virt.DomainCreateFlags
	if op.Paused {
		flags = virt.DOMAIN_START_PAUSED
	}
	err = dom.CreateWithFlags(flags)
	if err == nil {
		return nil
	}
	if active, activeErr := dom.IsActive(); activeErr == nil && active {
		return nil // a concurrent call started it
	}
	if op.Paused && code(err, virt.ERR_INVALID_ARG) {
		// The definition was accepted: only the flag remains to be refused.
		err = virt.Error{Code: virt.ERR_ARGUMENT_UNSUPPORTED, Message: "cannot start a domain paused"}
	}
	// Kept before the next calls change the error.
	err = translate(string(op.Verb), op.Domain, err)
	return errors.Join(err, translate("undefine after a failed start", op.Domain, undefine(dom)))
}

// invalidState is the error of an operation the domain's state does not allow.
func invalidState(why string) error {
	return virt.Error{Code: virt.ERR_OPERATION_INVALID, Message: why}
}

// shutdown requests a shutdown, unless the domain does not run or is shutting down already. A
// paused guest cannot react.
func shutdown(dom *virt.Domain) error {
	ending := func() (bool, error) {
		st, _, err := dom.GetState()
		return st == virt.DOMAIN_SHUTDOWN || st == virt.DOMAIN_SHUTOFF || st == virt.DOMAIN_CRASHED, err
	}
	if done, err := ending(); err != nil || done {
		return err
	}
	if st, _, err := dom.GetState(); err == nil && st == virt.DOMAIN_PAUSED {
		return invalidState("the domain is paused")
	}
	err := dom.ShutdownFlags(virt.DOMAIN_SHUTDOWN_DEFAULT)
	if done, stateErr := ending(); stateErr == nil && done {
		return nil
	}
	return err
}

// destroy ends the domain: QEMU gets SIGTERM first.
func destroy(dom *virt.Domain) error {
	err := dom.DestroyFlags(virt.DOMAIN_DESTROY_DEFAULT)
	if code(err, virt.ERR_OPERATION_INVALID) {
		if active, activeErr := dom.IsActive(); activeErr == nil && !active {
			return nil
		}
	}
	return err
}

// undefine undefines a domain that does not run; libvirt would turn one that does into a transient
// one.
func undefine(dom *virt.Domain) error {
	active, err := dom.IsActive()
	if err != nil {
		return err
	}
	if active {
		return invalidState("the domain is running")
	}
	err = dom.UndefineFlags(virt.DOMAIN_UNDEFINE_MANAGED_SAVE | virt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA |
		virt.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA | virt.DOMAIN_UNDEFINE_KEEP_NVRAM)
	if code(err, virt.ERR_INVALID_ARG) { // a driver without any of these
		err = dom.UndefineFlags(virt.DOMAIN_UNDEFINE_MANAGED_SAVE | virt.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA)
	}
	return err
}

func suspend(dom *virt.Domain) error { return setRunning(dom, virt.DOMAIN_PAUSED, dom.Suspend) }

func resume(dom *virt.Domain) error { return setRunning(dom, virt.DOMAIN_RUNNING, dom.Resume) }

// setRunning brings a domain to the wanted state unless it has it.
func setRunning(dom *virt.Domain, want virt.DomainState, do func() error) error {
	st, _, err := dom.GetState()
	switch {
	case err != nil || st == want:
		return err
	case st == virt.DOMAIN_SHUTOFF || st == virt.DOMAIN_CRASHED:
		return invalidState("the domain is not running")
	}
	err = do()
	// The state may have been reached by another call, or reported late: a restarted daemon
	// reconnects to its domains one after the other.
	if now, _, stateErr := dom.GetState(); stateErr == nil && now == want {
		return nil
	}
	return err
}

// reset resets the machine; a paused one as well.
func reset(dom *virt.Domain) error { return dom.Reset(0) }

// reboot requests a reboot. A paused guest cannot react.
func reboot(dom *virt.Domain, agent bool) error {
	st, _, err := dom.GetState()
	switch {
	case err != nil:
		return err
	case st == virt.DOMAIN_PAUSED:
		return invalidState("the domain is paused")
	case agent:
		return agentError(dom.Reboot(virt.DOMAIN_REBOOT_GUEST_AGENT))
	}
	return dom.Reboot(virt.DOMAIN_REBOOT_ACPI_POWER_BTN)
}

// impact returns where a change goes: into the live domain and its definition, as far as they
// exist.
func impact(dom *virt.Domain) (virt.DomainModificationImpact, error) {
	active, err := dom.IsActive()
	if err != nil {
		return 0, err
	}
	persistent, err := dom.IsPersistent()
	if err != nil {
		return 0, err
	}
	var i virt.DomainModificationImpact
	if active {
		i |= virt.DOMAIN_AFFECT_LIVE
	}
	if persistent {
		i |= virt.DOMAIN_AFFECT_CONFIG
	}
	return i, nil
}

// metadataPrefix is the XML prefix of stored metadata. Readers look at the namespace alone.
const metadataPrefix = "virtloom"

func setMetadata(dom *virt.Domain, xml string) error {
	i, err := impact(dom)
	if err != nil {
		return err
	}
	return dom.SetMetadata(virt.DOMAIN_METADATA_ELEMENT, xml, metadataPrefix, domain.MetadataNamespace, i)
}
