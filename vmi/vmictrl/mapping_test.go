// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/virtloom/virtloom/template"
)

// indexes adds the indexes of the cache to a fake client.
type indexes struct{ *fake.ClientBuilder }

func (i indexes) IndexField(_ context.Context, o client.Object, name string, keys client.IndexerFunc) error {
	i.WithIndex(o, name, keys)
	return nil
}

// mapped returns the objects by which events are mapped.
func mapped() []client.Object {
	guest := func(name string, edit func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
		g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)}}
		edit(g)
		return g
	}
	claim := func(name string, hotplug bool) v1.Volume {
		return v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}, Hotpluggable: hotplug}}}
	}
	phase := func(p v1.VirtualMachineInstancePhase, volumes ...v1.Volume) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Status.Phase, g.Spec.Volumes = p, volumes }
	}
	return []client.Object{
		guest("waits", phase(v1.Pending, claim("shared", false))),
		guest("runs", phase(v1.Running, claim("shared", false), claim("plugged", true),
			v1.Volume{Name: "d", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "import"}}},
			v1.Volume{Name: "m", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: *claim("dump", true).PersistentVolumeClaim}}})),
		guest("utility", func(g *v1.VirtualMachineInstance) {
			g.Status.Phase, g.Spec.UtilityVolumes = v1.Running, []v1.UtilityVolume{{Name: "u", PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "backup"}}}
		}),
		guest("timed", func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "invtsc", Policy: "require"}}}
		}),
		guest("ended", phase(v1.Succeeded)),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "launcher", UID: "launcher", OwnerReferences: controlledBy(vmiKind, "runs", "uid-of-runs")}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "foreign", UID: "foreign", OwnerReferences: controlledBy("ReplicaSet", "set", "set")}},
	}
}

func controlledBy(kind, name, uid string) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID(uid), Controller: &yes}}
}

// TestMapping covers which VMIs an event enqueues, whatever its type.
// (specs: VMI reconciliation 1.2, 1.3)
func TestMapping(t *testing.T) {
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	b := fake.NewClientBuilder().WithScheme(s).WithObjects(mapped()...)
	if err := index(t.Context(), indexes{b}); err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: b.Build()}
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	pod := func(name string, owners []metav1.OwnerReference, annotations map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: in(name)}
		p.OwnerReferences, p.Annotations = owners, annotations
		return p
	}
	pvc := func(name, state string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: in(name)}
		if state != "" {
			c.Labels = map[string]string{"persistent-state-for": state}
		}
		return c
	}
	waits := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "waits", UID: "uid-of-waits"}}
	ofRuns := map[string]string{ownerName: "runs"}
	going := pod("launcher", controlledBy(vmiKind, "runs", "uid-of-runs"), nil)
	now := metav1.Now()
	going.DeletionTimestamp = &now
	for name, tt := range map[string]struct {
		by   handler.MapFunc
		o    client.Object
		want []string
	}{
		"a guest's Pod":                              {watcher{r}.ofPod, pod("launcher", controlledBy(vmiKind, "runs", "uid-of-runs"), nil), []string{"runs"}},
		"118: a guest's Pod on its way out":          {watcher{r}.ofPod, going, []string{"runs"}},
		"a guest's Pod of which nobody knows":        {watcher{r}.ofPod, pod("p", controlledBy(vmiKind, "unknown", "u"), nil), []string{"unknown"}},
		"121: a Pod of a Pod":                        {watcher{r}.ofPod, pod("hp", controlledBy(podKind, "launcher", "launcher"), nil), []string{"runs"}},
		"121: a Pod of a Pod that says whose":        {watcher{r}.ofPod, pod("hp", controlledBy(podKind, "launcher", "launcher"), ofRuns), []string{"runs"}},
		"121: a Pod of a Pod that is gone, and says": {watcher{r}.ofPod, pod("hp", controlledBy(podKind, "gone", "gone"), ofRuns), []string{"runs"}},
		"a Pod of a Pod that is gone":                {watcher{r}.ofPod, pod("hp", controlledBy(podKind, "gone", "gone"), nil), nil},
		"a Pod of a Pod that another replaced":       {watcher{r}.ofPod, pod("hp", controlledBy(podKind, "launcher", "before"), nil), nil},
		"a Pod of a Pod that is no guest's":          {watcher{r}.ofPod, pod("hp", controlledBy(podKind, "foreign", "foreign"), nil), nil},
		"a Pod of something else":                    {watcher{r}.ofPod, pod("p", controlledBy("ReplicaSet", "runs", "r"), nil), nil},
		"nobody's Pod":                               {watcher{r}.ofPod, pod("p", nil, nil), nil},
		"nobody's Pod in the place of a guest's":     {watcher{r}.ofPod, pod(template.LauncherName(waits), nil, nil), []string{"waits"}},

		"a claim of two guests":               {watcher{r}.claimants, pvc("shared", ""), []string{"runs", "waits"}},
		"a claim that is plugged":             {watcher{r}.claimants, pvc("plugged", ""), []string{"runs"}},
		"a claim for a dump":                  {watcher{r}.claimants, pvc("dump", ""), []string{"runs"}},
		"a claim that a DataVolume fills":     {watcher{r}.claimants, pvc("import", ""), []string{"runs"}},
		"a claim of a utility":                {watcher{r}.claimants, pvc("backup", ""), []string{"utility"}},
		"37: a claim for state":               {watcher{r}.claimants, pvc("some", "runs"), []string{"runs"}},
		"37: a claim for state of nobody yet": {watcher{r}.claimants, pvc("some", "vm1"), []string{"vm1"}},
		"a claim for nobody":                  {watcher{r}.claimants, pvc("some", ""), nil},
		"a claim of another namespace":        {watcher{r}.claimants, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "shared"}}, nil},
		"a DataVolume":                        {watcher{r}.claimants, &cdiv1.DataVolume{ObjectMeta: in("import")}, []string{"runs"}},
		"a DataVolume of a claim":             {watcher{r}.claimants, &cdiv1.DataVolume{ObjectMeta: in("shared")}, []string{"runs", "waits"}},

		"a migration":               {migrated, &v1.VirtualMachineInstanceMigration{ObjectMeta: in("m"), Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "runs"}}, []string{"runs"}},
		"a VirtualMachine":          {namesake, &metav1.PartialObjectMetadata{ObjectMeta: in("runs")}, []string{"runs"}},
		"a StorageClass":            {watcher{r}.allWaiting, &storagev1.StorageClass{}, []string{"timed", "waits"}},
		"a quota":                   {watcher{r}.ofNamespaced, &corev1.ResourceQuota{ObjectMeta: in("q")}, []string{"timed", "waits"}},
		"a quota elsewhere":         {watcher{r}.ofNamespaced, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "other"}}, nil},
		"a Namespace":               {watcher{r}.ofNamespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, []string{"timed", "waits"}},
		"another Namespace":         {watcher{r}.ofNamespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, nil},
		"the labels of a Node":      {watcher{r}.allTimed, &corev1.Node{}, []string{"timed"}},
		"a number that CDI reports": {noVMI, &cdiv1.CDI{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, q := range tt.by(t.Context(), tt.o) {
				if q.Namespace != "ns" {
					t.Errorf("request %v", q)
				}
				got = append(got, q.Name)
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("woken (-want +got):\n%s", diff)
			}
		})
	}
}
