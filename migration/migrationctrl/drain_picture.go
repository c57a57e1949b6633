// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/migration/migrationsim"
)

// picture is the state of a cluster at one moment.
type picture struct {
	kubeVirt   *v1.KubeVirt
	config     migration.Config
	nodes      corev1.NodeList
	pods       corev1.PodList
	vmis       v1.VirtualMachineInstanceList
	migrations v1.VirtualMachineInstanceMigrationList
	policies   v1alpha1.MigrationPolicyList
	namespaces corev1.NamespaceList
	quotas     corev1.ResourceQuotaList
	byVMI      map[types.UID][]*corev1.Pod
	// known are the names of the nodes, unfinished the UIDs of migrations.
	known, unfinished map[string]bool
	// left are VMIs that could not be put into the simulation, with the reason.
	left []DrainStay
	// uids are the VMIs in the simulation.
	uids map[types.NamespacedName]types.UID
}

func newPicture() *picture {
	return &picture{
		byVMI: map[types.UID][]*corev1.Pod{}, known: map[string]bool{}, unfinished: map[string]bool{},
		uids: map[types.NamespacedName]types.UID{},
	}
}

// planner puts the cluster into a simulation.
type planner struct{ *Reconciler }

func (r planner) picture(ctx context.Context) (*picture, error) {
	c := newPicture()
	var err error
	if c.kubeVirt, err = r.gatherer.KubeVirt(ctx); err != nil {
		return nil, fmt.Errorf("migrationctrl: %w", err)
	}
	c.config = r.config(c.kubeVirt)
	for _, list := range []client.ObjectList{&c.nodes, &c.pods, &c.vmis, &c.migrations, &c.policies, &c.namespaces, &c.quotas} {
		if err := r.Client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("migrationctrl: list all %T: %w", list, err)
		}
	}
	for i := range c.nodes.Items {
		c.known[c.nodes.Items[i].Name] = true
	}
	for i := range c.migrations.Items {
		if m := &c.migrations.Items[i]; !m.IsFinal() {
			c.unfinished[string(m.UID)] = true
		}
	}
	for i := range c.pods.Items {
		p := &c.pods.Items[i]
		if uid := controlling(p); uid != "" {
			c.byVMI[uid] = append(c.byVMI[uid], p)
		}
	}
	return c, nil
}

// simulate builds the simulation of the cluster's current state.
func (r planner) simulate(ctx context.Context, c *picture, a Assumptions) (*migrationsim.Sim, error) {
	labels := map[string]map[string]string{}
	for i := range c.namespaces.Items {
		labels[c.namespaces.Items[i].Name] = c.namespaces.Items[i].Labels
	}
	sim := migrationsim.NewSim(migrationsim.Options{
		Start: r.Clock.Now(), Config: c.config, Queue: a.Queue, Policies: c.policies.Items, NamespaceLabels: labels,
		Quotas: c.quotas.Items,
		Rate:   a.Rate, Link: a.Link, EvictionStrategy: strategy(c.kubeVirt), Render: r.rendering(ctx, c),
	})
	for i := range c.nodes.Items {
		sim.AddNode(c.nodes.Items[i].DeepCopy())
	}
	taken := map[types.UID]bool{}
	for i := range c.vmis.Items {
		vmi := &c.vmis.Items[i]
		pod := migration.CurrentPod(vmi, c.byVMI[vmi.UID], "")
		claims, err := r.claims(ctx, vmi, pod)
		if err != nil {
			return nil, err
		}
		others := c.others(vmi, pod)
		if c.put(sim, migrationsim.Guest{VMI: vmi, Pod: pod, Others: others, Claims: claims, Dirty: a.Dirty}) {
			for _, p := range append(others, pod) {
				taken[p.UID] = true
			}
		}
	}
	if err := c.resume(sim, taken); err != nil {
		return nil, err
	}
	for i := range c.pods.Items {
		if p := &c.pods.Items[i]; !taken[p.UID] && !ended(p) {
			sim.AddPod(p)
		}
	}
	return sim, nil
}

// resume adds the existing migrations of VMIs in the simulation, with their target
// Pods.
func (c *picture) resume(sim *migrationsim.Sim, taken map[types.UID]bool) error {
	for i := range c.migrations.Items {
		m := &c.migrations.Items[i]
		uid, there := c.uids[types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}]
		if !there {
			continue
		}
		target := migration.TargetPod(c.byVMI[uid], m.UID)
		switch {
		case target == nil || m.IsFinal() || taken[target.UID]:
			target = nil
		default:
			taken[target.UID] = true
			target = target.DeepCopy()
		}
		if err := sim.AddMigration(m.DeepCopy(), target); err != nil {
			return err
		}
	}
	return nil
}

// others returns the VMI's live Pods beside the one it runs in, without those of its
// migrations.
func (c *picture) others(vmi *v1.VirtualMachineInstance, runs *corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range c.byVMI[vmi.UID] {
		if p != runs && !ended(p) && !c.unfinished[p.Labels[v1.MigrationJobLabel]] {
			out = append(out, p.DeepCopy())
		}
	}
	return out
}

// claims returns the claims that keep the VMI's state.
func (r planner) claims(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) ([]*corev1.PersistentVolumeClaim, error) {
	s := migration.Snapshot{Migration: &v1.VirtualMachineInstanceMigration{}, VMI: vmi, SourcePod: pod}
	s.Migration.Namespace = vmi.Namespace
	if err := gatherer(r).stateClaims(ctx, &s); err != nil {
		return nil, err
	}
	var out []*corev1.PersistentVolumeClaim
	for _, c := range s.Claims {
		out = append(out, c.DeepCopy())
	}
	return out, nil
}

// put adds a running VMI, and reports whether it did.
func (c *picture) put(sim *migrationsim.Sim, g migrationsim.Guest) bool {
	vmi := g.VMI
	if vmi.IsFinal() || vmi.Status.NodeName == "" {
		return false
	}
	stay := DrainStay{Namespace: vmi.Namespace, VMI: vmi.Name, node: vmi.Status.NodeName}
	switch {
	case !vmi.IsRunning():
		stay.Reason, stay.Message = evacuation.ReasonNotRunning, fmt.Sprintf("the VMI is in phase %q", vmi.Status.Phase)
	case !c.known[vmi.Status.NodeName]:
		stay.Reason, stay.Message = migration.ReasonWaitingForGuest, fmt.Sprintf("the VMI is on node %q, which does not exist", vmi.Status.NodeName)
	case g.Pod == nil:
		stay.Reason, stay.Message = migration.ReasonWaitingForSourcePod, "the Pod in which the VMI runs is unknown"
	case c.outOfSight(vmi) != "":
		stay.Reason, stay.Message = migration.ReasonMoving, c.outOfSight(vmi)
	default:
		g.VMI, g.Pod = vmi.DeepCopy(), g.Pod.DeepCopy()
		err := sim.AddGuest(g)
		if err == nil {
			c.uids[client.ObjectKeyFromObject(vmi)] = vmi.UID
			return true
		}
		stay.Reason, stay.Message = migration.ReasonLeaseUnreadable, err.Error()
	}
	c.left = append(c.left, stay)
	return false
}

// outOfSight returns why the outcome of a VMI's migration is unpredictable; empty if it is
// predictable.
func (c *picture) outOfSight(vmi *v1.VirtualMachineInstance) string {
	lease, err := handoff.Of(vmi)
	begun := lease.State != handoff.Preparing && lease.State != handoff.Prepared
	switch {
	case err != nil || lease.Target == "":
		return "" // this is not its problem
	case lease.Target == handoff.Elsewhere:
		return "the VMI is being migrated to another cluster or namespace"
	case begun && !c.known[lease.Target]:
		return fmt.Sprintf("the VMI is being migrated to node %q, which does not exist", lease.Target)
	}
	return ""
}

// rendering renders target Pods as the controller does. A claim for the VMI's state at the
// target, which is created first, is assumed to exist.
func (r planner) rendering(ctx context.Context, c *picture) func(*v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigration, *corev1.Pod) (*corev1.Pod, error) {
	return func(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration, source *corev1.Pod) (*corev1.Pod, error) {
		s := migration.Snapshot{Migration: m, VMI: vmi, SourcePod: source, Config: c.config, Claims: map[string]*corev1.PersistentVolumeClaim{}}
		if name, _ := s.StateClaims(); name != "" {
			s.Claims[name] = &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			}}
		}
		return fitter(r).render(ctx, &gathered{Snapshot: s, key: client.ObjectKeyFromObject(m), kubeVirt: c.kubeVirt})
	}
}
