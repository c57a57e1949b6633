// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// unfit returns Pods that a user may create in place of that of a controller.
func unfit(vmi *v1.VirtualMachineInstance) map[string][]*corev1.Pod {
	but := func(edit func(*corev1.Pod)) []*corev1.Pod {
		p := launcherPod(vmi)
		edit(p)
		return []*corev1.Pod{p}
	}
	at := metav1.NewTime(decideNow)
	return map[string][]*corev1.Pod{
		"none":                     nil,
		"without an owner":         but(func(p *corev1.Pod) { p.OwnerReferences = nil }),
		"of an earlier object":     but(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "uid-0" }),
		"of another guest":         but(func(p *corev1.Pod) { p.OwnerReferences[0].Name = "other" }),
		"of another namespace":     but(func(p *corev1.Pod) { p.Namespace = "other" }),
		"owned, not controlled":    but(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }),
		"of another kind":          but(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }),
		"of another group":         but(func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.test/v1" }),
		"on another node":          but(func(p *corev1.Pod) { p.Spec.NodeName = there }),
		"on no node":               but(func(p *corev1.Pod) { p.Spec.NodeName = "" }),
		"of another app":           but(func(p *corev1.Pod) { p.Labels[v1.AppLabel] = "hotplug-disk" }),
		"labelled with other UID":  but(func(p *corev1.Pod) { p.Labels[v1.CreatedByLabel] = "uid-0" }),
		"for claims only":          but(func(p *corev1.Pod) { p.Annotations = map[string]string{v1.EphemeralProvisioningObject: "true"} }),
		"of another migration":     but(func(p *corev1.Pod) { p.Labels[v1.MigrationJobLabel] = "migration-0" }),
		"finished":                 but(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		"being deleted":            but(func(p *corev1.Pod) { p.DeletionTimestamp = &at }),
		"its compute container up": but(func(p *corev1.Pod) { p.Status.ContainerStatuses = computeEnded }),
	}
}

var computeEnded = []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}

// forgedLeases returns all kinds of leases with regard to this node, and none.
func forgedLeases() map[string]*handoff.Lease {
	out := map[string]*handoff.Lease{"no lease": nil}
	add := func(name string, l handoff.Lease) { out[name] = &l }
	add("unclaimed", handoff.Lease{})
	add("offered", leased(offerHere))
	add("accepted", leased(offerHere, acceptHere))
	add("started", leased(offerHere, acceptHere, startedHere))
	for _, dir := range [][2]string{{here, there}, {there, here}} {
		for name, l := range leasesOfAMove(dir[0], dir[1]) {
			add(dir[0]+" to "+dir[1]+" "+name, l)
		}
	}
	huge := leased(offerHere)
	huge.Epoch = 1 << 62
	add("offered, epoch forged", huge)
	return out
}

// forged returns a VMI into which a user has written the fields of a controller.
func forged(phase v1.VirtualMachineInstancePhase, labels map[string]string, l *handoff.Lease) *v1.VirtualMachineInstance {
	if l != nil {
		vmi := placed(phase, *l)
		if labels[v1.NodeNameLabel] == "" {
			delete(vmi.Labels, v1.NodeNameLabel)
		}
		return vmi
	}
	vmi := placed(phase, handoff.Lease{})
	delete(vmi.Annotations, handoff.Annotation)
	vmi.Labels, vmi.Status.NodeName = labels, labels[v1.NodeNameLabel]
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: job, SourceNode: there, TargetNode: labels[v1.MigrationTargetNodeNameLabel]}
	return vmi
}

func eachForged(t *testing.T, do func(t *testing.T, vmi *v1.VirtualMachineInstance)) {
	t.Helper()
	for _, phase := range []v1.VirtualMachineInstancePhase{
		v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Succeeded, v1.Failed, v1.WaitingForSync, v1.Unknown, "Forged",
	} {
		for label, labels := range map[string]map[string]string{
			"no label": {}, "label of this node": {v1.NodeNameLabel: here}, "target label": {v1.NodeNameLabel: there, v1.MigrationTargetNodeNameLabel: here},
		} {
			for name, l := range forgedLeases() {
				t.Run(fmt.Sprintf("phase %q, %s, %s", phase, label, name), func(t *testing.T) { do(t, forged(phase, labels, l)) })
			}
		}
	}
}

func starts(a action.Action) bool {
	return a.Verb == action.Migrate || a.Verb == action.Apply && a.Operation.Verb == domain.Start
}

// TestProof_ForgedOwnership has all fields that a user may write into an object, and no Pod of
// a controller.
func TestProof_ForgedOwnership(t *testing.T) {
	eachForged(t, func(t *testing.T, vmi *v1.VirtualMachineInstance) {
		before, err := handoff.Of(vmi)
		if err != nil {
			t.Fatal(err)
		}
		for name, pods := range unfit(vmi) {
			s := plan.Snapshot{Node: here, TargetEndpoint: listening, VMI: vmi, Pods: pods, Desired: &libvirtxml.Domain{Name: "ns_guest"}}
			if name == "of another migration" && before.State == handoff.Owned && !before.MayStart(here) {
				continue // nothing is to be started
			}
			got, err := plan.Decide(s, decideNow)
			if err != nil {
				t.Fatalf("Pod %s: %v", name, err)
			}
			after, err := handoff.Of(got.VMI)
			if err != nil {
				t.Fatal(err)
			}
			if before.State == handoff.Offered && (after.State == handoff.Owned && before.Holder == here) || before.State == handoff.Preparing && after.State == handoff.Prepared {
				t.Errorf("Pod %s: the lease is believed: %+v", name, after)
			}
			for _, a := range got.Actions {
				if starts(a) || a.Verb == action.Cleanup && a.UID != vmi.UID {
					t.Errorf("Pod %s: %s of %q", name, a, a.UID)
				}
			}
			missing := s.NeedsProof() && vmi.DeletionTimestamp == nil && !vmi.IsFinal() && (before.State == handoff.Offered || vmi.Status.Phase == v1.Scheduled)
			if text := lacks(got.VMI); missing && handoff.RoleOf(before, here) != handoff.RoleTarget && !strings.Contains(text, "launcher Pod") {
				t.Errorf("Pod %s: the object says %q", name, text)
			}
		}
	})
}

// lacks returns the message of the condition about the missing Pod.
func lacks(vmi *v1.VirtualMachineInstance) string {
	for _, c := range vmi.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceSynchronized && c.Reason == status.ReasonUnproven {
			return c.Message
		}
	}
	return ""
}

// TestProof_MissingForRunningVMI compares the plans for a running VMI with and without its Pod.
func TestProof_MissingForRunningVMI(t *testing.T) {
	eachForged(t, func(t *testing.T, vmi *v1.VirtualMachineInstance) {
		for _, state := range []*domain.State{runs(domain.StatusRunning, ""), runs(domain.StatusPaused, domain.ReasonUser), runs(domain.StatusRunning, "", epoch(1<<62))} {
			s := plan.Snapshot{Node: here, TargetEndpoint: listening, VMI: vmi, State: state, Desired: &libvirtxml.Domain{Name: "ns_guest"}}
			with, err := plan.Decide(proven(s), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			without, err := plan.Decide(s, decideNow)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range without.Actions {
				ends := a.Verb == action.Cleanup || slices.Contains([]domain.Verb{domain.Destroy, domain.Undefine, domain.Shutdown}, a.Operation.Verb)
				if ends && !slices.ContainsFunc(with.Actions, func(o action.Action) bool { return o.Verb == a.Verb && o.Operation.Verb == a.Operation.Verb }) {
					t.Errorf("without a Pod: %s", a)
				}
			}
		}
	})
}

func TestProof_ControllersPod(t *testing.T) {
	desired := &libvirtxml.Domain{Name: "ns_guest"}
	stock := placed(v1.Scheduled, handoff.Lease{})
	delete(stock.Annotations, handoff.Annotation)
	stock.Labels, stock.Status.NodeName = map[string]string{v1.NodeNameLabel: here}, here
	for name, tt := range map[string]struct {
		vmi  *v1.VirtualMachineInstance
		want string
	}{
		"offered":                  {placed(v1.Scheduled, leased(offerHere)), "Start"},
		"accepted":                 {placed(v1.Scheduled, leased(offerHere, acceptHere)), "Start"},
		"by a stock controller":    {stock, "Start"},
		"to come, and not started": {placed(v1.Running, leased(handoff.Event{Kind: handoff.Offer, Node: there}, handoff.Event{Kind: handoff.Accept, Node: there}, handoff.Event{Kind: handoff.Started, Node: there}, handoff.Event{Kind: handoff.Prepare, Node: here, Tag: job})), ""},
	} {
		s := proven(plan.Snapshot{Node: here, TargetEndpoint: listening, VMI: tt.vmi, Desired: desired})
		s.Pods[0].Name = "virt-launcher-guest-x7k2p" // as a stock controller names it
		got, err := plan.Decide(s, decideNow)
		if err != nil {
			t.Fatal(err)
		}
		l, err := handoff.Of(got.VMI)
		if err != nil || verbs(got) != tt.want || l.State != handoff.Owned && l.State != handoff.Prepared {
			t.Errorf("%s: %v, lease %s, %v", name, verbs(got), l.State, err)
		}
	}
}

// TestProof_EarlierVMIEndsFirst has an object that was deleted, its finalizer removed by a user,
// and recreated while the domain ran.
func TestProof_EarlierVMIEndsFirst(t *testing.T) {
	vmi := placed(v1.Scheduled, leased(offerHere), func(v *v1.VirtualMachineInstance) { v.UID = "uid-2" })
	s := proven(plan.Snapshot{Node: here, VMI: vmi, State: runs(domain.StatusRunning, ""), Desired: &libvirtxml.Domain{Name: "ns_guest"}, OrphanedUIDs: []types.UID{"uid-1"}})
	decided, err := plan.Decide(s, decideNow)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := handoff.Of(decided.VMI)
	if got := verbs(decided); got != "SetMetadata, Shutdown" || l.State != handoff.Offered {
		t.Errorf("%s, lease %s; want the earlier guest to be shut down, and the new one to wait", got, l.State)
	}
	c := slices.IndexFunc(decided.VMI.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
		return c.Type == v1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "uid-1")
	})
	if c < 0 {
		t.Errorf("conditions %+v do not say what the guest waits for", decided.VMI.Status.Conditions)
	}
	s.State, s.VMI = nil, decided.VMI
	if decided, err = plan.Decide(s, decideNow.Add(time.Minute)); err != nil || verbs(decided) != "Start, Cleanup" {
		t.Errorf("%s, %v; want the new one to start when it has ended", verbs(decided), err)
	}
}

// TestProof_DomainOfOtherName has domains whose metadata names another VMI, as a compromised
// launcher may return them.
func TestProof_DomainOfOtherName(t *testing.T) {
	for name, edit := range map[string]func(*domain.State){
		"another name":      func(s *domain.State) { s.Metadata.Name, s.Metadata.UID = "victim", "uid-victim" },
		"another namespace": func(s *domain.State) { s.Metadata.Namespace, s.Metadata.UID = "prod", "uid-victim" },
		"another UID":       func(s *domain.State) { s.Metadata.UID = "uid-victim" },
	} {
		for _, status := range []domain.Status{domain.StatusRunning, domain.StatusShutoff} {
			for _, vmi := range []*v1.VirtualMachineInstance{nil, placed(v1.Running, leased(offerHere, acceptHere, startedHere)), placed(v1.Running, leased(handoff.Event{Kind: handoff.Offer, Node: there}))} {
				st := runs(status, "")
				edit(st)
				got, err := plan.Decide(plan.Snapshot{Node: here, VMI: vmi, State: st}, decideNow)
				if err != nil {
					t.Fatal(err)
				}
				for _, a := range got.Actions {
					if a.UID == "uid-victim" {
						t.Errorf("%s, %s: %s of the victim", name, status, a)
					}
				}
			}
		}
	}
}

// TestProof_ControlAnnotations sets annotations that only controllers set.
func TestProof_ControlAnnotations(t *testing.T) {
	eachForged(t, func(t *testing.T, vmi *v1.VirtualMachineInstance) {
		for _, state := range []*domain.State{nil, runs(domain.StatusRunning, "")} {
			plain, err := plan.Decide(proven(plan.Snapshot{Node: here, TargetEndpoint: listening, VMI: vmi, State: state, Desired: &libvirtxml.Domain{Name: "ns_guest"}}), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{v1.CreateMigrationTarget, v1.EvictionSourceAnnotation, "virtloom.dev/guest-uid", "virtloom.dev/update", "virtloom.dev/anything"} {
				marked := vmi.DeepCopy()
				if marked.Annotations == nil {
					marked.Annotations = map[string]string{}
				}
				marked.Annotations[key] = "true"
				decided, err := plan.Decide(proven(plan.Snapshot{Node: here, TargetEndpoint: listening, VMI: marked, State: state, Desired: &libvirtxml.Domain{Name: "ns_guest"}}), decideNow)
				if err != nil {
					t.Fatal(err)
				}
				waits := key == v1.CreateMigrationTarget && slices.ContainsFunc(plain.Actions, starts) && !slices.ContainsFunc(decided.Actions, starts)
				if got, want := verbs(decided), verbs(plain); got != want && !waits {
					t.Errorf("%s: %q instead of %q", key, got, want)
				}
			}
		}
	})
}
