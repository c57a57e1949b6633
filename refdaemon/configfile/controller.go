// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/virtloom/virtloom/vmi"
)

// KindController is the kind of [ControllerConfiguration].
const KindController = "ControllerConfiguration"

// DefaultLauncherImage is the image of the KubeVirt release whose API this is built with.
const DefaultLauncherImage = "quay.io/kubevirt/virt-launcher:v1.9.0"

// ControllerConfiguration configures "refdaemon controller". Settings of KubeVirt's own
// object are not part of it: see spec.configuration of kind KubeVirt.
type ControllerConfiguration struct {
	metav1.TypeMeta `json:",inline"`
	Daemon          `json:",inline"`
	// LeaderElection makes one of several replicas lead.
	LeaderElection LeaderElection `json:"leaderElection"`
	// LauncherImage is the image of launcher Pods. Defaults to that of the KubeVirt release whose
	// API virtloom is built with.
	// Takes effect at the next start.
	LauncherImage string `json:"launcherImage"`
	// SidecarShimImage is the image of hook sidecars without one, such as those with a script from
	// a ConfigMap. Default: sidecar-shim of the launcher image's registry, prefix and tag.
	// Takes effect at the next start.
	SidecarShimImage string `json:"sidecarShimImage"`
	// NodeSilentAfter is the time without a heartbeat after which the VMIs of a node count as lost.
	// Default 5m, as KubeVirt's.
	// Takes effect at the next start.
	NodeSilentAfter metav1.Duration `json:"nodeSilentAfter"`
	// OutOfServiceTaint makes the taint node.kubernetes.io/out-of-service on an unresponsive Node that is
	// not ready confirm that the machine is off: its VMIs then fail. Default true.
	// Takes effect at the next start.
	OutOfServiceTaint bool `json:"outOfServiceTaint"`
	// AdditionalLauncherLabelsSync are keys of labels that are synced from a VMI to its Pod; a key may
	// end in *. Default none. KubeVirt's option of that name.
	// Takes effect at the next start.
	AdditionalLauncherLabelsSync []string `json:"additionalLauncherLabelsSync"`
	// AdditionalLauncherAnnotationsSync are the same keys of annotations. Default none.
	// Takes effect at the next start.
	AdditionalLauncherAnnotationsSync []string `json:"additionalLauncherAnnotationsSync"`
	// VirtualMachines makes this process reconcile VirtualMachines as well, unless another controller does.
	// Default true.
	// Takes effect at the next start.
	VirtualMachines bool `json:"virtualMachines"`
	// DeletionGuard makes the API server refuse to delete the daemons, definitions and rights while VMIs exist. Default false.
	// Takes effect at the next start.
	DeletionGuard bool `json:"deletionGuard"`
	// Webhooks configures the admission webhooks.
	Webhooks Webhooks `json:"webhooks"`
	// NodeCertificates configures the authority that signs the certificates of node agents.
	NodeCertificates NodeCertificates `json:"nodeCertificates"`
	// Migrations holds the migration settings that KubeVirt's configuration has no field for.
	Migrations Migrations `json:"migrations"`
}

// LeaderElection makes one of several replicas lead at a time. The others keep their
// caches synced.
type LeaderElection struct {
	// Enabled may be false only with a single replica. Default true.
	// Takes effect at the next start.
	Enabled bool `json:"enabled"`
	// Namespace is that of the lease; empty, the default, is the Pod's own.
	// Takes effect at the next start.
	Namespace string `json:"namespace"`
}

// Migrations are the migration settings that KubeVirt's configuration has no field for;
// it has the limits per cluster and of outbound migrations per node.
type Migrations struct {
	// InboundPerNode is the maximum number of parallel inbound migrations per node. Default 2.
	// Takes effect at once; a lower number takes no slot away.
	InboundPerNode int `json:"inboundPerNode"`
	// Lent is the maximum number of migrations that lend their slots to others while their target Pod is
	// unschedulable, or its node has no free slot. Default 0: as many as the cluster has slots; -1 is none.
	// Takes effect at once.
	Lent int `json:"lent"`
	// BandwidthPerNode is how many bytes per second migrations may take from a node's network in each
	// direction, such as 1Gi. Default 0: no budget.
	// Takes effect at once.
	BandwidthPerNode resource.Quantity `json:"bandwidthPerNode"`
	// AgeAfter is the time after which a pending migration counts as of the next higher priority;
	// negative is never. Default 10m,
	// which is also what 0 means.
	// Takes effect at once.
	AgeAfter metav1.Duration `json:"ageAfter"`
	// Unfair makes priority and age alone decide, without turns between namespaces. Default false.
	// Takes effect at once.
	Unfair bool `json:"unfair"`
	// NamespaceWeights are the shares of namespaces among migrations of one priority, numbers above
	// 0. Default 1 for each that is not named.
	// Takes effect at once.
	NamespaceWeights map[string]float64 `json:"namespaceWeights"`
	// PendingTimeout is the time after which a pending migration fails; negative is
	// never. Default 24h, which is also what 0 means.
	// Takes effect at once, also for migrations that are already pending.
	PendingTimeout metav1.Duration `json:"pendingTimeout"`
	// AwaitNodes is the time to wait for new nodes when no existing one can ever match a target Pod. Default 0:
	// such a migration fails at once; negative leaves it to the scheduler, as an autoscaler needs it.
	// Takes effect at once.
	AwaitNodes metav1.Duration `json:"awaitNodes"`
	// Cooldown is the time after an automatic migration during which an update or a descheduler does not
	// migrate the VMI again; negative is none. Default 5m, which is also what 0 means.
	// Takes effect at once, for the next decision about a VMI.
	Cooldown metav1.Duration `json:"cooldown"`
	// AbortBackups makes critical migrations abort backups of their VMIs through KubeVirt's virt-api,
	// which must be installed; otherwise they wait for them. Default false.
	// Takes effect at the next start.
	AbortBackups bool `json:"abortBackups"`
	// Evacuate migrates VMIs away from drained nodes, and VMIs whose Pods are evicted. When disabled, a
	// VMI whose Pod must not be evicted waits for another component to migrate it.
	// Default true.
	// Takes effect at the next start.
	Evacuate bool `json:"evacuate"`
	// UpdateWorkloads migrates or evicts VMIs whose Pods are outdated, by the KubeVirt object's
	// spec.workloadUpdateStrategy. Default true.
	// Takes effect at the next start.
	UpdateWorkloads bool `json:"updateWorkloads"`
}

// NewController returns the defaults.
func NewController() *ControllerConfiguration {
	c := &ControllerConfiguration{
		Daemon: newDaemon(), LeaderElection: LeaderElection{Enabled: true}, LauncherImage: DefaultLauncherImage,
		NodeSilentAfter:   metav1.Duration{Duration: vmi.DefaultSilentAfter},
		OutOfServiceTaint: true, VirtualMachines: true,
		Webhooks:         Webhooks{Address: off, CertLifetime: metav1.Duration{Duration: defaultCertLifetime}},
		NodeCertificates: newNodeCertificates(),
		Migrations: Migrations{
			InboundPerNode: 2, AgeAfter: metav1.Duration{Duration: 10 * time.Minute}, PendingTimeout: metav1.Duration{Duration: 24 * time.Hour},
			Cooldown: metav1.Duration{Duration: 5 * time.Minute}, Evacuate: true, UpdateWorkloads: true,
		},
	}
	c.APIVersion, c.Kind = APIVersion, KindController
	return c
}

func (*ControllerConfiguration) kind() string { return KindController }

// Options implements Configuration.
func (c *ControllerConfiguration) Options() []Option {
	w := &c.Webhooks
	return append(append(c.Daemon.options(),
		option("leaderElection.enabled", "leader-elect", "enable leader election, so that one of several replicas acts at a time", boolean(&c.LeaderElection.Enabled)),
		option("leaderElection.namespace", "leader-elect-namespace", "`namespace` of the lease; empty is the Pod's own", textValue(&c.LeaderElection.Namespace)),
		option("launcherImage", "launcher-image", "`image` of launcher Pods", textValue(&c.LauncherImage)),
		option("sidecarShimImage", "sidecar-shim-image", "`image` of hook sidecars without one; empty is sidecar-shim beside the launcher's", textValue(&c.SidecarShimImage)),
		option("nodeSilentAfter", "node-silent-after", "`time` without a heartbeat after which the VMIs of a node count as lost", duration(&c.NodeSilentAfter)),
		option("outOfServiceTaint", "out-of-service-taint", "make the taint node.kubernetes.io/out-of-service on an unresponsive Node that is not ready confirm that the machine is off, which fails its VMIs", boolean(&c.OutOfServiceTaint)),
		option("additionalLauncherLabelsSync", "additional-launcher-labels-sync", "`keys` of labels, separated by commas, that are synced from a VMI to its Pod; a key may end in *", &list{to: &c.AdditionalLauncherLabelsSync, commas: true}),
		option("additionalLauncherAnnotationsSync", "additional-launcher-annotations-sync", "the same `keys` of annotations", &list{to: &c.AdditionalLauncherAnnotationsSync, commas: true}),
		option("virtualMachines", "virtual-machines", "reconcile VirtualMachines as well; disable it where another controller does", boolean(&c.VirtualMachines)),
		option("deletionGuard", "deletion-guard", "make the API server refuse to delete the daemons, definitions, namespaces and rights of virtloom's manifests while VMIs exist", boolean(&c.DeletionGuard)),
		option("webhooks.address", "webhook-address", "`address` of the webhooks that default and validate new VMIs and judge evictions of their Pods; 0 serves none", textValue(&w.Address)),
		option("webhooks.certDir", "webhook-cert-dir", "`directory` of tls.crt and tls.key for --webhook-address; reloaded when they change", textValue(&w.CertDir)),
		option("webhooks.certSecret", "webhook-cert-secret", "`NAMESPACE/NAME` of the Secret for the certificate of --webhook-address, which is issued, trusted by the API server and rotated without --webhook-cert-dir", textValue(&w.CertSecret)),
		option("webhooks.certLifetime", "webhook-cert-lifetime", "`time` for which certificates in --webhook-cert-secret are valid; they are rotated when a third of it is left", duration(&w.CertLifetime)),
		option("webhooks.trust", "webhook-trust", "`user`, or group:NAME, who may write reserved fields of VMIs, besides virtloom's and KubeVirt's own accounts; may be given several times", &list{to: &w.Trust}),
	), append(c.NodeCertificates.options(), c.Migrations.options()...)...)
}

// Observed returns the options that observers of a controller need as well: the access
// to the cluster, and the settings that decide about VirtualMachines, VMIs and migrations.
func (c *ControllerConfiguration) Observed() []Option {
	return append(selectOptions(c.Options(), "kubeconfig", "launcher-image", "sidecar-shim-image", "node-silent-after",
		"additional-launcher-labels-sync", "additional-launcher-annotations-sync", "virtual-machines"), selectOptions(c.Migrations.options(),
		"migrations-inbound-per-node", "migrations-lent", "migrations-bandwidth-per-node", "migrations-age-after", "migrations-unfair",
		"migrations-namespace-weights", "migrations-pending-timeout", "migrations-await-nodes", "migrations-cooldown", "migrations-abort-backups")...)
}

// Decisive returns the values of the observed options that a controller decides by, by flag.
func (c *ControllerConfiguration) Decisive() map[string]string {
	out := map[string]string{}
	for _, o := range c.Observed() {
		if o.Flag != "kubeconfig" {
			out[o.Flag] = o.Value.String()
		}
	}
	return out
}

func (m *Migrations) options() []Option {
	return []Option{
		live("migrations.inboundPerNode", "migrations-inbound-per-node", "maximum number of parallel inbound `migrations` per node; KubeVirt's configuration has the limits per cluster and of outbound migrations", integer(&m.InboundPerNode)),
		live("migrations.lent", "migrations-lent", "maximum number of `migrations` that lend their slots to others while their target Pod is unschedulable, or its node has no free slot; 0 is as many as the cluster has slots, -1 none", integer(&m.Lent)),
		live("migrations.bandwidthPerNode", "migrations-bandwidth-per-node", "`quantity` of bytes per second that migrations may take from a node's network in each direction, such as 1Gi; 0 is no budget", quantity(&m.BandwidthPerNode)),
		live("migrations.ageAfter", "migrations-age-after", "`time` after which a pending migration counts as of the next higher priority; negative is never", duration(&m.AgeAfter)),
		live("migrations.unfair", "migrations-unfair", "make priority and age alone decide, without turns between namespaces", boolean(&m.Unfair)),
		live("migrations.namespaceWeights", "migrations-namespace-weights", "`shares` of namespaces among migrations of one priority, as NAMESPACE=SHARE, separated by commas; all others have 1", &shares{to: &m.NamespaceWeights}),
		live("migrations.pendingTimeout", "migrations-pending-timeout", "`time` after which a pending migration fails; negative is never", duration(&m.PendingTimeout)),
		live("migrations.awaitNodes", "migrations-await-nodes", "`time` to wait for new nodes when no existing one can ever match a target Pod, instead of failing at once; negative leaves it to the scheduler, as an autoscaler of nodes needs it", duration(&m.AwaitNodes)),
		live("migrations.cooldown", "migrations-cooldown", "`time` after an automatic migration during which an update or a descheduler does not migrate the VMI again; negative is none", duration(&m.Cooldown)),
		option("migrations.abortBackups", "migrations-abort-backups", "make critical migrations abort backups of their VMIs through KubeVirt's virt-api, which must be installed; otherwise they wait for them", boolean(&m.AbortBackups)),
		option("migrations.evacuate", "evacuate", "migrate VMIs away from drained nodes, and VMIs whose Pods are evicted; when disabled, a VMI whose Pod must not be evicted waits for another component to migrate it", boolean(&m.Evacuate)),
		option("migrations.updateWorkloads", "update-workloads", "migrate or evict VMIs whose Pods are outdated, by the KubeVirt object's spec.workloadUpdateStrategy", boolean(&m.UpdateWorkloads)),
	}
}

// Validate implements Configuration.
func (c *ControllerConfiguration) Validate() field.ErrorList {
	errs := c.Daemon.validate()
	if c.LauncherImage == "" {
		errs = append(errs, field.Required(field.NewPath("launcherImage"), "the image of launcher Pods"))
	}
	if d := c.NodeSilentAfter; d.Duration < 0 {
		errs = append(errs, field.Invalid(field.NewPath("nodeSilentAfter"), short(d.Duration), "must not be negative"))
	}
	errs = append(errs, keys(field.NewPath("additionalLauncherLabelsSync"), c.AdditionalLauncherLabelsSync)...)
	errs = append(errs, keys(field.NewPath("additionalLauncherAnnotationsSync"), c.AdditionalLauncherAnnotationsSync)...)
	errs = append(errs, c.Webhooks.validate(field.NewPath("webhooks"))...)
	errs = append(errs, c.NodeCertificates.validate(field.NewPath("nodeCertificates"))...)
	return append(errs, c.Migrations.validate(field.NewPath("migrations"))...)
}

func keys(at *field.Path, all []string) field.ErrorList {
	var errs field.ErrorList
	for i, key := range all {
		if key == "" {
			errs = append(errs, field.Invalid(at.Index(i), key, "is not a valid key; remove it"))
		}
	}
	return errs
}

func (m *Migrations) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.InboundPerNode < 1 {
		errs = append(errs, field.Invalid(at.Child("inboundPerNode"), m.InboundPerNode, "must be 1 or more, otherwise no node accepts migrations"))
	}
	if m.Lent < -1 {
		errs = append(errs, field.Invalid(at.Child("lent"), m.Lent, "must be positive, 0 for as many as the cluster has slots, or -1 for none"))
	}
	if q := m.BandwidthPerNode; q.Sign() < 0 {
		errs = append(errs, field.Invalid(at.Child("bandwidthPerNode"), q.String(), "must be a quantity above 0, such as 500Mi, or 0 for no budget"))
	}
	for _, name := range slices.Sorted(maps.Keys(m.NamespaceWeights)) {
		if share := m.NamespaceWeights[name]; name == "" || !isShare(share) {
			errs = append(errs, field.Invalid(at.Child("namespaceWeights").Key(name), share, "is not the share of a namespace; each needs a name and a number above 0"))
		}
	}
	return errs
}
