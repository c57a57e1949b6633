// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// content is what a VirtualMachineInstance says, as far as somebody reads it here.
type content struct {
	annotation                         string
	labelNode, labelTarget, statusNode string
	phase                              v1.VirtualMachineInstancePhase
	finalizer                          bool
	move                               moveStatus
}

// moveStatus is status.migrationState.
type moveStatus struct {
	uid                               types.UID
	source, target                    string
	sourcePod                         slot
	sourceUID                         uint8
	address                           string
	started, ended, completed, failed bool
}

// guest is a content with what package handoff reads from it.
type guest struct {
	content
	lease handoff.Lease
	err   error
	sum   uint64
}

// object makes the API object that the content stands for.
func (c content) object() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: slotVMI.String()}}
	if c.annotation != "" {
		vmi.Annotations = map[string]string{handoff.Annotation: c.annotation}
	}
	vmi.Labels = map[string]string{}
	if c.labelNode != "" {
		vmi.Labels[v1.NodeNameLabel] = c.labelNode
	}
	if c.labelTarget != "" {
		vmi.Labels[v1.MigrationTargetNodeNameLabel] = c.labelTarget
	}
	vmi.Status.NodeName, vmi.Status.Phase = c.statusNode, c.phase
	if m := c.move; m.uid != "" {
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: m.uid, SourceNode: m.source, TargetNode: m.target, TargetNodeAddress: m.address,
			Completed: m.completed, Failed: m.failed,
		}
		if m.started {
			vmi.Status.MigrationState.StartTimestamp = &metav1.Time{Time: epochOfTime}
		}
		if m.ended {
			vmi.Status.MigrationState.EndTimestamp = &metav1.Time{Time: epochOfTime}
		}
	}
	return vmi
}

// put returns the content with the lease stored in it.
func (c content) put(l handoff.Lease) (content, error) {
	vmi := c.object()
	if err := handoff.Put(vmi, l); err != nil {
		return c, fmt.Errorf("explore: %w", err)
	}
	c.annotation = vmi.Annotations[handoff.Annotation]
	c.labelNode, c.labelTarget = vmi.Labels[v1.NodeNameLabel], vmi.Labels[v1.MigrationTargetNodeNameLabel]
	c.statusNode = vmi.Status.NodeName
	return c, nil
}

// selects tells whether the caches of the node hold the object: as in the node
// agent, those of the guests it owns and of those that come to it.
func (g *guest) selects(n place) bool {
	return g.labelNode == n.String() || g.labelTarget == n.String()
}

// guests keeps one guest for each content, so that what was understood once is
// not read again. It is safe for concurrent use.
type guests struct {
	mu    sync.RWMutex
	known map[content]*guest // guarded by mu
}

func newGuests() *guests { return &guests{known: map[content]*guest{}} }

func (s *guests) of(c content) *guest {
	s.mu.RLock()
	g := s.known[c]
	s.mu.RUnlock()
	if g != nil {
		return g
	}
	n := &guest{content: c}
	n.lease, n.err = handoff.Of(c.object())
	h := newHash()
	for _, t := range []string{
		c.annotation, c.labelNode, c.labelTarget, c.statusNode, string(c.phase),
		string(c.move.uid), c.move.source, c.move.target, c.move.address,
	} {
		h.text(t)
	}
	m := c.move
	h.bytes(bit(c.finalizer), byte(m.sourcePod), m.sourceUID, bit(m.started), bit(m.ended), bit(m.completed), bit(m.failed))
	n.sum, _ = h.sum()
	s.mu.Lock()
	defer s.mu.Unlock()
	if g = s.known[c]; g != nil {
		return g
	}
	s.known[c] = n
	return n
}

// wish is an event in a form that can be compared.
type wish struct {
	kind     handoff.Kind
	node     string
	tag      types.UID
	within   time.Duration
	evidence handoff.EvidenceKind
	message  string
}

// stepKey names one application of handoff.Step.
type stepKey struct {
	to  *guest
	e   wish
	now int8
}

type stepped struct {
	content content
	err     error
}

// step carries out the real handoff.Step and handoff.Put on what g says, at the
// sender's time now; edit changes what else is written in the same request. What
// was computed once is remembered: all of it is pure.
func (m *machine) step(g *guest, e wish, now int8, edit func(*content)) (*guest, error) {
	key := stepKey{g, e, now}
	s, known := m.steps[key]
	if !known {
		s = applyStep(g, e, now)
		m.steps[key] = s
	}
	if s.err != nil {
		return nil, s.err
	}
	c := s.content
	if edit != nil {
		edit(&c)
	}
	return m.guests.of(c), nil
}

func applyStep(g *guest, e wish, now int8) stepped {
	if g.err != nil {
		return stepped{err: g.err}
	}
	event := handoff.Event{
		Kind: e.kind, Epoch: g.lease.Epoch, Node: e.node, Tag: e.tag, Within: e.within, Message: e.message,
	}
	if e.evidence != "" {
		event.Evidence = &handoff.Evidence{Kind: e.evidence}
	}
	l, _, err := handoff.Step(g.lease, event, clockAt(now))
	if err != nil {
		return stepped{err: err}
	}
	c, err := g.content.put(l)
	return stepped{content: c, err: err}
}
