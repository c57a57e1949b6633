// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/instancetype"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

// The kinds of findings about VirtualMachines, besides those about VMIs.
const (
	// NotStarted means that it has no VMI, and is not to be started.
	NotStarted diagnose.FindingKind = "NotStarted"
	// BackOff means that its VMIs failed before they ran, and the next start is delayed.
	BackOff diagnose.FindingKind = "BackOff"
	// RestartRequired means that a change takes effect at its next start only.
	RestartRequired diagnose.FindingKind = "RestartRequired"
	// RecoveryRequired means that it is not started before a user has corrected its volumes.
	RecoveryRequired diagnose.FindingKind = "RecoveryRequired"
	// WaitingForGuest means that its VMI must act, which has findings of its own.
	WaitingForVMI diagnose.FindingKind = "WaitingForGuest"
	// Unmanaged means that VirtualMachines are left to another controller.
	Unmanaged diagnose.FindingKind = "Unmanaged"
)

// Machine is the diagnosis of a VirtualMachine, down to its VMI.
type Machine struct {
	// Namespace and Name name it, At is the time of the diagnosis.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	At        time.Time `json:"at"`
	// Status is its printable status, and Becomes the one that the next pass stores; empty if it does not change.
	Status  v1.VirtualMachinePrintableStatus `json:"status"`
	Becomes v1.VirtualMachinePrintableStatus `json:"becomes,omitempty"`
	// Strategy is its run strategy; empty if that is contradictory.
	Strategy v1.VirtualMachineRunStrategy `json:"runStrategy"`
	// Instancetype and Preference name what it refers to, with the revisions in use.
	Instancetype string `json:"instancetype,omitempty"`
	Preference   string `json:"preference,omitempty"`
	// Requests are the open requests in its status, in order.
	Requests []string `json:"requests,omitempty"`
	// Failures is how many VMIs in a row have failed before they ran, RetryAt when the next may be started.
	Failures int        `json:"failures,omitempty"`
	RetryAt  *time.Time `json:"retryAt,omitempty"`
	// Next lists the writes of the next pass except that of the status.
	Next []MachineStep `json:"next,omitempty"`
	// Turn is what all else waits for: a finding about the VM or its VMI, or a migration; nil if nothing is waited for.
	Turn *Turn `json:"turn,omitempty"`
	// Findings lists blockers and problems, the most significant first.
	Findings []diagnose.Finding `json:"findings"`
	// Guest is the diagnosis of its VMI, with Pod and migrations; nil if it has none.
	VMI *VMI `json:"guest,omitempty"`
	// Controller is the view of the controller.
	Controller Controller `json:"controller"`
}

// MachineStep is a write that the next pass over a VirtualMachine makes.
type MachineStep struct {
	// Verb is the kind of write, Name the object's, Why its cause.
	Verb vm.Verb `json:"verb"`
	Name string  `json:"name"`
	Why  string  `json:"why"`
}

// Turn is whose turn it is.
type Turn struct {
	// Responsible is the component that has to act next, Until the event that is waited for, Object what it is about.
	Responsible handoff.Responsible `json:"by"`
	Until       string              `json:"until,omitempty"`
	Object      string              `json:"object,omitempty"`
}

// Machine diagnoses a VirtualMachine. Its error wraps ErrUnknown if there is none of the name.
func (c *Cluster) Machine(ctx context.Context, key types.NamespacedName) (*Machine, error) {
	of := &v1.VirtualMachine{}
	switch err := c.Reader.Get(ctx, key, of); {
	case apierrors.IsNotFound(err):
		return nil, c.unknown(ctx, v1.VirtualMachineGroupVersionKind.Kind, key, &v1.VirtualMachineList{})
	case err != nil:
		return nil, fmt.Errorf("read VirtualMachine %s: %w", key, err)
	}
	m := newMachine(of, c.Now)
	if err := c.decide(ctx, m, of); err != nil {
		return nil, err
	}
	if err := c.descend(ctx, m, of); err != nil {
		return nil, err
	}
	m.notStarted()
	m.Turn = m.turn()
	m.Controller = c.sees(ctx, cachestate.Question{Kind: cachestate.Machine, NamespacedName: key})
	return m, nil
}

// newMachine returns what the object itself says.
func newMachine(of *v1.VirtualMachine, now time.Time) *Machine {
	m := &Machine{Namespace: of.Namespace, Name: of.Name, At: now, Status: of.Status.PrintableStatus, Findings: []diagnose.Finding{}}
	m.Strategy, _ = of.RunStrategy() // a contradiction is a finding of the controller
	if r := of.Spec.Instancetype; r != nil {
		kind := cmp.Or(r.Kind, instancetype.KindClusterInstancetype)
		m.Instancetype = definition(kind, r.Name, r.InferFromVolume, cmp.Or(r.RevisionName, revisionOf(of.Status.InstancetypeRef)))
	}
	if r := of.Spec.Preference; r != nil {
		kind := cmp.Or(r.Kind, instancetype.KindClusterPreference)
		m.Preference = definition(kind, r.Name, r.InferFromVolume, cmp.Or(r.RevisionName, revisionOf(of.Status.PreferenceRef)))
	}
	m.Requests = requests(&of.Status)
	if f := of.Status.StartFailure; f != nil {
		m.Failures = f.ConsecutiveFailCount
		if f.RetryAfterTimestamp != nil {
			m.RetryAt = &f.RetryAfterTimestamp.Time
		}
	}
	return m
}

// definition describes what a matcher selects.
func definition(kind, name, volume, revision string) string {
	text := kind + " " + cmp.Or(name, "of volume "+volume)
	if revision != "" {
		text += ", as stored in ControllerRevision " + revision
	}
	return text
}

func revisionOf(ref *v1.InstancetypeStatusRef) string {
	if ref == nil || ref.ControllerRevisionRef == nil {
		return ""
	}
	return ref.ControllerRevisionRef.Name
}

// requests describes the open requests of a VM.
func requests(st *v1.VirtualMachineStatus) (all []string) {
	for _, r := range st.StateChangeRequests {
		text := strings.ToLower(string(r.Action))
		if r.UID != nil {
			text += " of the VMI with UID " + string(*r.UID)
		}
		all = append(all, text)
	}
	for _, r := range st.VolumeRequests {
		switch {
		case r.AddVolumeOptions != nil:
			all = append(all, "add volume "+r.AddVolumeOptions.Name)
		case r.RemoveVolumeOptions != nil:
			all = append(all, "remove volume "+r.RemoveVolumeOptions.Name)
		}
	}
	if r := st.MemoryDumpRequest; r != nil {
		all = append(all, fmt.Sprintf("memory dump to claim %s: %s", r.ClaimName, r.Phase))
	}
	return all
}

// decide adds what the next pass of the controller does, and what it waits for.
func (c *Cluster) decide(ctx context.Context, m *Machine, of *v1.VirtualMachine) error {
	if c.Machines == nil {
		m.Findings = append(m.Findings, diagnose.Finding{Kind: Unmanaged, What: "the controller leaves VirtualMachines to another one (--virtual-machines=false)",
			Why: "only that one starts and stops the VM", Remedy: "check that it runs, and its log", Object: m.object()})
		return nil
	}
	plan, err := c.Machines.Plan(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Name})
	if err != nil || plan == nil {
		return err
	}
	if s := plan.VM.Status.PrintableStatus; s != m.Status {
		m.Becomes = s
	}
	for _, a := range plan.Actions {
		m.Next = append(m.Next, MachineStep{Verb: a.Verb, Name: a.Name, Why: a.Why})
	}
	for _, w := range plan.Waits {
		f := adviseMachine(w, plan.VM)
		if err := c.populating(ctx, &f, m.Namespace); err != nil {
			return err
		}
		m.Findings = append(m.Findings, f)
	}
	m.lastFailure(of, plan.VM)
	m.ending(of)
	return nil
}

// populating adds the progress of a DataVolume that is waited for.
func (c *Cluster) populating(ctx context.Context, f *diagnose.Finding, namespace string) error {
	name, is := strings.CutPrefix(f.Object, instancetype.KindDataVolume+" "+namespace+"/")
	if !is {
		return nil
	}
	dv := &cdiv1.DataVolume{}
	switch err := c.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, dv); {
	case apierrors.IsNotFound(err): // deleted meanwhile
		return nil
	case err != nil:
		return fmt.Errorf("read DataVolume %s/%s: %w", namespace, name, err)
	}
	if p := dv.Status.Progress; p != "" {
		f.Details = append(f.Details, "progress: "+string(p))
	}
	for _, condition := range dv.Status.Conditions {
		if condition.Status != corev1.ConditionTrue && condition.Message != "" {
			f.Details = append(f.Details, fmt.Sprintf("%s: %s: %s", condition.Type, condition.Reason, condition.Message))
		}
	}
	return nil
}

// lastFailure adds the stored failure of a write, which an observer cannot repeat.
func (m *Machine) lastFailure(of, next *v1.VirtualMachine) {
	f := machineCondition(of, v1.VirtualMachineFailure)
	if f == nil || machineCondition(next, v1.VirtualMachineFailure) != nil {
		return
	}
	m.Findings = slices.Insert(m.Findings, 0, diagnose.Finding{Kind: diagnose.LastWriteFailed, Reason: f.Reason, What: "the last attempt failed: " + f.Message,
		Why: "the write was rejected, or what it needs was not there", Remedy: "do as the message says; retried automatically", Object: m.object(),
		Responsible: handoff.ByController, Until: "a retry succeeds"})
}

// ending adds what keeps a deleted VM.
func (m *Machine) ending(of *v1.VirtualMachine) {
	if of.DeletionTimestamp == nil {
		return
	}
	f := diagnose.Finding{Kind: diagnose.Ending, What: "the VirtualMachine is being deleted; finalizers: " + cmp.Or(few(of.Finalizers), "none"),
		Why: "it is removed once its VMI is gone and its finalizers are removed", Remedy: "none, while its VMI ends; remove a finalizer by hand only if its owner no longer exists",
		Object: m.object(), Responsible: handoff.ByController, Until: "its finalizers are removed"}
	if others := slices.DeleteFunc(slices.Clone(of.Finalizers), func(s string) bool { return s == v1.VirtualMachineControllerFinalizer }); len(others) == len(of.Finalizers) && len(others) > 0 {
		f.Responsible = handoff.ByUser
	}
	m.Findings = append(m.Findings, f)
}

// descend adds the diagnosis of the VM's own VMI.
func (c *Cluster) descend(ctx context.Context, m *Machine, of *v1.VirtualMachine) error {
	key, vmi := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, &v1.VirtualMachineInstance{}
	switch err := c.Reader.Get(ctx, key, vmi); {
	case apierrors.IsNotFound(err), err == nil && !metav1.IsControlledBy(vmi, of):
		return nil
	case err != nil:
		return fmt.Errorf("read VirtualMachineInstance %s: %w", key, err)
	}
	var err error
	m.VMI, err = c.VMI(ctx, key)
	return err
}

// notStarted adds why a VM without a VMI stays so, if nothing else does.
func (m *Machine) notStarted() {
	starts := slices.ContainsFunc(m.Next, func(s MachineStep) bool {
		return s.Verb == vm.CreateVMI || s.Verb == vm.AdoptVMI || s.Verb == vm.UpdateVM
	})
	if m.VMI != nil || len(m.Findings) > 0 || starts {
		return
	}
	why := map[v1.VirtualMachineRunStrategy]string{
		v1.RunStrategyHalted:         "a halted VM is started by users only",
		v1.RunStrategyManual:         "it is started upon request only, and none is open",
		v1.RunStrategyRerunOnFailure: "its VMI has ended well, or was stopped; it is started again upon request only",
	}[m.Strategy]
	if why == "" {
		return
	}
	m.Findings = append(m.Findings, diagnose.Finding{Kind: NotStarted, What: fmt.Sprintf("it has no VMI, by its run strategy %s", m.Strategy), Why: why,
		Remedy: "none, if it is to be stopped; else set spec.runStrategy to Always", Object: m.object(), Responsible: handoff.ByUser, Until: "it is started"})
}

// turn returns what all else waits for. A VM that only waits for its VMI, or that runs until a restart, leaves that to the VMI.
func (m *Machine) turn() *Turn {
	later := func(f diagnose.Finding) bool { return f.Kind == WaitingForVMI || f.Kind == RestartRequired }
	all := slices.DeleteFunc(slices.Clone(m.Findings), later)
	if m.VMI != nil {
		all = append(all, m.VMI.Findings...)
	}
	for _, f := range all {
		if f.Responsible != "" {
			return &Turn{Responsible: f.Responsible, Until: f.Until, Object: f.Object}
		}
	}
	if m.VMI != nil && len(m.VMI.Migrations) > 0 {
		move := m.VMI.Migrations[0]
		return &Turn{Responsible: move.Responsible, Until: move.Unblock, Object: v1.VirtualMachineInstanceMigrationGroupVersionKind.Kind + " " + m.Namespace + "/" + move.Name}
	}
	if i := slices.IndexFunc(m.Findings, later); i >= 0 {
		return &Turn{Responsible: m.Findings[i].Responsible, Until: m.Findings[i].Until, Object: m.Findings[i].Object}
	}
	if len(m.Next) > 0 {
		return &Turn{Responsible: handoff.ByController, Until: "its next pass has written", Object: m.object()}
	}
	return nil
}

func (m *Machine) object() string {
	return v1.VirtualMachineGroupVersionKind.Kind + " " + m.Namespace + "/" + m.Name
}

// machineCondition returns a condition that is true; nil if it is not.
func machineCondition(of *v1.VirtualMachine, t v1.VirtualMachineConditionType) *v1.VirtualMachineCondition {
	for i := range of.Status.Conditions {
		if c := &of.Status.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
