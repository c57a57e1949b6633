// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

// The kinds of findings about nodes, besides those about VMIs.
const (
	// NodeNotReady means that its kubelet is not ready, or under pressure.
	NodeNotReady diagnose.FindingKind = "NodeNotReady"
	// NotSchedulable means that its agent reports that no VMIs can be placed there.
	NotSchedulable diagnose.FindingKind = "NotSchedulable"
	// NoAgent means that no agent has ever sent a heartbeat.
	NoAgent diagnose.FindingKind = "NoAgent"
	// NodeUnfit means that it lacks something without which it runs no VMIs.
	NodeUnfit diagnose.FindingKind = "NodeUnfit"
	// Draining means that it is cordoned or tainted, and has VMIs.
	Draining diagnose.FindingKind = "Draining"
	// SlotsTaken means that all of its migration slots are in use.
	SlotsTaken diagnose.FindingKind = "SlotsTaken"
	// PodOfNobody means that a launcher Pod exists without its VMI.
	PodOfNobody diagnose.FindingKind = "PodOfNobody"
)

// Node is the diagnosis of a node.
type Node struct {
	// Name is the name of the node, At the time of the diagnosis.
	Name string    `json:"name"`
	At   time.Time `json:"at"`
	// Ready is the status of its kubelet: ready, not ready or unknown.
	Ready string `json:"ready"`
	// Heartbeat is the time of the agent's last heartbeat, by its own clock; nil if there was none. Silent is true if it
	// is too old.
	Heartbeat *time.Time `json:"heartbeat,omitempty"`
	Silent    bool       `json:"silent,omitempty"`
	// Schedulable is reported by its agent, Cordoned set by an operator; Taints are all taints of the node.
	Schedulable bool     `json:"schedulable"`
	Cordoned    bool     `json:"cordoned,omitempty"`
	Taints      []string `json:"taints,omitempty"`
	// Guests counts the VMIs on it by phase, without finished ones.
	VMIs []PhaseCount `json:"guests,omitempty"`
	// Outbound and Inbound are its migration slots, Cluster those of all nodes; Leaving and Entering are the VMIs that
	// migrate according to their leases.
	Outbound Slots    `json:"outbound"`
	Inbound  Slots    `json:"inbound"`
	Cluster  Slots    `json:"cluster"`
	Leaving  []string `json:"leaving,omitempty"`
	Entering []string `json:"entering,omitempty"`
	// Findings are the problems found.
	Findings []diagnose.Finding `json:"findings"`
	// Controller is what the controller says that it sees.
	Controller Controller `json:"controller"`
}

// PhaseCount is the number of VMIs in a phase.
type PhaseCount struct {
	Phase v1.VirtualMachineInstancePhase `json:"phase"`
	VMIs  int                            `json:"guests"`
}

// Slots counts migration slots.
type Slots struct {
	Used  int `json:"used"`
	Limit int `json:"limit"`
}

// Node diagnoses a node. Its error wraps ErrUnknown if there is none of the name.
func (c *Cluster) Node(ctx context.Context, name string) (*Node, error) {
	node := &corev1.Node{}
	switch err := c.Reader.Get(ctx, types.NamespacedName{Name: name}, node); {
	case apierrors.IsNotFound(err):
		return nil, c.unknown(ctx, "Node", types.NamespacedName{Name: name}, &corev1.NodeList{})
	case err != nil:
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	n := &Node{Name: name, At: c.Now, Findings: []diagnose.Finding{}}
	n.own(node, c.SilentAfter)
	for _, look := range []func(context.Context, *Node) error{c.slots, c.vmisOf, c.podsOf} {
		if err := look(ctx, n); err != nil {
			return nil, err
		}
	}
	taint, err := c.drainTaint(ctx)
	if err != nil {
		return nil, err
	}
	n.draining(node, taint)
	n.Controller = c.sees(ctx, cachestate.Question{Kind: cachestate.Node, NamespacedName: types.NamespacedName{Name: name}})
	return n, nil
}

// find adds a finding about the node itself.
func (n *Node) find(kind diagnose.FindingKind, what, why, remedy string) *diagnose.Finding {
	n.Findings = append(n.Findings, diagnose.Finding{Kind: kind, What: what, Why: why, Remedy: remedy, Object: "Node " + n.Name})
	return &n.Findings[len(n.Findings)-1]
}

// own adds findings about the Node object.
func (n *Node) own(node *corev1.Node, silentAfter time.Duration) {
	n.Schedulable, n.Cordoned = node.Labels[v1.NodeSchedulable] == "true", node.Spec.Unschedulable
	for i := range node.Spec.Taints {
		n.Taints = append(n.Taints, node.Spec.Taints[i].ToString())
	}
	n.conditions(node)
	if at, err := time.Parse(time.RFC3339, node.Annotations[v1.VirtHandlerHeartbeat]); err == nil {
		n.Heartbeat = &at
		n.Silent = n.At.Sub(at) >= silentAfter
	}
	const agent = "the agent runs the node's VMIs and reports their status"
	switch {
	case n.Heartbeat == nil:
		n.find(NoAgent, "no agent has ever sent a heartbeat of the node", agent,
			"check that the node agent is scheduled there (DaemonSet, node selector, taints), and check its log")
	case n.Silent:
		n.find(diagnose.NodeSilent, fmt.Sprintf("its agent has sent no heartbeat for %s", n.At.Sub(*n.Heartbeat).Round(time.Second)),
			"VMIs of an unresponsive node are lost until it returns, or is confirmed to be off; no VMI migrates there",
			"check that the node is up and its agent runs; if the node is gone for good, make sure that it is off and delete its Node object")
	case !n.Schedulable && n.unfit(node):
	case !n.Schedulable:
		n.find(NotSchedulable, "its agent reports that VMIs cannot be placed there (label kubevirt.io/schedulable)", "the hypervisor or the devices are not ready, or the agent is terminating",
			"check the agent's log and its probe /readyz, and libvirt on the node")
	}
}

// unfit adds findings about what the node lacks, and reports whether there are any.
func (n *Node) unfit(node *corev1.Node) bool {
	const why = "VMIs would fail there, so the agent has none placed on the node"
	problems, err := nodectrl.ProblemsOf(node)
	if err != nil {
		n.find(NodeUnfit, "what its agent reports to be missing cannot be read: "+err.Error(), why, "check the agent's log")
	}
	for _, p := range problems {
		n.find(NodeUnfit, p.What, why, p.Remedy).Reason = p.Code
	}
	return err != nil || len(problems) > 0
}

// conditions adds findings about the kubelet's conditions.
func (n *Node) conditions(node *corev1.Node) {
	n.Ready = "unknown"
	for i := range node.Status.Conditions {
		t := &node.Status.Conditions[i]
		switch {
		case t.Type == corev1.NodeReady && t.Status == corev1.ConditionTrue:
			n.Ready = "ready"
		case t.Type == corev1.NodeReady:
			n.Ready = "not ready"
			n.find(NodeNotReady, "its kubelet is not ready: "+t.Message, "Pods are not started there, and are evicted after a while", "check the kubelet's log on the node, and its network").Reason = t.Reason
		case t.Status == corev1.ConditionTrue:
			n.find(NodeNotReady, string(t.Type)+": "+t.Message, "the kubelet evicts Pods, launcher Pods among them, under pressure", "free that resource, or drain the node").Reason = t.Reason
		}
	}
}

// slots counts the migration slots in use.
func (c *Cluster) slots(ctx context.Context, n *Node) error {
	u, err := c.Migrations.Usage(ctx)
	if err != nil {
		return err
	}
	n.Cluster = Slots{u.Cluster, u.Limits.Cluster}
	n.Outbound = Slots{u.Outbound[n.Name], u.Limits.Outbound}
	n.Inbound = Slots{u.Inbound[n.Name], u.Limits.Inbound}
	const why = "migrations wait for slots, so that they do not slow each other down"
	if n.Outbound.full() {
		n.find(SlotsTaken, "all of its outbound migration slots are in use: "+n.Outbound.text(), why, "wait for one to end, or raise parallelOutboundMigrationsPerNode of the KubeVirt object")
	}
	if n.Inbound.full() {
		n.find(SlotsTaken, "all of its inbound migration slots are in use: "+n.Inbound.text(), why, "wait for one to end, or raise migrations.inboundPerNode of the controller")
	}
	return nil
}

func (s Slots) full() bool { return s.Used > 0 && s.Used >= s.Limit }

// amiss are the kinds of findings about a VMI that are reported for its node as well.
var amiss = map[diagnose.FindingKind]bool{
	diagnose.Disagreement: true, diagnose.LauncherMissing: true, diagnose.NotLeaving: true, diagnose.NotUnderstood: true, diagnose.PodNotReady: true, diagnose.NodeSilent: true,
}

// guestsOf counts the VMIs on the node and those that migrate from and to it.
func (c *Cluster) vmisOf(ctx context.Context, n *Node) error {
	var all v1.VirtualMachineInstanceList
	if err := c.Reader.List(ctx, &all); err != nil {
		return fmt.Errorf("list the VMIs: %w", err)
	}
	for i := range all.Items {
		g := &all.Items[i]
		if !n.count(g) {
			continue
		}
		if err := c.amiss(ctx, n, client.ObjectKeyFromObject(g)); err != nil {
			return err
		}
	}
	slices.SortFunc(n.VMIs, func(a, b PhaseCount) int { return cmp.Compare(a.Phase, b.Phase) })
	return nil
}

// count adds a VMI, and reports whether it is on the node by its status or its lease.
func (n *Node) count(g *v1.VirtualMachineInstance) bool {
	if g.IsFinal() {
		return false
	}
	lease, err := handoff.Of(g)
	if err != nil {
		lease = handoff.Lease{} // that is a finding about the VMI
	}
	if lease.InMove() || lease.Switching() {
		name := g.Namespace + "/" + g.Name
		if lease.Holder == n.Name {
			n.Leaving = append(n.Leaving, name)
		}
		if lease.Target == n.Name {
			n.Entering = append(n.Entering, name)
		}
	}
	if g.Status.NodeName != n.Name {
		return lease.Holder == n.Name
	}
	at := slices.IndexFunc(n.VMIs, func(p PhaseCount) bool { return p.Phase == g.Status.Phase })
	if at < 0 {
		at = len(n.VMIs)
		n.VMIs = append(n.VMIs, PhaseCount{Phase: g.Status.Phase})
	}
	n.VMIs[at].VMIs++
	return true
}

// amiss adds findings about a VMI of the node.
func (c *Cluster) amiss(ctx context.Context, n *Node, guest types.NamespacedName) error {
	d, err := c.VMIs.Explain(ctx, guest)
	if err != nil || d == nil {
		return err
	}
	for _, f := range d.Findings {
		if amiss[f.Kind] {
			f.What = "VMI " + guest.String() + ": " + f.What
			n.Findings = append(n.Findings, f)
		}
	}
	return nil
}

// podsOf adds a finding for each launcher Pod on the node without a VMI.
func (c *Cluster) podsOf(ctx context.Context, n *Node) error {
	var pods corev1.PodList
	var guests v1.VirtualMachineInstanceList
	if err := errors.Join(c.Reader.List(ctx, &pods, client.HasLabels{v1.CreatedByLabel}), c.Reader.List(ctx, &guests)); err != nil {
		return fmt.Errorf("list the launcher Pods: %w", err)
	}
	known := map[string]bool{}
	for i := range guests.Items {
		known[string(guests.Items[i].UID)] = true
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName != n.Name || known[p.Labels[v1.CreatedByLabel]] || vmi.PodDown(p) {
			continue
		}
		n.find(PodOfNobody, fmt.Sprintf("Pod %s/%s belongs to a VMI that does not exist (UID %s)", p.Namespace, p.Name, p.Labels[v1.CreatedByLabel]),
			"a Pod is deleted with its VMI; one that remains holds resources, and may hold the VMI's domain",
			"check whether a domain runs in it (virsh list), then delete the Pod, and check its finalizers").Object = "Pod " + p.Namespace + "/" + p.Name
	}
	return nil
}

// drainTaint returns the key of the taint that triggers the evacuation of nodes.
func (c *Cluster) drainTaint(ctx context.Context) (string, error) {
	var all v1.KubeVirtList
	if err := c.Reader.List(ctx, &all); err != nil {
		return "", fmt.Errorf("read KubeVirt's configuration: %w", err)
	}
	for i := range all.Items {
		if m := all.Items[i].Spec.Configuration.MigrationConfiguration; m != nil && m.NodeDrainTaintKey != nil {
			return *m.NodeDrainTaintKey, nil
		}
	}
	return "kubevirt.io/drain", nil
}

// draining adds a finding for VMIs on a node that accepts no new ones.
func (n *Node) draining(node *corev1.Node, taint string) {
	count := 0
	for _, g := range n.VMIs {
		count += g.VMIs
	}
	tainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint })
	if count == 0 || !n.Cordoned && !tainted {
		return
	}
	n.find(Draining, fmt.Sprintf("it accepts no new VMIs, and has %d", count), "a cordon alone migrates no VMI: VMIs leave when their Pods are evicted, or the controller evacuates nodes with the drain taint",
		"refdaemon plan drain "+n.Name+" prints which VMIs leave, in which order, and which stay; kubectl drain evicts them")
}
