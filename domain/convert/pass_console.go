// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"path/filepath"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Files of a VMI in [Facts.Dir], named as in KubeVirt.
const (
	// SerialSocket is the socket of the serial console.
	SerialSocket = "virt-serial0"
	// SerialLog is the log of the output of the serial console.
	SerialLog = "virt-serial0-log"
	// VNCSocket is the socket of the display.
	VNCSocket = "virt-vnc"
	// MetricsSocket is the socket that serves metrics of the host to the guest.
	MetricsSocket = "downwardmetrics.sock"
	// USBSocket is the prefix of the sockets through which clients redirect USB devices; the port
	// number follows.
	USBSocket = "virt-usbredir-"
	// FirmwareLog is the output of the firmware's debug port.
	FirmwareLog = "firmware.log"
)

// maxSocketPath is the maximum length of the path of a Unix socket in Linux, without the
// terminating zero.
const maxSocketPath = 107

// Names of channels between guest and host.
const (
	// AgentChannel is the channel of the guest agent.
	AgentChannel = "org.qemu.guest_agent.0"
	// MetricsChannel is the channel for metrics of the host.
	MetricsChannel = "org.github.vhostmd.1"
)

// filePath returns the path of a file in the VMI's directory.
func (c *Conversion) filePath(name string) (string, error) {
	if !filepath.IsAbs(c.Facts.Dir) {
		return "", &Error{Object: "node", Reason: fmt.Sprintf("the directory for VMIs is not absolute: %q", c.Facts.Dir),
			Remedy: "configure an absolute path", Err: domain.ErrInvalid}
	}
	return filepath.Join(c.Facts.Dir, name), nil
}

// socketPath returns the path of a socket in the VMI's directory.
func (c *Conversion) socketPath(name string) (string, error) {
	p, err := c.filePath(name)
	if err != nil {
		return "", err
	}
	return p, checkSocket(p)
}

// checkSocket rejects paths that are too long for a Unix socket.
func checkSocket(path string) error {
	if len(path) <= maxSocketPath {
		return nil
	}
	return &Error{Object: "node", Reason: fmt.Sprintf("socket path exceeds %d bytes: %s", maxSocketPath, path),
		Remedy: "configure a shorter state directory", Err: domain.ErrInvalid}
}

// console adds the serial console and the channels of the guest agent and of the host's metrics.
// QEMU opens the console's socket and writes its log, so both keep working when the node agent
// restarts and, at the same path on the other node, after a live migration. libvirt itself adds the
// console element for the first serial port.
func console(c *Conversion) error {
	if err := channels(c); err != nil {
		return err
	}
	in := &c.VMI.Spec.Domain.Devices
	if specIsFalse(in.AutoattachSerialConsole) {
		return nil
	}
	path, err := c.socketPath(SerialSocket)
	if err != nil {
		return err
	}
	serial := libvirtxml.DomainSerial{
		Source: unixSocket(path),
		Target: &libvirtxml.DomainSerialTarget{Type: c.arch.serialTarget, Port: new(uint(0))},
		Alias:  xmlspec.Alias("serial0"),
	}
	// The setting of the VMI takes precedence over that of the cluster.
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

// channels adds the channel of the guest agent, whose socket libvirt manages, and that of the
// host's metrics.
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

// unixSocket returns a socket that QEMU opens for clients.
func unixSocket(path string) *libvirtxml.DomainChardevSource {
	return &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind", Path: path}}
}
