// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// Moves is the summary of migrations in the audit log: how many acted at a time, and when
// each took its steps.
type Moves struct {
	// Pods is how many migrations at most had a target Pod and had not ended; Cluster how
	// many of these had been handed over to the nodes.
	Pods, Cluster int
	// Outbound and Inbound are how many at most left and entered each node.
	Outbound, Inbound map[string]int
	// All are the migrations that got a target Pod, in the order in which they did.
	All []Move
}

// Move is one migration. Times are zero for what has not happened.
type Move struct {
	// UID is the migration's, VMI the name of its guest.
	UID types.UID
	VMI types.NamespacedName
	// Source and Target are nodes, known from the handoff on.
	Source, Target string
	// Created is when its target Pod was requested, HandedOver when the nodes got the migration, Ended when
	// its end was written to the API server, in the VMI or the migration, and Freed when that was stored.
	Created, HandedOver, Ended, Freed time.Time
}

// MovesOf reads migrations from the audit log, see [Rig.Requests].
func MovesOf(requests []Request) (Moves, error) {
	m := Moves{Outbound: map[string]int{}, Inbound: map[string]int{}}
	requests = slices.Clone(requests)
	slices.SortStableFunc(requests, func(a, b Request) int { return a.Received.Compare(b.Received) })
	for i := range requests {
		q := &requests[i]
		if !q.Accepted() {
			continue
		}
		var err error
		switch {
		case q.What() == "create pods":
			err = m.addTargetPod(q)
		case q.ObjectRef.Resource == "virtualmachineinstances" && q.ResponseObject != nil:
			err = m.addHandoff(q)
		case q.ObjectRef.Resource == "virtualmachineinstancemigrations" && q.ResponseObject != nil:
			err = m.addPhase(q)
		}
		if err != nil {
			return m, fmt.Errorf("rig: read the audit log: %s: %w", q.What(), err)
		}
	}
	return m, nil
}

func (m *Moves) findMove(uid types.UID) *Move {
	i := slices.IndexFunc(m.All, func(o Move) bool { return o.UID == uid })
	if i < 0 {
		return nil
	}
	return &m.All[i]
}

func (m *Moves) addTargetPod(q *Request) error {
	var p corev1.Pod
	if err := json.Unmarshal(q.RequestObject, &p); err != nil {
		return err
	}
	uid := types.UID(p.Labels[v1.MigrationJobLabel])
	if uid == "" || p.Labels[v1.AppLabel] != "virt-launcher" || len(p.OwnerReferences) == 0 || m.findMove(uid) != nil {
		return nil
	}
	m.All = append(m.All, Move{
		UID: uid, Created: q.Received, VMI: types.NamespacedName{Namespace: q.ObjectRef.Namespace, Name: p.OwnerReferences[0].Name},
	})
	m.count()
	return nil
}

func (m *Moves) addHandoff(q *Request) error {
	var g v1.VirtualMachineInstance
	if err := json.Unmarshal(q.ResponseObject, &g); err != nil {
		return err
	}
	ms := g.Status.MigrationState
	if ms == nil || ms.TargetNode == "" {
		return nil
	}
	o := m.findMove(ms.MigrationUID)
	if o == nil {
		return nil
	}
	if o.HandedOver.IsZero() {
		o.HandedOver, o.Source, o.Target = q.Received, ms.SourceNode, ms.TargetNode
		m.count()
	}
	if ms.Completed && o.Ended.IsZero() {
		o.Ended, o.Freed = q.Received, q.Answered
	}
	return nil
}

func (m *Moves) addPhase(q *Request) error {
	var vmim v1.VirtualMachineInstanceMigration
	if err := json.Unmarshal(q.ResponseObject, &vmim); err != nil {
		return err
	}
	if o := m.findMove(vmim.UID); o != nil && vmim.IsFinal() && o.Ended.IsZero() {
		o.Ended, o.Freed = q.Received, q.Answered
	}
	return nil
}

// count raises the peaks to what is the case now.
func (m *Moves) count() {
	pods, cluster, outbound, inbound := 0, 0, map[string]int{}, map[string]int{}
	for i := range m.All {
		o := &m.All[i]
		if !o.Ended.IsZero() {
			continue
		}
		pods++
		if o.HandedOver.IsZero() {
			continue
		}
		cluster++
		outbound[o.Source]++
		inbound[o.Target]++
	}
	m.Pods, m.Cluster = max(m.Pods, pods), max(m.Cluster, cluster)
	for n, c := range outbound {
		m.Outbound[n] = max(m.Outbound[n], c)
	}
	for n, c := range inbound {
		m.Inbound[n] = max(m.Inbound[n], c)
	}
}
