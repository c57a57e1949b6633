// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	effects "github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// mark is what a domain carries: the object it is of, the epoch it was made or taken over
// under, the migration that brings or takes it, and whether that lets it arrive held.
type mark struct {
	uid, epoch uint8
	move       slot
	held       bool
}

// metadata is the mark as package domain has it.
func (k mark) metadata() domain.Metadata {
	m := domain.Metadata{
		Namespace: namespace, Name: slotVMI.String(), UID: fullUID(slotVMI, k.uid), Epoch: uint64(k.epoch), Held: k.held, GracePeriod: new(noGrace),
	}
	if k.move.isMove() {
		m.MigrationUID = k.move.tag()
	}
	return m
}

const noGrace = 0 * tick

func markOf(m domain.Metadata, uid uint8) mark {
	k := mark{uid: uid, epoch: uint8(m.Epoch), held: m.Held}
	if m.MigrationUID != "" {
		k.move = slotOf(string(m.MigrationUID))
	}
	return k
}

// recency is when this process's last migration has ended.
type recency uint8

const (
	never recency = iota
	justNow
	before
)

// sight is what decides what an agent does. It can be compared.
type sight struct {
	g        *guest // nil: it is certain not to exist
	uid      uint8
	deleting bool
	node     place
	domain   domainState
	mark     mark
	// pods are the guest's on the node, one of which has to show that the guest is to run
	// there: by the API server's own word.
	pods podKeys
	// lacks is what the node fails to prepare.
	lacks obstacle
	// active says that the hypervisor is busy with a move, moving that this process
	// carries it out; ended is when the last one was over, and why without success.
	active, moving bool
	ended          recency
	failed         bool
	holding        bool
	now            int8
}

// sighted is what package domain says to it.
type sighted struct {
	// write is nil if the object is as it shall be.
	write  *guest
	guards guards
	tasks  []task
	// touches says that something is done to the guest.
	touches bool
	// waits says that the agent looks again by itself, listens that it has opened the sockets
	// for a migration.
	waits, stranger, listens bool
	err                      error
}

// task is what an agent does at its hypervisor.
type task struct {
	verb    verbAt
	mark    mark
	to      place
	held    bool
	touches bool
	command handoff.Command
}

// verbAt is what a hypervisor is asked for.
type verbAt uint8

const (
	noTask verbAt = iota
	taskStart
	taskDestroy
	taskUndefine
	taskResume
	taskMark
	taskMigrate
	taskAbort
)

// sight is what the agent of the node sees that has the object so.
func (m agents) sight(w *world, n place, o *object) sight {
	node, pr := &w.nodes[n], &w.procs[agentOf(n)]
	s := sight{
		node: n, domain: node.domain, mark: node.mark, active: w.busy(n), moving: pr.moving && node.job != noJob,
		ended: pr.ended, failed: pr.failed, holding: w.holding, now: w.now,
	}
	if o == nil {
		return s
	}
	s.g, s.uid, s.deleting, s.pods = o.vmi, o.uid, o.deleting, podsOf(&w.api)
	for i := range s.pods {
		if s.pods[i].node != n {
			s.pods[i] = podKey{}
		}
	}
	return s
}

// needsProof asks whether what comes next needs a Pod to be read from the API server.
func (m agents) needsProof(s sight) bool {
	if s.g == nil {
		return false
	}
	return m.known.proofs.of(proofKey{s.g, s.node}, func() bool {
		return plan.Snapshot{Node: s.node.String(), VMI: s.g.instance(s.uid, s.deleting)}.NeedsProof()
	})
}

// proofKey is what that depends on.
type proofKey struct {
	g    *guest
	node place
}

// statuses are the domain statuses that hypervisors report.
var statuses = [...]struct {
	status domain.Status
	reason domain.Reason
}{
	running:  {domain.StatusRunning, domain.ReasonUnknown},
	incoming: {domain.StatusPaused, domain.ReasonMigration},
	paused:   {domain.StatusPaused, domain.ReasonMigration},
	ended:    {domain.StatusShutoff, domain.ReasonShutdown},
	held:     {domain.StatusPaused, domain.ReasonUser},
	left:     {domain.StatusShutoff, domain.ReasonMigrated},
}

// definition is what guests are. That of one which is not held when it moves has a disk
// whose image QEMU locks.
func definition(locked bool) *libvirtxml.Domain {
	def := &libvirtxml.Domain{Type: "kvm", Name: domain.Name(namespace, slotVMI.String()), Devices: &libvirtxml.DomainDeviceList{}}
	if locked {
		def.Devices.Disks = []libvirtxml.DomainDisk{{
			Device: "disk", Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/disk.img"}},
			Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		}}
	}
	return def
}

// aSecond for each GiB, and without progress, is what a move may take: as little as can
// be. The controller asks for its end a tick later, its node gives it up after six.
var aSecond = int64(1)

// input makes what package domain asks for.
func (s sight) input() plan.Snapshot {
	out := plan.Snapshot{
		Node: s.node.String(), MigrationActive: s.active, Migrating: s.moving,
		Migrations: &v1.MigrationConfiguration{CompletionTimeoutPerGiB: &aSecond, ProgressTimeout: &aSecond},
	}
	if s.g != nil {
		out.VMI = s.g.instance(s.uid, s.deleting)
		out.Pods, _ = s.pods.pods(out.VMI)
	}
	switch s.ended {
	case justNow:
		out.MigrationEnded = clockAt(s.now)
	case before:
		out.MigrationEnded = clockAt(s.now - 1)
	}
	if s.failed {
		out.MigrationFailure = "the hypervisor has failed to move the guest"
	}
	if s.domain != noDomain {
		at := statuses[s.domain]
		out.State = &domain.State{
			Name: domain.Name(namespace, slotVMI.String()), Status: at.status, Reason: at.reason,
			Metadata: s.mark.metadata(), Domain: definition(!s.holding),
		}
	}
	return out
}

// look asks the real plan.Decide.
func (m agents) look(s sight) sighted {
	return m.known.sights.of(s, func() sighted {
		in := s.input()
		listens := s.prepare(&in)
		plan, err := plan.Decide(in, clockAt(s.now))
		if err != nil {
			return sighted{err: err}
		}
		out := sighted{waits: plan.RequeueAt != nil, stranger: plan.Role == handoff.RoleNone || plan.Role == "", listens: listens}
		for _, t := range plan.Actions {
			out.touches = out.touches || t.TouchesDomain()
			if did := s.task(t, plan.VMI); did.verb != noTask {
				out.tasks = append(out.tasks, did)
			}
		}
		if len(out.tasks) == 0 {
			out.touches = false // files are not modelled
		}
		if plan.VMI == nil {
			return out
		}
		if g := m.known.guest(plan.VMI); g != s.g {
			out.write, out.guards = g, byReport
			if out.touches || binding(in.VMI, plan.VMI) {
				out.guards = byVersion
			}
		}
		return out
	})
}

// binding reports whether an agent's plan does more than to report, as package domainctrl
// has it.
func binding(was, want *v1.VirtualMachineInstance) bool {
	return was.Annotations[handoff.Annotation] != want.Annotations[handoff.Annotation] ||
		!maps.Equal(was.Labels, want.Labels) || was.Status.NodeName != want.Status.NodeName ||
		!equality.Semantic.DeepEqual(was.Status.MigrationState, want.Status.MigrationState)
}

// task is what a task of a plan is to the model's hypervisor.
func (s sight) task(t effects.Action, vmi *v1.VirtualMachineInstance) task {
	out := task{touches: t.TouchesDomain(), command: t.Command}
	switch t.Verb {
	case effects.Migrate:
		out.verb, out.held, out.to = taskMigrate, t.Request.Paused, placeOf(vmi.Labels[v1.MigrationTargetNodeNameLabel])
		return out
	case effects.Abort:
		out.verb = taskAbort
		return out
	case effects.Cleanup, effects.SyncTime:
		return out
	case effects.Apply:
	default:
		cannot("task %s is not modelled", t)
	}
	verb, known := verbs[t.Operation.Verb]
	if !known {
		cannot("operation %s is not modelled", t.Operation)
	}
	out.verb = verb
	switch verb {
	case taskStart:
		md, _, err := domain.MetadataOf(t.Operation.Definition)
		if err != nil {
			cannot("the definition has no metadata: %v", err)
		}
		out.mark = markOf(md, s.uid)
	case taskMark:
		out.mark = markOf(t.Operation.Metadata, s.mark.uid)
	}
	return out
}

var verbs = map[domain.Verb]verbAt{
	domain.Start: taskStart, domain.Destroy: taskDestroy, domain.Undefine: taskUndefine, domain.Resume: taskResume, domain.SetMetadata: taskMark,
}

// work is a pass of an agent, as package domainctrl makes it: on its cache first;
// what is done to a guest without a write that proves the cache to be current is decided
// again on the API server's word, and what the cache lacks is looked up there.
func (m agents) work(w *world, p int, lacks obstacle) {
	n, pr := nodeOf(p), &w.procs[p]
	o := pr.sees[slotVMI]
	if o == nil && w.nodes[n].domain == noDomain && !pr.live {
		return // there is nothing to find out
	}
	if pr.live || o == nil {
		m.workLive(w, p, lacks)
		return
	}
	s := m.sight(w, n, o)
	s.lacks = lacks
	if m.needsProof(s) && !w.reachable(n) {
		return // the Pod cannot be read
	}
	plan := m.look(s)
	if plan.write == nil && plan.touches {
		m.workLive(w, p, lacks)
		return
	}
	m.act(w, p, o, plan)
}

// workLive is a pass on the API server's own word, if that can be had.
func (m agents) workLive(w *world, p int, lacks obstacle) {
	n := nodeOf(p)
	if !w.reachable(n) {
		return
	}
	w.procs[p].live = false
	o := w.api[slotVMI]
	s := m.sight(w, n, o)
	s.lacks = lacks
	m.act(w, p, o, m.look(s))
}

func (m agents) act(w *world, p int, o *object, plan sighted) {
	pr := &w.procs[p]
	// One that finds a move going on looks after it from then on.
	pr.moving = w.nodes[nodeOf(p)].job != noJob
	if plan.stranger {
		pr.ended, pr.failed = never, false
	}
	if plan.err != nil {
		return
	}
	m.listen(w, p, o, plan)
	d := doing{tasks: plan.tasks, confirmed: w.now}
	switch {
	case plan.write != nil:
		d.stage, d.req = asking, request{
			verb: update, slot: slotVMI, uid: o.uid, base: o.rv, by: int8(p), guards: plan.guards, from: o,
			want: o.with(func(o *object) { o.vmi = plan.write }),
		}
	case len(plan.tasks) > 0:
		d.stage = ready
		if o != nil {
			d.by = o.vmi
		}
	default:
		return
	}
	pr.doing = d
}

// begin lets an agent call its hypervisor, if it still may. Otherwise it looks again, at
// what is stored.
func (m agents) begin(w *world, p int) {
	n, pr := nodeOf(p), &w.procs[p]
	d := pr.doing
	if t := d.tasks[0]; m.authorize(d, t, w.now) != nil {
		pr.doing, pr.live = doing{}, true
		return
	}
	w.nodes[n].call = call{task: d.tasks[0], begun: w.now}
	pr.doing.stage = calling
}

// authorize asks the real Lease.Authorize, or for a task that no command asks for
// whether what it follows from was confirmed in time.
func (m agents) authorize(d doing, t task, now int8) error {
	if !t.touches {
		return nil
	}
	if err := handoff.Confirmed(clockAt(d.confirmed), clockAt(now)); err != nil || t.command == (handoff.Command{}) {
		return err
	}
	return d.by.lease.Authorize(t.command, clockAt(d.confirmed), clockAt(now))
}

// respond lets an agent learn what came of its write.
func (m agents) respond(w *world, p int, a answer, o *object) {
	pr := &w.procs[p]
	d := pr.doing
	pr.doing = doing{}
	switch {
	case a != accepted:
		pr.live = a == conflict
	case len(d.tasks) > 0:
		d.stage, d.req, d.by = ready, request{}, o.vmi
		pr.doing = d
	}
}
