// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

// Sim is a cluster on a virtual clock.
type Sim struct {
	o         Options
	random    *rand.Rand
	clock     clock
	admission *queue.Admission
	policies  policy.Policies
	quotas    quotas

	nodes  []*corev1.Node
	byName map[string]*node
	usage  placement.NodeUsage
	// homeless are unschedulable Pods.
	homeless []*placing
	// turnedDown are migrations whose target Pod has no node, or no quota left.
	turnedDown []*job
	guests     map[types.NamespacedName]*simulatedGuest
	order      []*simulatedGuest
	jobs       map[types.NamespacedName]*job
	all        []*job

	// leaving are VMIs about which an evacuation will decide again.
	leaving  map[*simulatedGuest]bool
	ledger   ledger
	restored bool
	made     int
	// lifted says that the start exceeded the limits.
	lifted bool
	err    error
}

// node is a node and its VMIs and transfers.
type node struct {
	obj *corev1.Node
	// guests are the VMIs that run on it.
	guests map[*simulatedGuest]bool
	// sends and receives are the transfers under way.
	sends, receives map[*transfer]bool
}

// simulatedGuest is a VMI, its Pods and its migrations.
type simulatedGuest struct {
	Guest
	seq        int
	key        types.NamespacedName
	pods       []*corev1.Pod
	jobs       []*job
	resolution *policy.Resolution
	claims     map[string]*corev1.PersistentVolumeClaim
	transfer   *transfer
	// landing says that its memory was sent and the target is about to take over.
	landing bool
	// judged says that an evacuation has decided about it, again when it will next.
	judged bool
	again  time.Time
	// left is when it left a node by an automatic migration.
	left map[string]time.Time
}

// job is a migration.
type job struct {
	m     *v1.VirtualMachineInstanceMigration
	guest *simulatedGuest
	// due says that a pass is scheduled, next when another one is.
	due     bool
	next    time.Time
	holding bool
	// unplayed says that Decide requested an action that is not simulated.
	unplayed bool
	record   Migration
}

// NewSim returns a cluster without nodes.
func NewSim(o Options) *Sim {
	o = o.withDefaults()
	return &Sim{
		o: o, random: o.random(), clock: clock{now: o.Start},
		admission: queue.NewAdmission(o.Config.Limits, o.Queue),
		policies:  policy.NewPolicies(o.Policies),
		quotas:    newQuotas(o.Quotas),
		byName:    map[string]*node{}, usage: placement.NodeUsage{},
		guests: map[types.NamespacedName]*simulatedGuest{}, jobs: map[types.NamespacedName]*job{},
		leaving: map[*simulatedGuest]bool{}, ledger: newLedger(),
	}
}

// Now returns the virtual time.
func (s *Sim) Now() time.Time { return s.clock.now }

// At schedules an event: a drain, a migration, the end of a maintenance.
func (s *Sim) At(t time.Time, do func()) { s.clock.at(t, do) }

// AddNode adds a Node. The Sim owns and changes it.
func (s *Sim) AddNode(n *corev1.Node) {
	s.nodes = append(s.nodes, n)
	s.byName[n.Name] = &node{obj: n, guests: map[*simulatedGuest]bool{}, sends: map[*transfer]bool{}, receives: map[*transfer]bool{}}
	scheduler{s}.retryPods()
}

// AddPod adds a Pod that only takes resources of its node.
func (s *Sim) AddPod(p *corev1.Pod) {
	if p.Spec.NodeName != "" {
		s.usage.Add(p.Spec.NodeName, p)
	}
}

// AddGuest adds a running VMI. One without a lease is owned by its node. It returns an error if
// the VMI's node or lease is invalid.
func (s *Sim) AddGuest(g Guest) error {
	key := types.NamespacedName{Namespace: g.VMI.Namespace, Name: g.VMI.Name}
	at, known := s.byName[g.VMI.Status.NodeName]
	if !known {
		return fmt.Errorf("migrationsim: VMI %s is on node %q, which does not exist", key, g.VMI.Status.NodeName)
	}
	if _, err := handoff.Of(g.VMI); err != nil {
		return fmt.Errorf("migrationsim: %w", err)
	}
	if _, leased := g.VMI.Annotations[handoff.Annotation]; !leased {
		lease := handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: g.VMI.Status.NodeName}
		if err := handoff.Put(g.VMI, lease); err != nil {
			return fmt.Errorf("migrationsim: %w", err)
		}
	}
	if g.Bytes <= 0 {
		g.Bytes = memory(g.VMI)
	}
	added := &simulatedGuest{Guest: g, seq: len(s.order), key: key, left: map[string]time.Time{}, claims: map[string]*corev1.PersistentVolumeClaim{}}
	for _, c := range g.Claims {
		added.claims[c.Name] = c
	}
	if g.Pod != nil {
		added.pods = append(added.pods, g.Pod)
		s.usage.Add(g.Pod.Spec.NodeName, g.Pod)
	}
	for _, p := range g.Others {
		added.pods = append(added.pods, p)
		s.usage.Add(p.Spec.NodeName, p)
		if p.DeletionTimestamp != nil {
			s.clock.at(p.DeletionTimestamp.Add(s.o.Latency.PodStop), func() { kubelet{s}.gone(added, p) })
		}
	}
	at.guests[added] = true
	s.guests[key] = added
	s.order = append(s.order, added)
	return nil
}

// memory returns the memory visible to the guest, else the VMI's request.
func memory(vmi *v1.VirtualMachineInstance) float64 {
	if m := vmi.Spec.Domain.Memory; m != nil && m.Guest != nil {
		return m.Guest.AsApproximateFloat64()
	}
	return vmi.Spec.Domain.Resources.Requests.Memory().AsApproximateFloat64()
}

// AddMigration adds a migration, new or one that is under way, then with its target Pod if it
// has one.
func (s *Sim) AddMigration(m *v1.VirtualMachineInstanceMigration, target *corev1.Pod) error {
	g, known := s.guests[types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}]
	if !known {
		return fmt.Errorf("migrationsim: migration %s/%s is of VMI %q, which does not exist", m.Namespace, m.Name, m.Spec.VMIName)
	}
	s.made++
	if m.UID == "" {
		m.UID = types.UID(fmt.Sprintf("migration-%d", s.made))
	}
	if m.CreationTimestamp.IsZero() {
		m.CreationTimestamp = s.clock.stamp()
	}
	j := &job{m: m, guest: g, record: newMigration(m, g, s.clock.now)}
	g.jobs = append(g.jobs, j)
	s.jobs[keyOf(m)] = j
	s.all = append(s.all, j)
	if !m.IsFinal() {
		s.ledger.unfinished++
		g.judged = g.judged || automatic(m)
	}
	if target != nil {
		g.pods = append(g.pods, target)
		if j.holding = !m.IsFinal(); j.holding {
			s.ledger.hold(1)
		}
		scheduler{s}.adoptPod(g, target)
	}
	s.ledger.moved(g)
	if !j.done() {
		controller{s}.wake(j)
	}
	agents{s}.react(g)
	return nil
}

// Migrate creates a migration of the VMI, as a user does.
func (s *Sim) Migrate(guest types.NamespacedName) (types.NamespacedName, error) {
	return s.create(guest, "migrate", nil)
}

// Cancel deletes a migration, as a user does.
func (s *Sim) Cancel(key types.NamespacedName) {
	if j := s.jobs[key]; j != nil && j.m.DeletionTimestamp == nil {
		now := s.clock.stamp()
		j.m.DeletionTimestamp = &now
		controller{s}.wake(j)
	}
}

func (s *Sim) create(guest types.NamespacedName, why string, edit func(*v1.VirtualMachineInstanceMigration)) (types.NamespacedName, error) {
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: guest.Namespace, Name: fmt.Sprintf("%s-%s-%d", why, guest.Name, s.made+1)},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: guest.Name},
	}
	if edit != nil {
		edit(m)
	}
	return keyOf(m), s.AddMigration(m, nil)
}

// Run advances the clock until a time, or until no event is left. It returns an error if the
// cluster rejected a decision, which is a bug of package migration or of this one.
func (s *Sim) Run(until time.Time) error {
	if !s.restored {
		s.restored = true
		controller{s}.restore()
	}
	for s.err == nil && s.clock.step(until) {
		s.ledger.check(s)
	}
	if s.clock.now.Before(until) && len(s.clock.agenda) > 0 {
		s.clock.now = until
	}
	return s.err
}

// RunAll runs until every migration has ended and every VMI that is to leave its node
// has, or cannot, and until at the latest.
func (s *Sim) RunAll(until time.Time) error {
	if !s.restored {
		s.restored = true
		controller{s}.restore()
	}
	for s.err == nil && s.ledger.unfinished+len(s.leaving) > 0 && s.clock.step(until) {
		s.ledger.check(s)
	}
	return s.err
}

// fail records the first fault.
func (s *Sim) fail(err error) {
	if s.err == nil && err != nil {
		s.err = fmt.Errorf("migrationsim: at %s: %w", s.clock.now.Format(time.RFC3339), err)
	}
}

func keyOf(m *v1.VirtualMachineInstanceMigration) types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}

// on returns the VMIs of a node in the order in which they were added.
func (s *Sim) on(name string) []*simulatedGuest {
	n := s.byName[name]
	if n == nil {
		return nil
	}
	out := make([]*simulatedGuest, 0, len(n.guests))
	for g := range n.guests {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *simulatedGuest) int { return a.seq - b.seq })
	return out
}

// errUnknownAction means that Decide requested an action that this package does not simulate.
var errUnknownAction = errors.New("the action is not simulated")

// Migrations returns the migrations that exist, in their current state.
func (s *Sim) Migrations() []*v1.VirtualMachineInstanceMigration {
	var out []*v1.VirtualMachineInstanceMigration
	for _, j := range s.all {
		if !j.record.gone {
			out = append(out, j.m)
		}
	}
	return out
}

// TargetPod returns the target Pod of the migration, or nil.
func (s *Sim) TargetPod(m *v1.VirtualMachineInstanceMigration) *corev1.Pod {
	if j := s.jobs[keyOf(m)]; j != nil {
		return migration.TargetPod(j.guest.pods, m.UID)
	}
	return nil
}
