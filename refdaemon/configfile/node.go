// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/nodectrl"
)

// KindNode is the kind of [NodeConfiguration].
const KindNode = "NodeConfiguration"

const (
	// MemoryScheme is the scheme of the in-memory hypervisor, which runs no real guests.
	MemoryScheme = "memory:"
	// maxMigrationDir leaves room for the name of a socket, whose path is limited to 107 bytes.
	maxMigrationDir = 50
	// kubeletPlugins is the kubelet's directory of device plugin sockets.
	kubeletPlugins = "/var/lib/kubelet/device-plugins"
	// HostRoot is the node's file system as seen by an agent in a container, if it shares the
	// node's PID namespace.
	HostRoot = "/proc/1/root"
)

// NodeConfiguration configures "refdaemon node". A file for several nodes leaves out
// NodeName and Address, whose flags are then given in each Pod.
type NodeConfiguration struct {
	metav1.TypeMeta `json:",inline"`
	Daemon          `json:",inline"`
	// NodeName is the name of the agent's Kubernetes node. Required.
	// Takes effect at the next start.
	NodeName string `json:"nodeName"`
	// Address is the IP address at which the agents of other nodes reach this one. Required.
	// Takes effect at the next start.
	Address string `json:"address"`
	// Hypervisor is the URI of a libvirt connection, or memory: for the in-memory hypervisor.
	// Default qemu:///system.
	// Takes effect at the next start.
	Hypervisor string `json:"hypervisor"`
	// StateDir is the directory of VMIs' files, with the same path on every node and private to each.
	// Default /var/lib/virtloom.
	// Takes effect at the next start.
	StateDir string `json:"stateDir"`
	// Images is an OCI image layout directory with the images of containerDisk and kernelBoot
	// volumes. Default none.
	// Takes effect at the next start.
	Images string `json:"images"`
	// Bridge is the host bridge that guest interfaces are connected to. Default br0; with Launchers
	// none, and each interface is connected to the network of its launcher Pod. With Launchers, a
	// bridge is only for launchers that share the network of the node, in tests.
	// Takes effect at the next start.
	Bridge string `json:"bridge"`
	// Launchers is the kubelet's directory of Pods, if each VMI runs in its launcher Pod. Empty, the
	// default, runs all in Hypervisor.
	// Takes effect at the next start.
	Launchers string `json:"launchers"`
	// Cgroups is the mount point of the node's cgroups, to restrict launchers to the devices of their
	// VMIs. Empty, the default, leaves device access to the container runtime.
	// Takes effect at the next start.
	Cgroups string `json:"cgroups"`
	// DevicePlugins is the kubelet's directory of device plugins; empty, the default, registers none.
	// Takes effect at the next start.
	DevicePlugins string `json:"devicePlugins"`
	// Heartbeat is the minimum interval between two heartbeats of the node. Default 1m, as KubeVirt's.
	// Takes effect at the next start.
	Heartbeat metav1.Duration `json:"heartbeat"`
	// ProgressEvery is the minimum interval between two progress reports of a live migration.
	// Takes effect at the next start.
	ProgressEvery metav1.Duration `json:"progressEvery"`
	// Drain is the time for which a terminating agent continues migrations under way before it aborts
	// them. The Pod's grace period must be a minute longer.
	// Takes effect at the next start.
	Drain metav1.Duration `json:"drain"`
	// Migration configures the transport of migrations.
	Migration NodeMigration `json:"migration"`
}

// NodeMigration configures the transport of migrations: mutual TLS with a certificate that the agent
// requests, or with three certificate files, or plain TCP.
type NodeMigration struct {
	// Authorities is NAMESPACE/NAME of the ConfigMap in which the controller publishes the authorities of node
	// agents. The agent then requests its certificate from the controller, with the token of its Pod, and keeps
	// it current; without files. Default none.
	// Takes effect at the next start.
	Authorities string `json:"authorities"`
	// Cert is a file with the certificate that the node presents to others, with the node's name as
	// DNS name; reloaded when it changes.
	// Takes effect at the next start.
	Cert string `json:"cert"`
	// Key is a file with its private key.
	// Takes effect at the next start.
	Key string `json:"key"`
	// CA is a file with the certificates of the authorities that other nodes' certificates are verified by.
	// Takes effect at the next start.
	CA string `json:"ca"`
	// Insecure migrates over plain TCP, for a network that protects its traffic by itself.
	// Default false.
	// Takes effect at the next start.
	Insecure bool `json:"insecure"`
	// InsecureSharedHypervisor accepts migrations into the node's own libvirt, without launcher Pods:
	// an attacker in control of another node can then become root on this one. It is for tests, and
	// for nodes that trust each other with everything. Default false.
	// Takes effect at the next start.
	InsecureSharedHypervisor bool `json:"insecureSharedHypervisor"`
	// Dir is the directory of migration sockets, with the same path on every node and private to each;
	// an absolute path of 50 bytes at most. Default /var/run/kubevirt/migrationproxy, as KubeVirt's.
	// Takes effect at the next start.
	Dir string `json:"dir"`
}

// defaultBridge is the bridge without launchers.
const defaultBridge = "br0"

// HostBridge returns the bridge on the node that interfaces are connected to; empty if that is the network
// of their launcher Pods.
func (c *NodeConfiguration) HostBridge() string {
	if c.Bridge == "" && c.Launchers == "" {
		return defaultBridge
	}
	return c.Bridge
}

// NewNode returns the defaults.
func NewNode() *NodeConfiguration {
	c := &NodeConfiguration{
		Daemon: newDaemon(), Hypervisor: "qemu:///system", StateDir: "/var/lib/virtloom",
		Heartbeat:     metav1.Duration{Duration: nodectrl.DefaultHeartbeat},
		ProgressEvery: metav1.Duration{Duration: domainctrl.DefaultProgressEvery},
		Drain:         metav1.Duration{Duration: domainctrl.DefaultDrainWithin},
		Migration:     NodeMigration{Dir: libvirt.DefaultMigrationDir},
	}
	c.APIVersion, c.Kind = APIVersion, KindNode
	return c
}

func (*NodeConfiguration) kind() string { return KindNode }

// Options implements Configuration.
func (c *NodeConfiguration) Options() []Option {
	m := &c.Migration
	return append(c.Daemon.options(),
		perNode("nodeName", "node-name", "`name` of the agent's Kubernetes node (required)", textValue(&c.NodeName)),
		perNode("address", "address", "IP `address` at which the agents of other nodes reach this one (required)", textValue(&c.Address)),
		option("hypervisor", "hypervisor", "libvirt connection `URI`, or "+MemoryScheme+" for the in-memory hypervisor", textValue(&c.Hypervisor)),
		option("stateDir", "state-dir", "`directory` of VMIs' files, with the same path on every node and private to each", textValue(&c.StateDir)),
		option("images", "images", "OCI image layout `directory` with the images of containerDisk and kernelBoot volumes", textValue(&c.Images)),
		option("bridge", "bridge", "host `bridge` that guest interfaces are connected to; where this agent and libvirt share a network namespace, a VMI waits until it exists and is up; by default "+defaultBridge+", and with --launchers none: interfaces are connected to the network of their launcher Pod", textValue(&c.Bridge)),
		option("launchers", "launchers", "kubelet's `directory` of Pods, usually "+launcher.DefaultPods+": each VMI runs in its launcher Pod, and --hypervisor describes the node; a VMI's files, claims and images are those of its Pod, or, with --images, in --state-dir, at the same path in the Pod; container disks and hotplugged volumes are mounted into the Pods' directories there, which must be a shared mount; empty runs all in --hypervisor", textValue(&c.Launchers)),
		option("cgroups", "cgroups", "mount point `directory` of the node's cgroups, of version 2 or 1, for an agent in a container "+HostRoot+"/sys/fs/cgroup, to restrict launchers to the devices of their VMIs; empty leaves device access to the container runtime; requires --launchers", textValue(&c.Cgroups)),
		option("devicePlugins", "device-plugins", "kubelet's `directory` of device plugins, usually "+kubeletPlugins+": kvm, tun and vhost-net of devices.kubevirt.io are registered there, and the node is not schedulable for VMIs until they are; so are the host devices that the KubeVirt object permits; empty registers none", textValue(&c.DevicePlugins)),
		option("heartbeat", "heartbeat", "minimum `time` between two heartbeats of this node", duration(&c.Heartbeat)),
		option("progressEvery", "progress-every", "minimum `time` between two progress reports of a live migration", duration(&c.ProgressEvery)),
		option("drain", "drain", "`time` for which a terminating agent continues migrations under way before it aborts them; the Pod's grace period must be a minute longer", duration(&c.Drain)),
		option("migration.authorities", "migration-authorities", "`NAMESPACE/NAME` of the ConfigMap with the authorities of node agents that the controller publishes: this agent requests its certificate from the controller, with the token of its Pod, and needs no files", textValue(&m.Authorities)),
		option("migration.cert", "migration-cert", "`file` with the certificate that this node presents to others, with the node's name as DNS name; reloaded when it changes", textValue(&m.Cert)),
		option("migration.key", "migration-key", "`file` with its private key", textValue(&m.Key)),
		option("migration.ca", "migration-ca", "`file` with the certificates of the authorities that other nodes' certificates are verified by", textValue(&m.CA)),
		option("migration.insecure", "insecure-migration", "migrate over plain TCP, for a network that protects its traffic by itself", boolean(&m.Insecure)),
		option("migration.insecureSharedHypervisor", "insecure-shared-hypervisor", "without --launchers: accept migrations into this node's own libvirt, by which an attacker in control of another node can become root on this one; for tests", boolean(&m.InsecureSharedHypervisor)),
		option("migration.dir", "migration-dir", "`directory` of migration sockets, with the same path on every node and private to each; it is created for the user that QEMU runs as, who must own an existing one; its path is limited to 50 bytes", textValue(&m.Dir)),
	)
}

// Validate implements Configuration.
func (c *NodeConfiguration) Validate() field.ErrorList {
	errs := c.Daemon.validate()
	if c.NodeName == "" {
		errs = append(errs, field.Required(field.NewPath("nodeName"), "the name of the agent's Kubernetes node"))
	}
	switch _, err := netip.ParseAddr(c.Address); {
	case c.Address == "":
		errs = append(errs, field.Required(field.NewPath("address"), "the IP address at which the agents of other nodes reach this one"))
	case err != nil:
		errs = append(errs, field.Invalid(field.NewPath("address"), c.Address, "is not an IP address; ports are chosen by the agents"))
	}
	if c.Hypervisor == "" {
		errs = append(errs, field.Required(field.NewPath("hypervisor"), "the URI of a libvirt connection, or "+MemoryScheme))
	}
	errs = append(errs, c.validatePaths()...)
	errs = append(errs, c.validateTimes()...)
	return append(errs, c.Migration.validate(field.NewPath("migration"))...)
}

func (c *NodeConfiguration) validatePaths() field.ErrorList {
	var errs field.ErrorList
	for _, p := range []struct{ at, path string }{
		{"stateDir", c.StateDir}, {"launchers", c.Launchers}, {"cgroups", c.Cgroups}, {"devicePlugins", c.DevicePlugins},
	} {
		if !filepath.IsAbs(p.path) && (p.path != "" || p.at == "stateDir") {
			errs = append(errs, field.Invalid(field.NewPath(p.at), p.path, "must be an absolute path"))
		}
	}
	if c.Cgroups != "" && c.Launchers == "" {
		errs = append(errs, field.Forbidden(field.NewPath("cgroups"), "requires launchers (--launchers): VMIs without a container share the devices of their hypervisor"))
	}
	return errs
}

func (c *NodeConfiguration) validateTimes() field.ErrorList {
	var errs field.ErrorList
	for _, d := range []struct {
		at, is string
		d      time.Duration
	}{
		{"heartbeat", "between two heartbeats", c.Heartbeat.Duration}, {"progressEvery", "between two reports", c.ProgressEvery.Duration},
		{"drain", "to wait for migrations", c.Drain.Duration},
	} {
		if d.d < 0 {
			errs = append(errs, field.Invalid(field.NewPath(d.at), short(d.d), "is not a time "+d.is))
		}
	}
	return errs
}

func (m *NodeMigration) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Insecure && m.Cert+m.Key+m.CA+m.Authorities != "" {
		errs = append(errs, field.Forbidden(at.Child("insecure"),
			"and certificates exclude each other: leave out migration.cert, key, ca and authorities (--migration-cert, --migration-key, --migration-ca, --migration-authorities), or it"))
	}
	if m.Authorities != "" {
		errs = append(errs, m.validateRequest(at.Child("authorities"))...)
	}
	for _, f := range []struct{ name, file, is string }{
		{"cert", m.Cert, "the certificate that this node presents to others"}, {"key", m.Key, "its private key"}, {"ca", m.CA, "the authorities of other nodes' certificates"},
	} {
		if !m.Insecure && m.Authorities == "" && f.file == "" {
			errs = append(errs, field.Required(at.Child(f.name),
				"a file with "+f.is+" (or set migration.authorities, --migration-authorities, to request it from the controller; or migration.insecure, --insecure-migration, if the network protects its traffic)"))
		}
	}
	if !filepath.IsAbs(m.Dir) || len(m.Dir) > maxMigrationDir {
		errs = append(errs, field.Invalid(at.Child("dir"), m.Dir, fmt.Sprintf("must be an absolute path of %d bytes at most", maxMigrationDir)))
	}
	return errs
}

// validateRequest validates the settings of a requested certificate.
func (m *NodeMigration) validateRequest(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Cert+m.Key+m.CA != "" {
		errs = append(errs, field.Forbidden(at, "and certificate files exclude each other: leave out migration.cert, key and ca (--migration-cert, --migration-key, --migration-ca), or it"))
	}
	if !isKey(m.Authorities) {
		errs = append(errs, field.Invalid(at, m.Authorities, "is not NAMESPACE/NAME of a ConfigMap"))
	}
	return errs
}
