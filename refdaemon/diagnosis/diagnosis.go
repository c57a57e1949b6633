// SPDX-License-Identifier: Apache-2.0

// Package diagnosis explains the state of a VirtualMachine, a VMI, a migration and a node: what it waits for, what blocks
// it, why, and the remedy. The decisions are those of the controllers' own code, run on a live cluster or
// on a dump of one.
//
// Only the controller knows whether its caches lag and which of its writes they miss; it can be asked for
// that (package cachestate). A diagnosis without its answer says so.
package diagnosis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/plaintext"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/explain"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/vm/vmctrl"
	"github.com/virtloom/virtloom/vmi/diagnose"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// ErrUnknown means that no object of the name exists.
var ErrUnknown = errors.New("not found")

// Cluster is the cluster to diagnose. All fields but Machines, Settings and Ask are required.
type Cluster struct {
	// Machines decides about VirtualMachines, which it only observes; nil if they are left to another controller.
	Machines *vmctrl.Reconciler
	// Guests and Migrations decide; both only observe.
	VMIs       *vmictrl.Reconciler
	Migrations *migrationctrl.Reconciler
	// Reader reads from their source.
	Reader client.Reader
	// Now is the time of the diagnosis.
	Now time.Time
	// SilentAfter is the time without a heartbeat after which a node counts as unresponsive.
	SilentAfter time.Duration
	// Settings are the settings of Guests and Migrations by flag, to be compared with those of the controller.
	Settings map[string]string
	// Ask asks the controller for its view; nil if it is not asked.
	Ask func(context.Context, cachestate.Question) (*cachestate.State, error)
}

// Guest is the diagnosis of a VMI.
type VMI struct {
	diagnose.Diagnosis
	// Migrations are the unfinished migrations of the VMI.
	Migrations []MigrationSummary `json:"migrations,omitempty"`
	// Controller is the view of the controller.
	Controller Controller `json:"controller"`
}

// Move is the summary of a migration of a VMI.
type MigrationSummary struct {
	// Name is the migration's, Phase its phase.
	Name  string                                  `json:"name"`
	Phase v1.VirtualMachineInstanceMigrationPhase `json:"phase"`
	// Responsible is the component that has to act next, Reason and Message say why, Unblock says what ends the wait.
	Responsible handoff.Responsible `json:"owner"`
	Reason      migration.Reason    `json:"reason,omitempty"`
	Message     string              `json:"message,omitempty"`
	Unblock     string              `json:"unblock,omitempty"`
}

// Migration is the diagnosis of a migration.
type Migration struct {
	explain.Explanation
	// Controller is the view of the controller.
	Controller Controller `json:"controller"`
}

// Guest diagnoses a VMI. Its error wraps ErrUnknown if there is none of the name.
func (c *Cluster) VMI(ctx context.Context, key types.NamespacedName) (*VMI, error) {
	d, err := c.VMIs.Explain(ctx, key)
	if err != nil {
		return nil, err
	}
	if d == nil {
		return nil, c.unknown(ctx, v1.VirtualMachineInstanceGroupVersionKind.Kind, key, &v1.VirtualMachineInstanceList{})
	}
	g := &VMI{Diagnosis: *d}
	if err := c.place(ctx, g); err != nil {
		return nil, err
	}
	var all v1.VirtualMachineInstanceMigrationList
	if err := c.Reader.List(ctx, &all, client.InNamespace(key.Namespace)); err != nil {
		return nil, fmt.Errorf("list the migrations of namespace %s: %w", key.Namespace, err)
	}
	for i := range all.Items {
		m := &all.Items[i]
		if m.Spec.VMIName != key.Name || m.IsFinal() {
			continue
		}
		e, err := c.Migrations.Explain(ctx, client.ObjectKeyFromObject(m))
		if err != nil {
			return nil, err
		}
		if e != nil {
			g.Migrations = append(g.Migrations, MigrationSummary{Name: e.Migration, Phase: e.Phase, Responsible: e.Responsible, Reason: e.Reason, Message: e.Message, Unblock: e.Unblock})
		}
	}
	g.Controller = c.sees(ctx, cachestate.Question{Kind: cachestate.VMI, NamespacedName: key})
	return g, nil
}

// place explains, for an unschedulable Pod, why each node rejects it.
func (c *Cluster) place(ctx context.Context, g *VMI) error {
	i := slices.IndexFunc(g.Findings, func(f diagnose.Finding) bool { return f.Kind == diagnose.Unschedulable })
	if i < 0 || g.Pod == nil {
		return nil
	}
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := errors.Join(c.Reader.List(ctx, &nodes), c.Reader.List(ctx, &pods)); err != nil {
		return fmt.Errorf("list Nodes and Pods: %w", err)
	}
	var pod *corev1.Pod
	var others []*corev1.Pod
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Namespace == g.Namespace && p.Name == g.Pod.Name {
			pod = p
		} else {
			others = append(others, p)
		}
	}
	if pod == nil {
		return nil
	}
	all := make([]*corev1.Node, len(nodes.Items))
	for i := range nodes.Items {
		all[i] = &nodes.Items[i]
	}
	fit := placement.NewNodeUsage(others).Fit(pod, "", all)
	f := &g.Findings[i]
	f.Details = append(f.Details, "nodes: "+fit.Text())
	if len(fit.Candidates) > 0 {
		f.Details = append(f.Details, "candidate nodes by labels, taints and free resources: "+few(fit.Candidates))
		return nil
	}
	for _, r := range fit.Remedies() {
		f.Details = append(f.Details, "remedy: "+r)
	}
	return nil
}

// Migration diagnoses a migration. Its error wraps ErrUnknown if there is none of the name.
func (c *Cluster) Migration(ctx context.Context, key types.NamespacedName) (*Migration, error) {
	e, err := c.Migrations.Explain(ctx, key)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, c.unknown(ctx, v1.VirtualMachineInstanceMigrationGroupVersionKind.Kind, key, &v1.VirtualMachineInstanceMigrationList{})
	}
	return &Migration{Explanation: *e, Controller: c.sees(ctx, cachestate.Question{Kind: cachestate.Migration, NamespacedName: key})}, nil
}

// unknown returns an error that wraps ErrUnknown and lists the existing names.
func (c *Cluster) unknown(ctx context.Context, kind string, key types.NamespacedName, list client.ObjectList) error {
	name := key.String()
	var where []client.ListOption
	in := ""
	if key.Namespace == "" {
		name = key.Name
	} else {
		where, in = append(where, client.InNamespace(key.Namespace)), " in namespace "+key.Namespace
	}
	if err := c.Reader.List(ctx, list, where...); err != nil {
		return fmt.Errorf("there is no %s %s: %w", kind, name, ErrUnknown)
	}
	var names []string
	err := meta.EachListItem(list, func(o runtime.Object) error {
		a, err := meta.Accessor(o)
		if err == nil {
			names = append(names, a.GetName())
		}
		return err
	})
	if err != nil || len(names) == 0 {
		return fmt.Errorf("there is no %s %s: %w; there is none%s: specify another namespace, or check whether it was deleted", kind, name, ErrUnknown, in)
	}
	return fmt.Errorf("there is no %s %s: %w; specify an existing one%s: %s", kind, name, ErrUnknown, in, few(names))
}

// few lists the first names and counts the others.
func few(names []string) string {
	if n := len(names); n > 8 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:8], ", "), n-8)
	}
	return strings.Join(names, ", ")
}

// writeLine adds a labeled line of a diagnosis.
func writeLine(b *strings.Builder, label, format string, args ...any) {
	plaintext.Put(b, "%-13s "+format, append([]any{label}, args...)...)
}
