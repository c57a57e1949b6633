// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"fmt"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// dial opens a connection that notices when the other side is gone.
func (d *Driver) dial() (*virt.Connect, error) {
	c, err := virt.NewConnect(d.uri)
	if err != nil {
		return nil, disconnected("open "+d.uri, "", err.Error())
	}
	// Drivers inside the process (test:///) know no keepalive.
	err = c.SetKeepAlive(int(d.opts.KeepAliveInterval/time.Second), d.opts.KeepAliveCount)
	if err != nil && !code(err, virt.ERR_NO_SUPPORT) {
		_, _ = c.Close()
		return nil, translate("set keepalive", "", err)
	}
	return c, nil
}

// session is the connection for listing and events.
type session struct {
	conn      *virt.Connect
	callbacks []int
	// watched says that libvirt will tell about the end of the connection.
	watched bool
	lost    chan struct{} // closed when the connection is gone
	once    sync.Once
	why     string
}

// newSession connects and registers for events.
func (d *Driver) newSession() (*session, error) {
	c, err := d.dial()
	if err != nil {
		return nil, err
	}
	s := &session{conn: c, lost: make(chan struct{})}
	err = c.RegisterCloseCallback(func(_ *virt.Connect, r virt.ConnectCloseReason) { s.end(closeReason(r)) })
	s.watched = err == nil
	if err != nil && !code(err, virt.ERR_NO_SUPPORT) {
		s.close()
		return nil, translate("register for the end of the connection", "", err)
	}
	if err := d.subscribe(s); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// end marks the session as lost. It may be called from libvirt's event loop and
// therefore calls nothing of libvirt.
func (s *session) end(why string) {
	s.once.Do(func() {
		s.why = why
		close(s.lost)
	})
}

// close gives everything back. It must not be called from the event loop.
func (s *session) close() {
	for _, id := range s.callbacks {
		_ = s.conn.DomainEventDeregister(id)
	}
	if s.watched {
		_ = s.conn.UnregisterCloseCallback()
	}
	_, _ = s.conn.Close()
}

func closeReason(r virt.ConnectCloseReason) string {
	switch r {
	case virt.CONNECT_CLOSE_REASON_ERROR:
		return "error on the connection"
	case virt.CONNECT_CLOSE_REASON_EOF:
		return "the daemon closed the connection"
	case virt.CONNECT_CLOSE_REASON_KEEPALIVE:
		return "the daemon does not answer"
	case virt.CONNECT_CLOSE_REASON_CLIENT:
		return "closed here"
	}
	return fmt.Sprintf("reason %d", r)
}

// subscribe registers for every event after which a domain may look different.
// Callbacks only note the name: calling libvirt from its event loop would
// deadlock. Tunable events are left out; their callback crashes the binding.
func (d *Driver) subscribe(s *session) error {
	for _, register := range append(d.lifeEvents(s.conn), d.deviceEvents(s.conn)...) {
		id, err := register()
		if err != nil {
			return translate("register for events", "", err)
		}
		s.callbacks = append(s.callbacks, id)
	}
	return nil
}

// tell passes a hint on.
func (d *Driver) tell(dom *virt.Domain, why string) {
	if name, err := dom.GetName(); err == nil {
		d.hints.Tell(domain.Event{Kind: domain.Changed, Domain: name, Why: why})
	}
}

// changed is a hint after which the domain may have other devices.
func (d *Driver) changed(dom *virt.Domain, why string) {
	if name, err := dom.GetName(); err == nil {
		d.names.forget(name)
	}
	d.tell(dom, why)
}

// answered notes that the guest has released a device, or will not.
func (d *Driver) answered(dom *virt.Domain, alias string) {
	if name, err := dom.GetName(); err == nil {
		d.asked.end(deviceKey{name, alias})
	}
}

// lifeEvents register for what is about a whole domain.
func (d *Driver) lifeEvents(c *virt.Connect) []func() (int, error) {
	return []func() (int, error){
		func() (int, error) {
			return c.DomainEventLifecycleRegister(nil, func(_ *virt.Connect, dom *virt.Domain, e *virt.DomainEventLifecycle) {
				d.changed(dom, lifecycleName(e.Event))
			})
		},
		func() (int, error) {
			return c.DomainEventMetadataChangeRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventMetadataChange) {
				d.tell(dom, "MetadataChange")
			})
		},
		func() (int, error) {
			return c.DomainEventAgentLifecycleRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventAgentLifecycle) {
				d.tell(dom, "AgentLifecycle")
			})
		},
		func() (int, error) {
			return c.DomainEventJobCompletedRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventJobCompleted) {
				d.tell(dom, "JobCompleted")
			})
		},
	}
}

// deviceEvents register for what is about the devices of a domain.
func (d *Driver) deviceEvents(c *virt.Connect) []func() (int, error) {
	return []func() (int, error){
		func() (int, error) {
			return c.DomainEventDeviceAddedRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventDeviceAdded) {
				d.changed(dom, "DeviceAdded")
			})
		},
		func() (int, error) {
			return c.DomainEventDeviceRemovedRegister(nil, func(_ *virt.Connect, dom *virt.Domain, e *virt.DomainEventDeviceRemoved) {
				d.answered(dom, e.DevAlias)
				d.changed(dom, "DeviceRemoved")
			})
		},
		func() (int, error) {
			return c.DomainEventDeviceRemovalFailedRegister(nil, func(_ *virt.Connect, dom *virt.Domain, e *virt.DomainEventDeviceRemovalFailed) {
				d.answered(dom, e.DevAlias)
				d.tell(dom, "DeviceRemovalFailed")
			})
		},
		func() (int, error) {
			return c.DomainEventIOErrorReasonRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventIOErrorReason) {
				d.tell(dom, "IOError")
			})
		},
		func() (int, error) {
			return c.DomainEventMemoryDeviceSizeChangeRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventMemoryDeviceSizeChange) {
				d.tell(dom, "MemoryDeviceSizeChange")
			})
		},
	}
}

func lifecycleName(e virt.DomainEventType) string {
	names := map[virt.DomainEventType]string{
		virt.DOMAIN_EVENT_DEFINED: "Defined", virt.DOMAIN_EVENT_UNDEFINED: "Undefined",
		virt.DOMAIN_EVENT_STARTED: "Started", virt.DOMAIN_EVENT_SUSPENDED: "Suspended",
		virt.DOMAIN_EVENT_RESUMED: "Resumed", virt.DOMAIN_EVENT_STOPPED: "Stopped",
		virt.DOMAIN_EVENT_SHUTDOWN: "Shutdown", virt.DOMAIN_EVENT_PMSUSPENDED: "PMSuspended",
		virt.DOMAIN_EVENT_CRASHED: "Crashed",
	}
	if n, ok := names[e]; ok {
		return n
	}
	return fmt.Sprintf("Lifecycle%d", e)
}
