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
	// MemoryScheme begins the URI of the in-memory hypervisor, which runs no real guests.
	MemoryScheme = "memory:"
	// maxMigrationDir leaves room for the name of a socket, whose path may have 107 bytes.
	maxMigrationDir = 50
	// kubeletPlugins is where kubelets have the sockets of device plugins.
	kubeletPlugins = "/var/lib/kubelet/device-plugins"
	// HostRoot is where an agent in a container sees the file system of its node, if it is in
	// the node's PID namespace.
	HostRoot = "/proc/1/root"
)

// NodeConfiguration is what "refdaemon node" runs with. A file that serves many nodes
// leaves out NodeName and Address, whose flags then are given in each Pod.
type NodeConfiguration struct {
	metav1.TypeMeta `json:",inline"`
	Daemon          `json:",inline"`
	// NodeName is the name of the Kubernetes node that the agent serves. Required.
	// Takes effect at the next start.
	NodeName string `json:"nodeName"`
	// Address is the IP address at which other nodes' agents reach this one. Required.
	// Takes effect at the next start.
	Address string `json:"address"`
	// Hypervisor is the URI of a libvirt connection, or memory: for one that runs no real guests.
	// Default qemu:///system.
	// Takes effect at the next start.
	Hypervisor string `json:"hypervisor"`
	// StateDir is the folder of guests' files, the same on every node and private to each.
	// Default /var/lib/virtloom.
	// Takes effect at the next start.
	StateDir string `json:"stateDir"`
	// Images is a folder with an OCI image layout, of the images of containerDisk and kernelBoot
	// volumes. Default none.
	// Takes effect at the next start.
	Images string `json:"images"`
	// Bridge is the host's bridge that guests' interfaces are plugged into. Default br0.
	// Takes effect at the next start.
	Bridge string `json:"bridge"`
	// Launchers is the folder of the kubelet's Pods, where each guest runs in the launcher of its Pod.
	// Empty, the default, runs all in Hypervisor.
	// Takes effect at the next start.
	Launchers string `json:"launchers"`
	// Cgroups is where the node's cgroup v2 is mounted, for launchers that may open the devices of
	// their guests and no others. Empty, the default, leaves that to who made the containers.
	// Takes effect at the next start.
	Cgroups string `json:"cgroups"`
	// DevicePlugins is the folder of the kubelet's device plugins; empty, the default, offers none.
	// Takes effect at the next start.
	DevicePlugins string `json:"devicePlugins"`
	// Heartbeat is the shortest time between two signs of life of the node. Default 1m, as KubeVirt's.
	// Takes effect at the next start.
	Heartbeat metav1.Duration `json:"heartbeat"`
	// ProgressEvery is the least time between two reports on how far a live migration has come.
	// Takes effect at the next start.
	ProgressEvery metav1.Duration `json:"progressEvery"`
	// Drain is for how long an agent that is told to end carries on with migrations under way before
	// it aborts them. The Pod's grace period has to be a minute more.
	// Takes effect at the next start.
	Drain metav1.Duration `json:"drain"`
	// Migration is how guests get to other nodes.
	Migration NodeMigration `json:"migration"`
}

// NodeMigration is how guests get to other nodes: over mutual TLS, by three files of
// certificates, or unprotected.
type NodeMigration struct {
	// Cert is a file with the certificate that the node shows others, with the node's name as DNS
	// name; read again when it changes.
	// Takes effect at the next start.
	Cert string `json:"cert"`
	// Key is a file with its private key.
	// Takes effect at the next start.
	Key string `json:"key"`
	// CA is a file with the certificates of the authorities that certify other nodes.
	// Takes effect at the next start.
	CA string `json:"ca"`
	// Insecure moves guests over plain TCP, for a network that protects its traffic by itself.
	// Default false.
	// Takes effect at the next start.
	Insecure bool `json:"insecure"`
	// InsecureSharedHypervisor takes guests of other nodes into the node's own libvirt, where there
	// are no launchers: whoever controls another node can then become root on this one. It is for
	// tests, and for nodes that trust each other with everything. Default false.
	// Takes effect at the next start.
	InsecureSharedHypervisor bool `json:"insecureSharedHypervisor"`
	// Dir is the folder for the sockets of migrations, the same on every node and private to each;
	// an absolute path of 50 bytes at most. Default /var/run/kubevirt/migrationproxy, as KubeVirt's.
	// Takes effect at the next start.
	Dir string `json:"dir"`
}

// NewNode returns the defaults.
func NewNode() *NodeConfiguration {
	c := &NodeConfiguration{
		Daemon: newDaemon(), Hypervisor: "qemu:///system", StateDir: "/var/lib/virtloom", Bridge: "br0",
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
		perNode("nodeName", "node-name", "`name` of the Kubernetes node this agent serves (required)", text(&c.NodeName)),
		perNode("address", "address", "IP `address` at which other nodes' agents reach this one (required)", text(&c.Address)),
		option("hypervisor", "hypervisor", "libvirt connection `URI`, or "+MemoryScheme+" for one that runs no real guests", text(&c.Hypervisor)),
		option("stateDir", "state-dir", "`directory` for guests' files, the same on every node and private to each", text(&c.StateDir)),
		option("images", "images", "OCI image layout `directory` with the images of containerDisk and kernelBoot volumes", text(&c.Images)),
		option("bridge", "bridge", "host `bridge` that guests' interfaces are plugged into; a guest waits until it is there and up, where this agent and libvirt see the same network", text(&c.Bridge)),
		option("launchers", "launchers", "`directory` of the kubelet's Pods, usually "+launcher.DefaultPods+": each guest runs in the launcher of its Pod, which has --state-dir at the same path, and --hypervisor describes the node; volumes that are plugged in, and without --images those of containers, are mounted into the Pods' folders there, which therefore is a shared mount; empty runs all in --hypervisor", text(&c.Launchers)),
		option("cgroups", "cgroups", "`directory` where the node's cgroup v2 is mounted, for an agent in a container "+HostRoot+"/sys/fs/cgroup: the containers of launchers may open the devices of their guests, and no others; empty leaves that to who made the containers; needs --launchers", text(&c.Cgroups)),
		option("devicePlugins", "device-plugins", "`directory` of the kubelet's device plugins, usually "+kubeletPlugins+": kvm, tun and vhost-net of devices.kubevirt.io are offered there, and the node takes no guests until the kubelet knows them; empty offers none", text(&c.DevicePlugins)),
		option("heartbeat", "heartbeat", "shortest `time` between two signs of life of this node", duration(&c.Heartbeat)),
		option("progressEvery", "progress-every", "least `time` between two reports on how far a live migration has come", duration(&c.ProgressEvery)),
		option("drain", "drain", "`time` for which an agent that is told to end carries on with migrations under way, before it aborts them; give the Pod a minute more", duration(&c.Drain)),
		option("migration.cert", "migration-cert", "`file` with the certificate that this node shows other nodes, with the node's name as DNS name; read again when it changes", text(&m.Cert)),
		option("migration.key", "migration-key", "`file` with its private key", text(&m.Key)),
		option("migration.ca", "migration-ca", "`file` with the certificates of the authorities that certify other nodes", text(&m.CA)),
		option("migration.insecure", "insecure-migration", "move guests over plain TCP, for a network that protects its traffic by itself", boolean(&m.Insecure)),
		option("migration.insecureSharedHypervisor", "insecure-shared-hypervisor", "without --launchers: take guests of other nodes into this node's own libvirt, by which whoever controls another node can become root on this one; for tests", boolean(&m.InsecureSharedHypervisor)),
		option("migration.dir", "migration-dir", "`directory` for the sockets of migrations, the same on every node and private to each; it is made for the user that QEMU runs as, to whom one that is there already has to belong; its path may have 50 bytes", text(&m.Dir)),
	)
}

// Validate implements Configuration.
func (c *NodeConfiguration) Validate() field.ErrorList {
	errs := c.Daemon.validate()
	if c.NodeName == "" {
		errs = append(errs, field.Required(field.NewPath("nodeName"), "the name of the Kubernetes node this agent serves"))
	}
	switch _, err := netip.ParseAddr(c.Address); {
	case c.Address == "":
		errs = append(errs, field.Required(field.NewPath("address"), "the IP address at which other nodes' agents reach this one"))
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
			errs = append(errs, field.Invalid(field.NewPath(p.at), p.path, "is not an absolute path"))
		}
	}
	if c.Cgroups != "" && c.Launchers == "" {
		errs = append(errs, field.Forbidden(field.NewPath("cgroups"), "needs launchers (--launchers): guests that have no container share the devices of their hypervisor"))
	}
	return errs
}

func (c *NodeConfiguration) validateTimes() field.ErrorList {
	var errs field.ErrorList
	for _, d := range []struct {
		at, is string
		d      time.Duration
	}{
		{"heartbeat", "between two signs of life", c.Heartbeat.Duration}, {"progressEvery", "between two reports", c.ProgressEvery.Duration},
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
	if m.Insecure && m.Cert+m.Key+m.CA != "" {
		errs = append(errs, field.Forbidden(at.Child("insecure"),
			"needs no certificates: leave out migration.cert, key and ca (--migration-cert, --migration-key, --migration-ca), or it"))
	}
	for _, f := range []struct{ name, file, is string }{
		{"cert", m.Cert, "the certificate that this node shows other nodes"}, {"key", m.Key, "its private key"}, {"ca", m.CA, "who certifies other nodes"},
	} {
		if !m.Insecure && f.file == "" {
			errs = append(errs, field.Required(at.Child(f.name),
				"a file with "+f.is+" (a network that protects its traffic can do with migration.insecure, --insecure-migration)"))
		}
	}
	if !filepath.IsAbs(m.Dir) || len(m.Dir) > maxMigrationDir {
		errs = append(errs, field.Invalid(at.Child("dir"), m.Dir, fmt.Sprintf("is not an absolute path of %d bytes at most", maxMigrationDir)))
	}
	return errs
}
