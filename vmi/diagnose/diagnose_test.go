// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/diagnose"
	"github.com/virtloom/virtloom/vmi/internal/vmifixture"
)

var (
	now         = vmifixture.Now
	guest       = vmifixture.VMI
	on          = vmifixture.On
	deleting    = vmifixture.Deleting
	lease       = vmifixture.Lease
	pod         = vmifixture.Pod
	podPhase    = vmifixture.PodPhase
	terminating = vmifixture.Terminating
	unscheduled = vmifixture.Unscheduled
	waiting     = vmifixture.Waiting
)

var rewrite = flag.Bool("update", false, "rewrite the golden files")

// withCondition adds a condition to the VMI.
func withCondition(of v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason, message string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: of, Status: status, Reason: reason, Message: message})
	}
}

func unsynchronized(reason, message string) func(*v1.VirtualMachineInstance) {
	return withCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, reason, message)
}

// onNode sets the node of a Pod.
func onNode(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func crashing(p *corev1.Pod) {
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "compute", RestartCount: 4, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}},
		{Name: "guest-console-log", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
	}
}

func withDisk(g *v1.VirtualMachineInstance) {
	g.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}}}
}

// filling returns storage with a claim populated by a DataVolume in a phase.
func filling(phase cdiv1.DataVolumePhase, progress string) vmi.Storage {
	yes := true
	dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root", UID: "dv"}}
	dv.Status.Phase, dv.Status.Progress = phase, cdiv1.DataVolumeProgress(progress)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: "root", UID: "dv", Controller: &yes}}}}
	return vmi.Storage{
		Claims:      map[string]*corev1.PersistentVolumeClaim{"root": claim},
		DataVolumes: map[string]*cdiv1.DataVolume{"root": dv},
	}
}

// diagnosis is a snapshot and the expected findings.
type diagnosis struct {
	s vmi.Snapshot
	// want are the kinds of all findings, says is part of the text.
	want []diagnose.FindingKind
	says []string
}

func about(g *v1.VirtualMachineInstance, pods ...*corev1.Pod) vmi.Snapshot {
	return vmi.Snapshot{VMI: g, Pods: pods}
}

func kinds(k ...diagnose.FindingKind) []diagnose.FindingKind { return k }

var diagnoses = map[string]func() diagnosis{
	"at rest": func() diagnosis {
		return diagnosis{about(guest(v1.Running, lease(handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: "node-a"})), pod("p")), nil, []string{"Owned, node node-a, epoch 3", "Findings      none"}}
	},
	"launcher missing, to be made": func() diagnosis {
		return diagnosis{about(guest(v1.Pending)), kinds(diagnose.LauncherMissing), []string{"Next write    CreateLauncher", "check that the controller runs"}}
	},
	"launcher missing, gone": func() diagnosis {
		return diagnosis{about(guest(v1.Running, lease(handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-a"}))), kinds(diagnose.LauncherMissing), []string{"becomes Failed", "what deleted the Pod"}}
	},
	"launcher ended": func() diagnosis {
		return diagnosis{about(guest(v1.Running), pod("p", podPhase(corev1.PodFailed), func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = "Evicted", "disk pressure" })),
			kinds(diagnose.LauncherMissing, diagnose.Ending), []string{"Evicted: disk pressure", "kubectl logs --previous"}}
	},
	"its name is taken": func() diagnosis {
		s := about(guest(v1.Pending))
		s.Foreign = pod("virt-launcher-guest")
		return diagnosis{s, kinds(diagnose.LauncherMissing), []string{"a different owner", "rename it in its controller"}}
	},
	"waiting on a claim": func() diagnosis {
		return diagnosis{about(guest(v1.Pending, withDisk)), kinds(diagnose.WaitingForStorage), []string{"ns/root", "create the claim or DataVolume"}}
	},
	"waiting on a DataVolume": func() diagnosis {
		s := about(guest(v1.Pending, withDisk))
		s.Storage = filling(cdiv1.ImportInProgress, "41.0%")
		return diagnosis{s, kinds(diagnose.WaitingForStorage), []string{"DataVolume ns/root is in phase ImportInProgress (41.0%)", "importer Pod", "by storage"}}
	},
	"networks that are not to be had": func() diagnosis {
		s := about(guest(v1.Pending))
		s.Config.SpecValidator = func(*v1.VirtualMachineInstance) []metav1.StatusCause {
			return []metav1.StatusCause{{Field: "spec.networks[0]", Message: "no such binding"}}
		}
		return diagnosis{s, kinds(diagnose.InvalidNetwork), []string{"spec.networks[0]: no such binding", "correct spec.networks"}}
	},
	"a migration is in the way": func() diagnosis {
		s := about(guest(v1.Pending))
		s.Migrations = []*v1.VirtualMachineInstanceMigration{{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Status: v1.VirtualMachineInstanceMigrationStatus{Phase: v1.MigrationRunning}}}
		return diagnosis{s, kinds(diagnose.WaitingForMigration), []string{"migration m is in phase Running", "refdaemon explain migration"}}
	},
	"the last try was refused": func() diagnosis {
		return diagnosis{about(guest(v1.Pending, unsynchronized(vmi.ReasonFailedCreate, "exceeded quota: pods; raise the ResourceQuota"))),
			kinds(diagnose.LastWriteFailed), []string{"the last attempt failed: exceeded quota", "do as the message says"}}
	},
	"what was refused is known": func() diagnosis {
		s := about(guest(v1.Pending, unsynchronized("Old", "of yesterday")))
		s.Failure = &vmi.Failure{Reason: vmi.ReasonFailedCreate, Message: "the network blue does not exist"}
		return diagnosis{s, kinds(diagnose.LastWriteFailed), []string{"network blue"}}
	},
	"unschedulable": func() diagnosis {
		return diagnosis{about(guest(v1.Scheduling), pod("p", unscheduled)), kinds(diagnose.Unschedulable), []string{"0/3 nodes", "free or add"}}
	},
	"unschedulable for a claim": func() diagnosis {
		p := pod("p", unscheduled)
		p.Status.Conditions[0].Message = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
		return diagnosis{about(guest(v1.Scheduling), p), kinds(diagnose.Unschedulable), []string{"unbound", "create a PersistentVolume"}}
	},
	"image cannot be pulled": func() diagnosis {
		return diagnosis{about(guest(v1.Scheduling), pod("p", waiting("compute", "ImagePullBackOff"))), kinds(diagnose.PodNotReady), []string{"container compute: waiting: ImagePullBackOff: no such image", "credentials"}}
	},
	"containers crash": func() diagnosis {
		return diagnosis{about(guest(v1.Scheduling), pod("p", crashing)), kinds(diagnose.PodNotReady),
			[]string{"CrashLoopBackOff: back-off 40s (restarted 4 times, last with exit code 137)", "guest-console-log: running and not ready"}}
	},
	"not handed over": func() diagnosis {
		return diagnosis{about(guest(v1.Scheduling, func(g *v1.VirtualMachineInstance) {
			yes := true
			g.Spec.Domain.Devices.AutoattachVSOCK = &yes
		}), pod("p")), kinds(diagnose.WaitingForController), []string{"no VSOCK CID is reserved"}}
	},
	"not accepted": func() diagnosis {
		deadline := metav1.NewTime(now.Add(time.Minute))
		return diagnosis{about(guest(v1.Scheduled, lease(handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-a", Deadline: &deadline})), pod("p")),
			kinds(diagnose.WaitingForNode), []string{"node node-a has not accepted the VirtualMachineInstance", "(in 1m0s)", "refdaemon explain node"}}
	},
	"not started, as the node says": func() diagnosis {
		return diagnosis{about(guest(v1.Scheduled, unsynchronized("InvalidSpec", "spec.domain.machine: pc-9 is unknown"), lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})), pod("p")),
			kinds(diagnose.InvalidSpec), []string{"pc-9 is unknown", "recreate the VirtualMachineInstance"}}
	},
	"node silent": func() diagnosis {
		s := about(guest(v1.Running, lease(handoff.Lease{State: handoff.Lost, Was: handoff.Owned, Epoch: 1, Holder: "node-a"})), pod("p"))
		s.Silent = map[string]time.Time{"node-a": now.Add(-time.Hour)}
		return diagnosis{s, kinds(diagnose.NodeSilent), []string{"recover the node"}}
	},
	"own write unseen": func() diagnosis {
		s := about(guest(v1.Pending))
		s.Pending = []string{"create of Pod ns/p, needs 7"}
		return diagnosis{s, kinds(diagnose.WritePending), []string{"create of Pod ns/p", "virtloom_expectations_expired_total"}}
	},
	"not understood": func() diagnosis {
		return diagnosis{about(guest(v1.Running, func(g *v1.VirtualMachineInstance) { g.Annotations = map[string]string{handoff.Annotation: "{"} }), pod("p")),
			kinds(diagnose.NotUnderstood), []string{"Lease         invalid", "restore the annotation"}}
	},
	"a phase of nobody's": func() diagnosis {
		return diagnosis{about(guest("Dancing")), kinds(diagnose.NotUnderstood), []string{"correct status.phase"}}
	},
	"ending": func() diagnosis {
		return diagnosis{about(guest(v1.Running, deleting, lease(handoff.Lease{State: handoff.Releasing, Epoch: 1, Holder: "node-a"})), pod("p", terminating)),
			kinds(diagnose.Ending, diagnose.Ending), []string{"has not reported the end", "the Pod's finalizers"}}
	},
	"running in a Pod that does not": func() diagnosis {
		return diagnosis{about(guest(v1.Running), pod("p", crashing)), kinds(diagnose.Disagreement), []string{"status.phase is Running", "CrashLoopBackOff"}}
	},
	"a Pod elsewhere": func() diagnosis {
		return diagnosis{about(guest(v1.Running), pod("p"), pod("q", onNode("node-b"))), kinds(diagnose.Disagreement), []string{"Pod ns/q is on node node-b", "virsh list"}}
	},
	"a target Pod elsewhere": func() diagnosis {
		s := about(guest(v1.Running), pod("p"), pod("q", onNode("node-b"), func(p *corev1.Pod) { p.Labels[v1.MigrationJobLabel] = "m-uid" }))
		s.Migrations = []*v1.VirtualMachineInstanceMigration{{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: types.UID("m-uid")}}}
		return diagnosis{s, nil, nil}
	},
	"another holder": func() diagnosis {
		return diagnosis{about(guest(v1.Running, lease(handoff.Lease{State: handoff.Owned, Epoch: 2, Holder: "node-b"}), on("node-a")), pod("p")), kinds(diagnose.Disagreement), []string{"the lease is held by node node-b"}}
	},
	"a move without a migration": func() diagnosis {
		deadline := metav1.NewTime(now.Add(time.Minute))
		return diagnosis{about(guest(v1.Running, lease(handoff.Lease{State: handoff.Preparing, Epoch: 2, Holder: "node-a", Target: "node-b", Tag: "gone", Deadline: &deadline})), pod("p")),
			kinds(diagnose.Disagreement), []string{"for the migration with UID gone"}}
	},
	"domain differs": func() diagnosis {
		return diagnosis{about(guest(v1.Running, unsynchronized("SyncFailed", "attach disk: busy")), pod("p")), kinds(diagnose.Disagreement), []string{"the domain differs from the spec: attach disk: busy"}}
	},
	"paused by a disk": func() diagnosis {
		return diagnosis{about(guest(v1.Running, withCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, "PausedIOError", "disk full")), pod("p")), kinds(diagnose.Paused), []string{"check the storage"}}
	},
	"paused by a migration": func() diagnosis {
		return diagnosis{about(guest(v1.Running, withCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, "PausedByMigrationMonitor", "")), pod("p")), kinds(diagnose.Paused), []string{"converge"}}
	},
	"paused by a user": func() diagnosis {
		return diagnosis{about(guest(v1.Running, withCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, "PausedByUser", "")), pod("p")), kinds(diagnose.Paused), []string{"virtctl unpause"}}
	},
	"update pending": func() diagnosis {
		return diagnosis{about(guest(v1.Running, withCondition(v1.VirtualMachineInstanceMemoryChange, corev1.ConditionTrue, "", "")), pod("p")), kinds(diagnose.UpdatePending), []string{"MemoryChange", "migrate the VirtualMachineInstance"}}
	},
	"not leaving": func() diagnosis {
		return diagnosis{about(guest(v1.Running, func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = "node-a" }), pod("p")), kinds(diagnose.NotLeaving), []string{"refdaemon plan drain"}}
	},
	"not leaving, nor able to": func() diagnosis {
		return diagnosis{about(guest(v1.Running, func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = "node-a" },
			withCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse, "DisksNotLiveMigratable", "disk root is local")), pod("p")),
			kinds(diagnose.NotLeaving), []string{"not migratable: disk root is local"}}
	},
	"words of others": func() diagnosis {
		return diagnosis{about(guest(v1.Running, unsynchronized("SyncFailed", "a\nFinding\x1b[2J")), pod("p")), kinds(diagnose.Disagreement), []string{"a Finding�[2J"}}
	},
}

func TestOf(t *testing.T) {
	for name, make := range diagnoses {
		t.Run(name, func(t *testing.T) {
			tt := make()
			before := tt.s.VMI.DeepCopy()
			d := diagnose.Of(tt.s, now)
			if diff := gocmp.Diff(before, tt.s.VMI); diff != "" {
				t.Errorf("it changed its input:\n%s", diff)
			}
			var got []diagnose.FindingKind
			for _, f := range d.Findings {
				got = append(got, f.Kind)
			}
			text := d.String()
			if !slices.Equal(got, tt.want) {
				t.Errorf("found %v, want %v:\n%s", got, tt.want, text)
			}
			for _, s := range tt.says {
				if !strings.Contains(text, s) {
					t.Errorf("nothing says %q:\n%s", s, text)
				}
			}
			if strings.Contains(text, "\x1b") {
				t.Errorf("it moves the cursor: %q", text)
			}
			vmifixture.Diagnosed(t, tt.s, vmi.Decide(tt.s, now))
		})
	}
}

// Every kind occurs in one of the cases.
func TestFindingKind_Coverage(t *testing.T) {
	found := map[diagnose.FindingKind]bool{}
	for _, make := range diagnoses {
		for _, k := range make().want {
			found[k] = true
		}
	}
	if len(found) != 18 {
		t.Errorf("there are %d kinds in the cases: %v", len(found), found)
	}
}

// Text and JSON are compared with golden files.
func TestDiagnosis_TextAndJSON(t *testing.T) {
	for name, file := range map[string]string{"waiting on a DataVolume": "datavolume", "not accepted": "offered", "containers crash": "crash"} {
		t.Run(name, func(t *testing.T) {
			d := diagnose.Of(diagnoses[name]().s, now)
			var text strings.Builder
			if err := d.Write(&text); err != nil {
				t.Fatal(err)
			}
			form, err := json.MarshalIndent(d, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			for ending, got := range map[string]string{".txt": text.String(), ".json": string(form) + "\n"} {
				path := filepath.Join("testdata", file+ending)
				if *rewrite {
					if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := gocmp.Diff(string(want), got); diff != "" {
					t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, diff)
				}
			}
			var back diagnose.Diagnosis
			if err := json.Unmarshal(form, &back); err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(d, back); diff != "" {
				t.Errorf("JSON (-encoded +decoded):\n%s", diff)
			}
		})
	}
}
