// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"path/filepath"

	"libvirt.org/go/libvirtxml"
)

// Files of the guest in [Facts.Dir], by the names KubeVirt gives them.
const (
	// SerialSocket is where the serial console can be connected to.
	SerialSocket = "virt-serial0"
	// SerialLog is everything the guest ever wrote to its serial console.
	SerialLog = "virt-serial0-log"
	// VNCSocket is where the display can be connected to.
	VNCSocket = "virt-vnc"
	// MetricsSocket is where metrics of the host are served to the guest.
	MetricsSocket = "downwardmetrics.sock"
	// USBSocket is the beginning of the names of the sockets through which clients
	// hand USB devices to the guest; the number of the port follows.
	USBSocket = "virt-usbredir-"
	// FirmwareLog is what the firmware wrote to its debug port.
	FirmwareLog = "firmware.log"
)

// maxSocketPath is the length of a Unix socket's address in Linux, without the
// final zero.
const maxSocketPath = 107

// Names of the channels between guest and host.
const (
	// AgentChannel is the name of the guest agent's channel.
	AgentChannel = "org.qemu.guest_agent.0"
	// MetricsChannel is the name of the channel for metrics of the host.
	MetricsChannel = "org.github.vhostmd.1"
)

// filePath returns the path of a file in the guest's directory.
func (c *Conversion) filePath(name string) (string, error) {
	if !filepath.IsAbs(c.Facts.Dir) {
		return "", &Error{Object: "node", Reason: fmt.Sprintf("no absolute directory for guests but %q", c.Facts.Dir),
			Remedy: "configure one", Err: ErrInvalid}
	}
	return filepath.Join(c.Facts.Dir, name), nil
}

// socketPath returns the path of a socket in the guest's directory.
func (c *Conversion) socketPath(name string) (string, error) {
	p, err := c.filePath(name)
	if err != nil {
		return "", err
	}
	return p, checkSocket(p)
}

// checkSocket refuses paths that are too long for the address of a socket.
func checkSocket(path string) error {
	if len(path) <= maxSocketPath {
		return nil
	}
	return &Error{Object: "node", Reason: fmt.Sprintf("path of a socket is longer than %d bytes: %s", maxSocketPath, path),
		Remedy: "configure a shorter state directory", Err: ErrInvalid}
}

// console adds the channels of the guest agent and of the host's metrics, and the
// serial console. The console's socket is opened by QEMU and its log written by
// QEMU, so both work whoever listens: after a restart of the agent as after a live
// migration, where the same path is opened on the other node. libvirt adds the
// console that goes with the first serial port by itself.
func console(c *Conversion) error {
	if err := channels(c); err != nil {
		return err
	}
	in := &c.VMI.Spec.Domain.Devices
	if isFalse(in.AutoattachSerialConsole) {
		return nil
	}
	path, err := c.socketPath(SerialSocket)
	if err != nil {
		return err
	}
	serial := libvirtxml.DomainSerial{
		Source: unixSocket(path),
		Target: &libvirtxml.DomainSerialTarget{Type: c.arch.serialTarget, Port: ptr(uint(0))},
		Alias:  alias("serial0"),
	}
	// The guest's word counts before that of the cluster.
	logged := !c.Facts.Cluster.NoSerialConsoleLog
	if in.LogSerialConsole != nil {
		logged = *in.LogSerialConsole
	}
	if logged {
		serial.Log = &libvirtxml.DomainChardevLog{File: filepath.Join(c.Facts.Dir, SerialLog), Append: "on"}
	}
	c.Domain.Devices.Serials = append(c.Domain.Devices.Serials, serial)
	return nil
}

// channels adds the channel of the guest agent, whose socket is libvirt's own, and
// that of the host's metrics.
func channels(c *Conversion) error {
	add := func(name string, source *libvirtxml.DomainChardevSource) {
		c.Domain.Devices.Channels = append(c.Domain.Devices.Channels, libvirtxml.DomainChannel{
			Source: source,
			Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: name}},
		})
	}
	add(AgentChannel, &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}})
	if c.VMI.Spec.Domain.Devices.DownwardMetrics == nil {
		return nil
	}
	path, err := c.socketPath(MetricsSocket)
	if err == nil {
		add(MetricsChannel, unixSocket(path))
	}
	return err
}

// unixSocket is a socket that QEMU opens for others to connect to.
func unixSocket(path string) *libvirtxml.DomainChardevSource {
	return &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind", Path: path}}
}
