// SPDX-License-Identifier: Apache-2.0

package diagnosis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/refdaemon/diagnosis"
	"github.com/virtloom/virtloom/refdaemon/dump"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

// machine is a VM that has been looked at once.
func machine(strategy v1.VirtualMachineRunStrategy, change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	m := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web", UID: "uid-vm", Generation: 2, Finalizers: []string{v1.VirtualMachineControllerFinalizer},
		Annotations: map[string]string{v1.ControllerAPILatestVersionObservedAnnotation: v1.ApiLatestVersion, v1.ControllerAPIStorageVersionObservedAnnotation: v1.ApiStorageVersion},
	}}
	m.Spec.RunStrategy, m.Spec.Template = &strategy, &v1.VirtualMachineInstanceTemplateSpec{}
	m.Spec.Template.Spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223"}
	m.Status.RunStrategy, m.Status.PrintableStatus = strategy, v1.VirtualMachineStatusStopped
	for _, c := range change {
		c(m)
	}
	return m
}

// runs is a VM with its VMI, its Pod and the revision that it was started with.
func runs(t *testing.T, change ...func(*v1.VirtualMachine, *v1.VirtualMachineInstance, *corev1.Pod)) []client.Object {
	t.Helper()
	m := machine(v1.RunStrategyAlways)
	m.Status.PrintableStatus, m.Status.Created, m.Status.Ready = v1.VirtualMachineStatusRunning, true, true
	started, err := json.Marshal(map[string]any{"spec": m.Spec})
	if err != nil {
		t.Fatal(err)
	}
	owner := []metav1.OwnerReference{*metav1.NewControllerRef(m, v1.VirtualMachineGroupVersionKind)}
	rev := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "revision-start-vm-uid-vm-2", OwnerReferences: owner},
		Revision: 2, Data: runtime.RawExtension{Raw: started}}
	objects := guest(t, "web", func(g *v1.VirtualMachineInstance, p *corev1.Pod) {
		g.OwnerReferences, g.Finalizers = owner, []string{v1.VirtualMachineControllerFinalizer}
		g.Annotations[v1.VirtualMachineGenerationAnnotation], g.Status.VirtualMachineRevisionName = "2", rev.Name
		g.Spec.Domain.Firmware = m.Spec.Template.Spec.Domain.Firmware.DeepCopy()
		for _, c := range change {
			c(m, g, p)
		}
	})
	return append(objects, m, rev, nodeObject("a"))
}

func importing(phase cdiv1.DataVolumePhase, reason, message string) *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root"}}
	dv.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(machine(v1.RunStrategyAlways), v1.VirtualMachineGroupVersionKind)}
	dv.Status.Phase, dv.Status.Progress = phase, "41.0%"
	dv.Status.Conditions = []cdiv1.DataVolumeCondition{
		{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: reason, Message: message},
		{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionTrue, Message: "bound"},
	}
	return dv
}

func disk(m *v1.VirtualMachine) {
	m.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root"}, Spec: cdiv1.DataVolumeSpec{
		Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://me:secret@example.com/disk"}}}}}
	m.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}}}
}

func typed(name string) func(*v1.VirtualMachine) {
	return func(m *v1.VirtualMachine) {
		m.Spec.Instancetype = &v1.InstancetypeMatcher{Name: name, Kind: "VirtualMachineInstancetype"}
	}
}

func plugged(m *v1.VirtualMachine, g *v1.VirtualMachineInstance, _ *corev1.Pod) {
	source := &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}
	source.ClaimName = "data"
	m.Status.VolumeRequests = []v1.VirtualMachineVolumeRequest{{AddVolumeOptions: &v1.AddVolumeOptions{
		Name: "data", Disk: &v1.Disk{}, VolumeSource: &v1.HotplugVolumeSource{PersistentVolumeClaim: source}}}}
	g.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: source}}}
	g.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "data"}}
}

// machines maps VMs to their diagnosis: the kinds of findings, of the VM and of its VMI, and whose turn it is. The text is in
// testdata/vm.
var machines = map[string]struct {
	objects func(t *testing.T) []client.Object
	want    []diagnose.FindingKind
	turn    string
}{
	"halted": {func(*testing.T) []client.Object { return []client.Object{machine(v1.RunStrategyHalted)} },
		[]diagnose.FindingKind{diagnosis.NotStarted}, "user, for VirtualMachine ns/web, until it is started"},
	"new": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyAlways, func(m *v1.VirtualMachine) {
			m.Finalizers, m.Annotations, m.Status = nil, nil, v1.VirtualMachineStatus{}
		})}
	}, nil, "controller, for VirtualMachine ns/web, until its next pass has written"},
	"to be started": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyManual, func(m *v1.VirtualMachine) {
			m.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StartRequest}}
		})}
	}, nil, "controller, for VirtualMachine ns/web, until its next pass has written"},
	"back-off": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyAlways, func(m *v1.VirtualMachine) {
			at := metav1.NewTime(now.Add(95 * time.Second))
			m.Status.StartFailure = &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 3, LastFailedVMIUID: "x", RetryAfterTimestamp: &at}
			m.Status.PrintableStatus = v1.VirtualMachineStatusCrashLoopBackOff
		})}
	}, []diagnose.FindingKind{diagnosis.BackOff}, "controller, for VirtualMachine ns/web, until the back-off is over"},
	"unknown instance type": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyAlways, typed("medium"))}
	}, []diagnose.FindingKind{diagnose.InvalidSpec}, "user, for VirtualMachine ns/web, until the cause is removed"},
	"instance type": {func(*testing.T) []client.Object {
		it := &instancetypev1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "medium", UID: "it", Generation: 1}}
		it.Spec.CPU.Guest = 2
		return []client.Object{it, machine(v1.RunStrategyAlways, typed("medium"))}
	}, nil, "controller, for VirtualMachine ns/web, until its next pass has written"},
	"DataVolume not ready": {func(*testing.T) []client.Object {
		return []client.Object{importing(cdiv1.ImportInProgress, "Pending", "no route to host"), machine(v1.RunStrategyAlways, disk)}
	}, []diagnose.FindingKind{diagnose.WaitingForStorage}, "storage, for DataVolume ns/root, until the DataVolume is populated"},
	"DataVolume failed": {func(*testing.T) []client.Object {
		return []client.Object{importing(cdiv1.Failed, "Error", "a\nFinding\x1b[2J"), machine(v1.RunStrategyAlways, disk)}
	}, []diagnose.FindingKind{diagnose.WaitingForStorage}, "user, for DataVolume ns/root, until the DataVolume is recreated"},
	"DataVolume refused": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyAlways, disk, func(m *v1.VirtualMachine) {
			m.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
				Message: "Error encountered while creating DataVolumes: not authorized to create DataVolume: no"}}
		})}
	}, []diagnose.FindingKind{diagnose.LastWriteFailed}, "controller, for VirtualMachine ns/web, until a retry succeeds"},
	"volumes to recover": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyAlways, func(m *v1.VirtualMachine) {
			m.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineManualRecoveryRequired, Status: corev1.ConditionTrue, Message: "VMI was removed"}}
		})}
	}, []diagnose.FindingKind{diagnosis.RecoveryRequired}, "user, for VirtualMachine ns/web, until the volumes of the template are corrected"},
	"running": {func(t *testing.T) []client.Object { return runs(t) }, nil, "nobody: nothing is waited for"},
	"restart required": {func(t *testing.T) []client.Object {
		return runs(t, func(m *v1.VirtualMachine, _ *v1.VirtualMachineInstance, _ *corev1.Pod) {
			m.Generation, m.Spec.Template.Spec.Hostname = 3, "other"
		})
	}, []diagnose.FindingKind{diagnosis.RestartRequired}, "user, for VirtualMachine ns/web, until the VirtualMachine is restarted"},
	"restart requested": {func(t *testing.T) []client.Object {
		return runs(t, func(m *v1.VirtualMachine, g *v1.VirtualMachineInstance, _ *corev1.Pod) {
			m.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest, UID: &g.UID}, {Action: v1.StartRequest}}
		})
	}, nil, "controller, for VirtualMachine ns/web, until its next pass has written"},
	"hotplug waits": {func(t *testing.T) []client.Object { return runs(t, plugged) },
		[]diagnose.FindingKind{diagnose.WaitingForStorage}, "user, for PersistentVolumeClaim ns/data"},
	"no node": {func(t *testing.T) []client.Object {
		return runs(t, func(_ *v1.VirtualMachine, g *v1.VirtualMachineInstance, p *corev1.Pod) { unplaced(g, p) })
	}, []diagnose.FindingKind{diagnosis.WaitingForVMI, diagnose.Unschedulable}, "scheduler, for Pod ns/"},
	"migrates": {func(t *testing.T) []client.Object { return append(runs(t), move("m", "web")) }, nil, "controller, for VirtualMachineInstanceMigration ns/m"},
	"of another controller": {func(t *testing.T) []client.Object {
		other := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstanceReplicaSet", Name: "set", UID: "set", Controller: new(true)}
		return append(guest(t, "web", func(g *v1.VirtualMachineInstance, _ *corev1.Pod) { g.OwnerReferences = []metav1.OwnerReference{other} }), machine(v1.RunStrategyAlways))
	}, []diagnose.FindingKind{diagnose.InvalidSpec}, "user, for VirtualMachine ns/web, until the cause is removed"},
	"deleted": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyAlways, func(m *v1.VirtualMachine) {
			at := metav1.NewTime(now)
			m.DeletionTimestamp, m.Finalizers = &at, []string{"example.com/mine"}
		})}
	}, []diagnose.FindingKind{diagnose.Ending}, "user, for VirtualMachine ns/web, until its finalizers are removed"},
	"contradictory": {func(*testing.T) []client.Object {
		return []client.Object{machine(v1.RunStrategyAlways, func(m *v1.VirtualMachine) { m.Spec.Running = new(true) })}
	}, []diagnose.FindingKind{diagnose.InvalidSpec}, "user, for VirtualMachine ns/web, until the cause is removed"},
}

func explainMachine(t *testing.T, d *dump.Dump) *diagnosis.Machine {
	t.Helper()
	m, err := clusterOf(t, d).Machine(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// throughFile is the dump after it was written and read.
func throughFile(t *testing.T, d *dump.Dump) *dump.Dump {
	t.Helper()
	var file bytes.Buffer
	if err := errors.Join(d.Complete(t.Context()), d.Write(&file)); err != nil {
		t.Fatal(err)
	}
	read, err := dump.Read(&file, newScheme(t))
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// The diagnosis of a dump equals that of the cluster, word by word.
func TestMachines(t *testing.T) {
	for name, tt := range machines {
		t.Run(name, func(t *testing.T) {
			d := taken(t, append(tt.objects(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})...)
			m := explainMachine(t, d)
			text := m.String()
			if diff := cmp.Diff(text, explainMachine(t, throughFile(t, d)).String()); diff != "" {
				t.Errorf("of a file (-cluster +file):\n%s", diff)
			}
			golden(t, filepath.Join("vm", strings.ReplaceAll(name, " ", "-")+".txt"), text)
			var kinds []diagnose.FindingKind
			for _, f := range m.Findings {
				kinds = append(kinds, f.Kind)
			}
			if m.VMI != nil {
				for _, f := range m.VMI.Findings {
					kinds = append(kinds, f.Kind)
				}
			}
			if !slices.Equal(kinds, tt.want) {
				t.Errorf("found %v, want %v:\n%s", kinds, tt.want, text)
			}
			if !strings.Contains(text, "\nTurn          "+tt.turn) {
				t.Errorf("it is not the turn of %q:\n%s", tt.turn, text)
			}
			if strings.ContainsAny(text, "\x1b") || strings.Contains(text, "secret") {
				t.Errorf("it moves the cursor, or has a password: %q", text)
			}
		})
	}
}

func TestMachines_JSON(t *testing.T) {
	form, err := json.MarshalIndent(explainMachine(t, taken(t, append(machines["no node"].objects(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})...)), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "machine.json", string(form)+"\n")
}

// golden compares a text with a file, or rewrites the file.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, diff)
	}
}

func TestMachines_LeftToAnotherController(t *testing.T) {
	c := clusterOf(t, taken(t, machine(v1.RunStrategyAlways)))
	c.Machines = nil
	m, err := c.Machine(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"})
	if err != nil || len(m.Findings) != 1 || m.Findings[0].Kind != diagnosis.Unmanaged || len(m.Next) > 0 {
		t.Errorf("diagnosis %v, error %v", m, err)
	}
}

func TestMachines_NotFound(t *testing.T) {
	c := clusterOf(t, taken(t, machine(v1.RunStrategyAlways)))
	_, err := c.Machine(t.Context(), types.NamespacedName{Namespace: "ns", Name: "wed"})
	if want := "there is no VirtualMachine ns/wed: not found; specify an existing one in namespace ns: web"; !errors.Is(err, diagnosis.ErrUnknown) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestMachines_ControllerView(t *testing.T) {
	c := clusterOf(t, taken(t, machine(v1.RunStrategyHalted)))
	c.Ask = func(_ context.Context, q cachestate.Question) (*cachestate.State, error) {
		if q.Kind != cachestate.Machine || q.Name != "web" {
			t.Errorf("asked about %v", q)
		}
		return &cachestate.State{Leads: true, Objects: []cachestate.Object{{Kind: "VirtualMachine", Name: "ns/web", ResourceVersion: "5"}},
			Pending: []cachestate.Write{{Text: "update of VirtualMachine ns/web", Since: now}}}, nil
	}
	m, err := c.Machine(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"waiting for its cache to observe: update of VirtualMachine ns/web", "its cache lags: of VirtualMachine ns/web it has version 5, stored is version 999"} {
		if !strings.Contains(m.String(), says) {
			t.Errorf("nothing says %q:\n%s", says, m)
		}
	}
}
