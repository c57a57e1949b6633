// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// KVM is how [Driver.Host] decides whether KVM is usable.
type KVM string

// Values of [KVM].
const (
	// KVMAuto believes libvirt only where the host's CPU supports virtualization: on x86_64 the
	// flags vmx or svm are required. A device node /dev/kvm that can be opened proves nothing;
	// modules exist that offer one without hardware and cannot run a kernel.
	KVMAuto KVM = "auto"
	// KVMOn and KVMOff decide without detection.
	KVMOn  KVM = "on"
	KVMOff KVM = "off"
)

// DefaultMigrationDir is the folder for the sockets of migrations in KubeVirt's launchers.
const DefaultMigrationDir = "/var/run/kubevirt/migrationproxy"

// Options configure a [Driver]. The zero value is ready to use.
type Options struct {
	// KVM is how to decide whether KVM is usable; empty means KVMAuto.
	KVM KVM
	// KeepAliveInterval is the interval of probes of an idle connection, in whole seconds, and
	// KeepAliveCount the number of unanswered probes after which it counts as broken. Defaults: 2
	// s, 3.
	KeepAliveInterval time.Duration
	KeepAliveCount    uint
	// Operations is the number of concurrent operations. Default: 16.
	Operations int
	// ReconnectMin and ReconnectMax bound the pauses between attempts to
	// reconnect, which double each time. Defaults: 50 ms, 2 s.
	ReconnectMin, ReconnectMax time.Duration
	// AgentTimeout is the timeout of one answer of a guest agent, in whole seconds, if the context
	// of the call allows that long. Default: 60 s, which a guest may need to flush its disks.
	AgentTimeout time.Duration
	// Root is the directory below which this process sees the files of the daemon, for consoles:
	// /proc/PID/root of a daemon in another mount namespace. Default: /.
	Root string
	// MigrationDir is the folder, as the daemon and its domains see it, for the sockets of
	// migrations; see [Driver.MigrationSockets]. Keep it short: the path of a socket is limited to
	// 107 bytes. Default: [DefaultMigrationDir].
	MigrationDir string
	// Clock measures the time to the deadline of a context. Default: the system's.
	Clock clock.PassiveClock
	// Log receives lost and restored connections. Default: nothing.
	Log logr.Logger
}

func (o Options) withDefaults() Options {
	if o.KVM == "" {
		o.KVM = KVMAuto
	}
	if o.KeepAliveInterval < time.Second {
		o.KeepAliveInterval = 2 * time.Second
	}
	if o.KeepAliveCount == 0 {
		o.KeepAliveCount = 3
	}
	if o.Operations <= 0 {
		o.Operations = 16
	}
	if o.ReconnectMin <= 0 {
		o.ReconnectMin = 50 * time.Millisecond
	}
	if o.ReconnectMax < o.ReconnectMin {
		o.ReconnectMax = max(o.ReconnectMin, 2*time.Second)
	}
	if o.AgentTimeout < time.Second {
		o.AgentTimeout = time.Minute
	}
	if o.MigrationDir == "" {
		o.MigrationDir = DefaultMigrationDir
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	return o
}

// Error is an error of libvirt. Is and As find the sentinel of package domain that it means, if
// there is one.
type Error struct {
	// Op is the operation, Domain its domain; may be empty.
	Op, Domain string
	// Code is libvirt's number (virErrorNumber), Message its text.
	Code    int
	Message string
	// Err is the sentinel; may be nil.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	s := "libvirt: " + e.Op
	if e.Domain != "" {
		s += " " + e.Domain
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s + ": " + e.Message
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Err }
