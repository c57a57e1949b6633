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

// DefaultLauncherImage is that of the KubeVirt release whose API this is built with.
const DefaultLauncherImage = "quay.io/kubevirt/virt-launcher:v1.9.0"

// ControllerConfiguration is what "refdaemon controller" runs with. What KubeVirt's
// own object configures is not in it: see spec.configuration of kind KubeVirt.
type ControllerConfiguration struct {
	metav1.TypeMeta `json:",inline"`
	Daemon          `json:",inline"`
	// LeaderElection lets one of several replicas act.
	LeaderElection LeaderElection `json:"leaderElection"`
	// LauncherImage is the image of the guests' Pods. Defaults to that of the KubeVirt release whose
	// API virtloom is built with.
	// Takes effect at the next start.
	LauncherImage string `json:"launcherImage"`
	// SidecarShimImage is the image of hook sidecars that name none, such as those with a script from
	// a ConfigMap. Default: sidecar-shim of the launcher image's registry, prefix and tag.
	// Takes effect at the next start.
	SidecarShimImage string `json:"sidecarShimImage"`
	// NodeSilentAfter is the time without a heartbeat after which the guests of a node count as lost.
	// Default 5m, as KubeVirt's.
	// Takes effect at the next start.
	NodeSilentAfter metav1.Duration `json:"nodeSilentAfter"`
	// OutOfServiceTaint lets the taint node.kubernetes.io/out-of-service on a silent Node that is not
	// ready confirm that the machine is off: its guests then end. Default true.
	// Takes effect at the next start.
	OutOfServiceTaint bool `json:"outOfServiceTaint"`
	// AdditionalLauncherLabelsSync are keys of labels that a guest's Pod gets when the guest does; a
	// key may end in *. Default none. KubeVirt's option of that name.
	// Takes effect at the next start.
	AdditionalLauncherLabelsSync []string `json:"additionalLauncherLabelsSync"`
	// AdditionalLauncherAnnotationsSync are the same keys of annotations. Default none.
	// Takes effect at the next start.
	AdditionalLauncherAnnotationsSync []string `json:"additionalLauncherAnnotationsSync"`
	// Webhooks is what the API server may ask.
	Webhooks Webhooks `json:"webhooks"`
	// Migrations is what KubeVirt's configuration has no field for.
	Migrations Migrations `json:"migrations"`
}

// LeaderElection lets one of several replicas act at a time. The others have their
// caches ready for when they do.
type LeaderElection struct {
	// Enabled is to be switched off only where there is one replica. Default true.
	// Takes effect at the next start.
	Enabled bool `json:"enabled"`
	// Namespace is that of the lease; empty, the default, is the Pod's own.
	// Takes effect at the next start.
	Namespace string `json:"namespace"`
}

// Migrations is what can be set of migrations that KubeVirt's configuration, which
// has the limits of the cluster and of leaving a node, has no field for.
type Migrations struct {
	// InboundPerNode is how many migrations may enter a node at a time. Default 2.
	// Takes effect at once; a lower number takes no slot away.
	InboundPerNode int `json:"inboundPerNode"`
	// Lent is how many migrations may lend their slots to others while no node takes their target
	// Pod, or the node has no slot. Default 0: as many as the cluster has slots; -1 is none.
	// Takes effect at once.
	Lent int `json:"lent"`
	// BandwidthPerNode is how many bytes per second migrations may take from a node's network in each
	// direction, such as 1Gi. Default 0: no budget.
	// Takes effect at once.
	BandwidthPerNode resource.Quantity `json:"bandwidthPerNode"`
	// AgeAfter is the time after which a migration that waits counts as of the next higher priority;
	// negative is never. Default 10m,
	// which is also what 0 means.
	// Takes effect at once.
	AgeAfter metav1.Duration `json:"ageAfter"`
	// Unfair lets priority and age alone decide, without turns between namespaces. Default false.
	// Takes effect at once.
	Unfair bool `json:"unfair"`
	// NamespaceWeights are the shares of namespaces among migrations of one priority, numbers above
	// 0. Default 1 for each that is not named.
	// Takes effect at once.
	NamespaceWeights map[string]float64 `json:"namespaceWeights"`
	// PendingTimeout is the time after which a migration that could not start fails; negative is
	// never. Default 24h, which is also what 0 means.
	// Takes effect at once, also for migrations that wait already.
	PendingTimeout metav1.Duration `json:"pendingTimeout"`
	// AwaitNodes is how long to wait for nodes when none can ever match a target Pod. Default 0:
	// such a migration fails at once; negative leaves it to the scheduler, as an autoscaler needs it.
	// Takes effect at once.
	AwaitNodes metav1.Duration `json:"awaitNodes"`
	// Cooldown is how long a guest that was migrated by itself rests before an update or a descheduler
	// moves it again; negative is not at all. Default 5m, which is also what 0 means.
	// Takes effect at once, for the next decision about a guest.
	Cooldown metav1.Duration `json:"cooldown"`
	// AbortBackups lets critical migrations abort backups of their guests by KubeVirt's virt-api,
	// which has to be there; without, they wait for them. Default false.
	// Takes effect at the next start.
	AbortBackups bool `json:"abortBackups"`
	// Evacuate migrates guests away from nodes that are drained, and those that are asked to leave
	// theirs. Without, a guest whose Pod may not be evicted waits for somebody else to migrate it.
	// Default true.
	// Takes effect at the next start.
	Evacuate bool `json:"evacuate"`
	// UpdateWorkloads migrates or evicts guests whose Pods are outdated, as the KubeVirt object says
	// in spec.workloadUpdateStrategy. Default true.
	// Takes effect at the next start.
	UpdateWorkloads bool `json:"updateWorkloads"`
}

// NewController returns the defaults.
func NewController() *ControllerConfiguration {
	c := &ControllerConfiguration{
		Daemon: newDaemon(), LeaderElection: LeaderElection{Enabled: true}, LauncherImage: DefaultLauncherImage,
		NodeSilentAfter:   metav1.Duration{Duration: vmi.DefaultSilentAfter},
		OutOfServiceTaint: true,
		Webhooks:          Webhooks{Address: off, CertLifetime: metav1.Duration{Duration: defaultCertLifetime}},
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
		option("leaderElection.enabled", "leader-elect", "let one of several replicas act at a time", boolean(&c.LeaderElection.Enabled)),
		option("leaderElection.namespace", "leader-elect-namespace", "`namespace` of the lease; empty is the Pod's own", text(&c.LeaderElection.Namespace)),
		option("launcherImage", "launcher-image", "`image` of the guests' Pods", text(&c.LauncherImage)),
		option("sidecarShimImage", "sidecar-shim-image", "`image` of hook sidecars that name none; empty is sidecar-shim beside the launcher's", text(&c.SidecarShimImage)),
		option("nodeSilentAfter", "node-silent-after", "`time` without a heartbeat after which the guests of a node count as lost", duration(&c.NodeSilentAfter)),
		option("outOfServiceTaint", "out-of-service-taint", "let the taint node.kubernetes.io/out-of-service on a silent Node that is not ready confirm that the machine is off, which ends its guests", boolean(&c.OutOfServiceTaint)),
		option("additionalLauncherLabelsSync", "additional-launcher-labels-sync", "`keys` of labels, by commas, that a guest's Pod gets when the guest does; a key may end in *", &list{to: &c.AdditionalLauncherLabelsSync, commas: true}),
		option("additionalLauncherAnnotationsSync", "additional-launcher-annotations-sync", "the same `keys` of annotations", &list{to: &c.AdditionalLauncherAnnotationsSync, commas: true}),
		option("webhooks.address", "webhook-address", "`address` at which the API server has new guests filled in and checked, and evictions of their Pods judged; 0 leaves that to others", text(&w.Address)),
		option("webhooks.certDir", "webhook-cert-dir", "`folder` of tls.crt and tls.key for --webhook-address; read again when they change", text(&w.CertDir)),
		option("webhooks.certSecret", "webhook-cert-secret", "`NAMESPACE/NAME` of the Secret in which a certificate for --webhook-address is kept, which is made, given to the API server and replaced without --webhook-cert-dir", text(&w.CertSecret)),
		option("webhooks.certLifetime", "webhook-cert-lifetime", "`time` for which certificates in --webhook-cert-secret are valid; they are replaced when a third of it is left", duration(&w.CertLifetime)),
		option("webhooks.trust", "webhook-trust", "`user`, or group:NAME, who may write what is the control plane's of a guest, besides virtloom's and KubeVirt's own; may be given several times", &list{to: &w.Trust}),
	), c.Migrations.options()...)
}

// Observed are the options that also matter to whoever looks at what a controller
// does: how to reach the cluster, and what of VMIs and migrations is decided by them.
func (c *ControllerConfiguration) Observed() []Option {
	return append(only(c.Options(), "kubeconfig", "launcher-image", "sidecar-shim-image", "node-silent-after",
		"additional-launcher-labels-sync", "additional-launcher-annotations-sync"), only(c.Migrations.options(),
		"migrations-inbound-per-node", "migrations-lent", "migrations-bandwidth-per-node", "migrations-age-after", "migrations-unfair",
		"migrations-namespace-weights", "migrations-pending-timeout", "migrations-await-nodes", "migrations-cooldown", "migrations-abort-backups")...)
}

// Decisive returns the texts of those of the observed options by which a controller decides, by flag.
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
		live("migrations.inboundPerNode", "migrations-inbound-per-node", "how many `migrations` may enter one node at a time; KubeVirt's configuration has the limits of the cluster and of leaving a node", integer(&m.InboundPerNode)),
		live("migrations.lent", "migrations-lent", "how many `migrations` may lend their slots to others while no node takes their target Pod, or the node has no slot; 0 is as many as the cluster has slots, -1 none", integer(&m.Lent)),
		live("migrations.bandwidthPerNode", "migrations-bandwidth-per-node", "`quantity` of bytes per second that migrations may take from a node's network in each direction, such as 1Gi; 0 is no budget", quantity(&m.BandwidthPerNode)),
		live("migrations.ageAfter", "migrations-age-after", "`time` after which a migration that waits counts as of the next higher priority; negative is never", duration(&m.AgeAfter)),
		live("migrations.unfair", "migrations-unfair", "let priority and age alone decide, without turns between namespaces", boolean(&m.Unfair)),
		live("migrations.namespaceWeights", "migrations-namespace-weights", "`shares` of namespaces among migrations of one priority, as NAMESPACE=SHARE by commas; the others have 1", &shares{to: &m.NamespaceWeights}),
		live("migrations.pendingTimeout", "migrations-pending-timeout", "`time` after which a migration that could not start fails; negative is never", duration(&m.PendingTimeout)),
		live("migrations.awaitNodes", "migrations-await-nodes", "`time` to wait for nodes when none can ever match a target Pod, instead of failing at once; negative leaves it to the scheduler, as an autoscaler of nodes needs it", duration(&m.AwaitNodes)),
		live("migrations.cooldown", "migrations-cooldown", "`time` for which a guest that was migrated by itself rests before an update or a descheduler moves it again; negative is none", duration(&m.Cooldown)),
		option("migrations.abortBackups", "migrations-abort-backups", "let critical migrations abort backups of their guests by KubeVirt's virt-api, which has to be there; without, they wait for them", boolean(&m.AbortBackups)),
		option("migrations.evacuate", "evacuate", "migrate guests away from nodes that are drained, and those that are asked to leave theirs; without, a guest whose Pod may not be evicted waits for somebody else to migrate it", boolean(&m.Evacuate)),
		option("migrations.updateWorkloads", "update-workloads", "migrate or evict guests whose Pods are outdated, as the KubeVirt object says in spec.workloadUpdateStrategy", boolean(&m.UpdateWorkloads)),
	}
}

// Validate implements Configuration.
func (c *ControllerConfiguration) Validate() field.ErrorList {
	errs := c.Daemon.validate()
	if c.LauncherImage == "" {
		errs = append(errs, field.Required(field.NewPath("launcherImage"), "the image of the guests' Pods"))
	}
	if d := c.NodeSilentAfter; d.Duration < 0 {
		errs = append(errs, field.Invalid(field.NewPath("nodeSilentAfter"), short(d.Duration), "is in the past"))
	}
	errs = append(errs, keys(field.NewPath("additionalLauncherLabelsSync"), c.AdditionalLauncherLabelsSync)...)
	errs = append(errs, keys(field.NewPath("additionalLauncherAnnotationsSync"), c.AdditionalLauncherAnnotationsSync)...)
	errs = append(errs, c.Webhooks.validate(field.NewPath("webhooks"))...)
	return append(errs, c.Migrations.validate(field.NewPath("migrations"))...)
}

func keys(at *field.Path, all []string) field.ErrorList {
	var errs field.ErrorList
	for i, key := range all {
		if key == "" {
			errs = append(errs, field.Invalid(at.Index(i), key, "is no key; remove it"))
		}
	}
	return errs
}

func (m *Migrations) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.InboundPerNode < 1 {
		errs = append(errs, field.Invalid(at.Child("inboundPerNode"), m.InboundPerNode, "lets no migration ever enter a node; give 1 or more"))
	}
	if m.Lent < -1 {
		errs = append(errs, field.Invalid(at.Child("lent"), m.Lent, "is no number of migrations; give 0 for as many as the cluster has slots, or -1 for none"))
	}
	if q := m.BandwidthPerNode; q.Sign() < 0 {
		errs = append(errs, field.Invalid(at.Child("bandwidthPerNode"), q.String(), "is not a quantity above 0, such as 500Mi, or 0 for no budget"))
	}
	for _, name := range slices.Sorted(maps.Keys(m.NamespaceWeights)) {
		if share := m.NamespaceWeights[name]; name == "" || !isShare(share) {
			errs = append(errs, field.Invalid(at.Child("namespaceWeights").Key(name), share, "is no share of a namespace; give each a name and a number above 0"))
		}
	}
	return errs
}
