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

// dial opens a connection that detects an unreachable peer.
func (d *connection) dial() (*virt.Connect, error) {
	c, err := virt.NewConnect(d.uri)
	if err != nil {
		return nil, disconnected("open "+d.uri, "", err.Error())
	}
	// Drivers inside the process (test:///) have no keepalive.
	err = c.SetKeepAlive(int(d.opts.KeepAliveInterval/time.Second), d.opts.KeepAliveCount)
	if err != nil && !code(err, virt.ERR_NO_SUPPORT) {
		_, _ = c.Close()
		return nil, translate("set keepalive", "", err)
	}
	return c, nil
}

// session is the connection for queries and events.
type session struct {
	conn      *virt.Connect
	callbacks []int
	// watched reports that libvirt will signal the end of the connection.
	watched bool
	lost    chan struct{} // closed when the connection is gone
	once    sync.Once
	why     string
}

// newSession connects and registers for events.
func (d *connection) newSession() (*session, error) {
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

// end marks the session as lost. It may be called from libvirt's event loop and therefore calls
// nothing of libvirt.
func (s *session) end(why string) {
	s.once.Do(func() {
		s.why = why
		close(s.lost)
	})
}

// close releases everything. It must not be called from the event loop.
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
		return "the daemon is unresponsive"
	case virt.CONNECT_CLOSE_REASON_CLIENT:
		return "closed by this process"
	}
	return fmt.Sprintf("reason %d", r)
}

// subscribe registers for every event that may change a domain. Callbacks only record the name:
// calling libvirt from its event loop would deadlock. Tunable events are left out; their callback
// crashes the binding.
func (d *connection) subscribe(s *session) error {
	for _, register := range append(d.lifeEvents(s.conn), d.deviceEvents(s.conn)...) {
		id, err := register()
		if err != nil {
			return translate("register for events", "", err)
		}
		s.callbacks = append(s.callbacks, id)
	}
	return nil
}

// emit passes a hint on.
func (d *connection) emit(dom *virt.Domain, why string) {
	if name, err := dom.GetName(); err == nil {
		d.hints.Tell(domain.Event{Kind: domain.Changed, Domain: name, Why: why})
	}
}

// changed emits a hint that the devices of the domain may have changed.
func (d *connection) changed(dom *virt.Domain, why string) {
	if name, err := dom.GetName(); err == nil {
		d.names.forget(name)
	}
	d.emit(dom, why)
}

// answered records that the guest has released a device, or refused to.
func (d *connection) answered(dom *virt.Domain, alias string) {
	if name, err := dom.GetName(); err == nil {
		d.asked.end(deviceKey{name, alias})
	}
}

// lifeEvents register for events about a whole domain.
func (d *connection) lifeEvents(c *virt.Connect) []func() (int, error) {
	return []func() (int, error){
		func() (int, error) {
			return c.DomainEventLifecycleRegister(nil, func(_ *virt.Connect, dom *virt.Domain, e *virt.DomainEventLifecycle) {
				d.changed(dom, lifecycleName(e.Event))
			})
		},
		func() (int, error) {
			return c.DomainEventMetadataChangeRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventMetadataChange) {
				d.emit(dom, "MetadataChange")
			})
		},
		func() (int, error) {
			return c.DomainEventAgentLifecycleRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventAgentLifecycle) {
				d.emit(dom, "AgentLifecycle")
			})
		},
		func() (int, error) {
			return c.DomainEventJobCompletedRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventJobCompleted) {
				d.emit(dom, "JobCompleted")
			})
		},
	}
}

// deviceEvents register for events about the devices of a domain.
func (d *connection) deviceEvents(c *virt.Connect) []func() (int, error) {
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
				d.emit(dom, "DeviceRemovalFailed")
			})
		},
		func() (int, error) {
			return c.DomainEventIOErrorReasonRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventIOErrorReason) {
				d.emit(dom, "IOError")
			})
		},
		func() (int, error) {
			return c.DomainEventMemoryDeviceSizeChangeRegister(nil, func(_ *virt.Connect, dom *virt.Domain, _ *virt.DomainEventMemoryDeviceSizeChange) {
				d.emit(dom, "MemoryDeviceSizeChange")
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
