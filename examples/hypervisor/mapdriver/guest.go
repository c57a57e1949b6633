// SPDX-License-Identifier: Apache-2.0

package mapdriver

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// guest is a domain, with its own copy of the definition, as XML.
type guest struct {
	domain.State
	definition string
}

// verbs are what can be asked for.
var verbs = map[domain.Verb]func(*guest, domain.Operation) error{
	domain.Start: (*guest).start,
	domain.Shutdown: func(g *guest, _ domain.Operation) error { // a paused guest cannot listen
		return g.become(g.Status != domain.StatusPaused, domain.StatusShutoff, domain.ReasonShutdown)
	},
	domain.Destroy: func(g *guest, _ domain.Operation) error {
		return g.become(true, domain.StatusShutoff, domain.ReasonDestroyed)
	},
	domain.Undefine: func(g *guest, _ domain.Operation) error { return g.become(!g.Alive(), g.Status, g.Reason) },
	domain.Suspend: func(g *guest, _ domain.Operation) error {
		return g.become(g.Alive(), domain.StatusPaused, domain.ReasonUser)
	},
	domain.Resume: func(g *guest, _ domain.Operation) error {
		return g.become(g.Alive(), domain.StatusRunning, domain.ReasonUnknown)
	},
	domain.SetMetadata: func(g *guest, op domain.Operation) error {
		var d libvirtxml.Domain
		if err := errors.Join(d.Unmarshal(g.definition), op.Metadata.Put(&d)); err != nil {
			return err
		}
		return g.define(&d)
	},
}

// become changes the state of the guest, if it may; one that has ended keeps its reason.
func (g *guest) become(may bool, s domain.Status, why domain.Reason) error {
	if !may {
		return domain.ErrInvalidState
	}
	if g.Status != s && g.Alive() {
		g.Status, g.Reason = s, why
	}
	return nil
}

func (g *guest) start(op domain.Operation) error {
	if g.Alive() {
		return nil
	}
	if op.Definition.Type != "qemu" {
		return fmt.Errorf("domain type %q: %w", op.Definition.Type, domain.ErrInvalid)
	}
	g.State = domain.State{Name: op.Domain, UUID: op.Definition.UUID, Status: domain.StatusRunning, Reason: domain.ReasonUnknown}
	if op.Paused {
		g.Status, g.Reason = domain.StatusPaused, domain.ReasonUser
	}
	return g.define(op.Definition)
}

// define keeps the definition.
func (g *guest) define(d *libvirtxml.Domain) (err error) {
	g.definition, err = d.Marshal()
	return err
}
