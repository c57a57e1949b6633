// SPDX-License-Identifier: Apache-2.0

package dump_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/refdaemon/dump"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// secret is in every place where there may be one.
const secret = "S3CRET"

func probe() *v1.Probe {
	return &v1.Probe{Handler: v1.Handler{
		Exec:    &corev1.ExecAction{Command: []string{"login", secret}},
		HTTPGet: &corev1.HTTPGetAction{HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: secret}}},
	}}
}

func sensitiveSpec() (spec v1.VirtualMachineInstanceSpec) {
	spec.Volumes = []v1.Volume{
		{Name: "a", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{
			UserData: secret, UserDataBase64: secret, NetworkData: secret, NetworkDataBase64: secret, UserDataSecretRef: &corev1.LocalObjectReference{Name: "kept"},
		}}},
		{Name: "b", VolumeSource: v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{
			UserData: secret, UserDataBase64: secret, NetworkData: secret, NetworkDataBase64: secret,
		}}},
	}
	spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{KernelArgs: "token=" + secret}}
	spec.LivenessProbe, spec.ReadinessProbe = probe(), probe()
	return spec
}

// machine is a VM with secrets in its templates.
func machine(meta metav1.ObjectMeta) *v1.VirtualMachine {
	m := &v1.VirtualMachine{ObjectMeta: meta}
	m.UID, m.Spec.Template = "vm", &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: meta, Spec: sensitiveSpec()}
	m.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: meta, Spec: cdiv1.DataVolumeSpec{
		Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "http://" + secret, ExtraHeaders: []string{secret}}}}}}
	return m
}

// revision is a ControllerRevision of an owner.
func revision(meta metav1.ObjectMeta, kind string, labels map[string]string, data any) *appsv1.ControllerRevision {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	meta.Labels = labels
	meta.OwnerReferences = []metav1.OwnerReference{{APIVersion: "x/v1", Kind: kind, Name: "vm", UID: "vm", Controller: new(true)}}
	return &appsv1.ControllerRevision{ObjectMeta: meta, Data: runtime.RawExtension{Raw: raw}}
}

func sensitive() []client.Object {
	annotations := map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": secret, "example.com/password": secret, "plain": secret,
		v1.IgnitionAnnotation: secret, "cdi.kubevirt.io/storage.clone.token": secret,
		"hooks.kubevirt.io/hookSidecars": `[{"image":"kept","args":["` + secret + `"]}]`, "hooks.kubevirt.io/other": secret,
		handoff.Annotation: `{"version":1,"state":"Claimed","epoch":7}`, v1.VirtHandlerHeartbeat: "2026-01-01T00:00:00Z",
	}
	meta := func(name string) metav1.ObjectMeta {
		o := named("ns", name)
		o.Annotations = map[string]string{}
		for k, v := range annotations {
			o.Annotations[k] = v
		}
		return o
	}
	global := func(name string) metav1.ObjectMeta {
		o := meta(name)
		o.Namespace = ""
		return o
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: meta("guest"), Spec: sensitiveSpec()}

	container := corev1.Container{
		Name: "compute", Image: "kept", Command: []string{secret}, Args: []string{secret}, Env: []corev1.EnvVar{{Name: "STANDALONE_VMI", Value: secret}},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{secret}}}},
		Lifecycle:     &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{secret}}}},
	}
	pod := &corev1.Pod{ObjectMeta: meta("pod")}
	pod.Spec.Containers, pod.Spec.InitContainers = []corev1.Container{container}, []corev1.Container{container}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(container)}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "csi", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{VolumeAttributes: map[string]string{"key": secret}}}},
		{Name: "flex", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Options: map[string]string{"key": secret}}}},
	}
	dv := &cdiv1.DataVolume{ObjectMeta: meta("dv")}
	dv.Spec.Source = &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "http://" + secret, ExtraHeaders: []string{secret}}}
	dv.Status.Phase = cdiv1.ImportInProgress
	dv.Status.Conditions = []cdiv1.DataVolumeCondition{{Message: `Get "https://me:` + secret + `@example.com/disk?a=1&sig=` + secret + `": refused`}}
	proxy := "http://me:" + secret + "@proxy"
	config := &cdiv1.CDIConfig{ObjectMeta: global("config"), Spec: cdiv1.CDIConfigSpec{ImportProxy: &cdiv1.ImportProxy{HTTPProxy: &proxy}}}
	config.Status.ImportProxy = &cdiv1.ImportProxy{HTTPProxy: &proxy}
	kv := &v1.KubeVirt{ObjectMeta: meta("kubevirt")}
	kv.Spec.CustomizeComponents.Patches = []v1.CustomizeComponentsPatch{{Patch: secret}}
	vm := machine(meta("vm"))
	started := map[string]any{"spec": vm.Spec}
	of := map[string]string{"instancetype.kubevirt.io/object-kind": "VirtualMachineInstancetype", "instancetype.kubevirt.io/object-name": "stored"}
	medium := &instancetypev1.VirtualMachineInstancetype{ObjectMeta: meta("medium"), Spec: instancetypev1.VirtualMachineInstancetypeSpec{
		Annotations: map[string]string{"example.com/a": secret}, CPU: instancetypev1.CPUInstancetype{Guest: 7}}}
	stored := medium.DeepCopy()
	stored.TypeMeta = metav1.TypeMeta{APIVersion: "instancetype.kubevirt.io/v1beta1", Kind: "VirtualMachineInstancetype"}
	return []client.Object{
		vmi, pod, dv, config, kv, vm, medium, &instancetypev1.VirtualMachineClusterInstancetype{ObjectMeta: global("large"), Spec: medium.Spec},
		&instancetypev1.VirtualMachinePreference{ObjectMeta: meta("linux"), Spec: instancetypev1.VirtualMachinePreferenceSpec{Annotations: map[string]string{"example.com/a": secret}}},
		&instancetypev1.VirtualMachineClusterPreference{ObjectMeta: global("linux"), Spec: instancetypev1.VirtualMachinePreferenceSpec{Annotations: map[string]string{"example.com/a": secret}}},
		revision(meta("started"), "VirtualMachine", nil, started), revision(meta("other"), "VirtualMachine", nil, map[string]any{"data": secret}),
		revision(meta("stored"), "VirtualMachine", of, stored), revision(meta("old"), "VirtualMachine", of, map[string]any{"apiVersion": "instancetype.kubevirt.io/v1alpha1", "spec": []byte(`{"cpu":{"guest":9},"annotations":{"a":"` + secret + `"}}`)}),
		revision(meta("unreadable"), "VirtualMachine", of, map[string]any{"apiVersion": "v9", "spec": secret}), revision(meta("daemons"), "DaemonSet", nil, started), &corev1.Node{ObjectMeta: global("node")},
		&corev1.PersistentVolumeClaim{ObjectMeta: meta("claim")}, &corev1.Namespace{ObjectMeta: global("ns")},
		&corev1.ResourceQuota{ObjectMeta: meta("quota")}, &v1.VirtualMachineInstanceMigration{ObjectMeta: meta("migration")},
		&cdiv1.CDI{ObjectMeta: global("cdi"), Spec: cdiv1.CDISpec{CloneStrategyOverride: nil}},
		&storagev1.StorageClass{ObjectMeta: global("class"), Parameters: map[string]string{"adminKey": secret}},
		&corev1.Secret{ObjectMeta: meta("secret"), Data: map[string][]byte{"key": []byte(secret)}, StringData: map[string]string{"key": secret}},
		&corev1.ConfigMap{ObjectMeta: meta("config"), Data: map[string]string{"key": secret}},
	}
}

func TestRedact_NoSecrets(t *testing.T) {
	d := take(t, cluster(t, nil, sensitive()...))
	if err := d.Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := d.Write(&file); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(file.String()) {
		if i := strings.Index(line, secret); i >= 0 {
			t.Errorf("the dump holds a secret: …%s…", line[max(0, i-80):min(len(line), i+40)])
		}
		if strings.Contains(line, `"name":"daemons"`) {
			t.Error("it has the Pods of a DaemonSet")
		}
		if strings.Contains(line, `"kind":"Secret"`) {
			t.Error("it has Secrets")
		}
	}
	for _, kept := range []string{`"secretRef":{"name":"kept"}`, `epoch\":7`, "2026-01-01T00:00:00Z", `"image":"kept"`, `"phase":"ImportInProgress"`, "https://redacted@example.com/disk?redacted"} {
		if !strings.Contains(file.String(), kept) {
			t.Errorf("%s is missing, though decisions depend on it", kept)
		}
	}
	if _, err := dump.Read(&file, scheme(t)); err != nil {
		t.Error(err)
	}
	live := &v1.VirtualMachineInstance{}
	if err := d.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "guest"}, live); err != nil || live.Spec.Volumes[0].CloudInitNoCloud.UserData != secret {
		t.Errorf("writing a file has changed what was taken: %v, error %v", live.Spec.Volumes, err)
	}
}

// What a VM was started with stays comparable with it, and what a revision holds can be decoded.
func TestRedact_RevisionsStayUsable(t *testing.T) {
	d := again(t, take(t, cluster(t, nil, sensitive()...)))
	m, rev := &v1.VirtualMachine{}, &appsv1.ControllerRevision{}
	if err := errors.Join(d.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "vm"}, m), d.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "started"}, rev)); err != nil {
		t.Fatal(err)
	}
	var started struct{ Spec v1.VirtualMachineSpec }
	if err := json.Unmarshal(rev.Data.Raw, &started); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.Spec, started.Spec); diff != "" {
		t.Errorf("VM and the spec that it was started with differ (-VM +revision):\n%s", diff)
	}
	for name, want := range map[string]uint32{"stored": 7, "old": 9} {
		if err := d.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, rev); err != nil {
			t.Fatal(err)
		}
		o, err := instancetype.Decode(rev)
		if it, is := o.(*instancetypev1.VirtualMachineInstancetype); err != nil || !is || it.Spec.CPU.Guest != want {
			t.Errorf("%s holds %v, error %v", name, o, err)
		}
	}
}

// What is compared stays equal or different, and no mark of one file is one of another.
func TestRedact_Marks(t *testing.T) {
	guest := func(name, value string) *v1.VirtualMachineInstance {
		g := &v1.VirtualMachineInstance{ObjectMeta: named("ns", name)}
		g.Annotations = map[string]string{"example.com/note": value}
		return g
	}
	d := take(t, cluster(t, nil, guest("a", "x"), guest("b", "x"), guest("c", "y"), guest("d", "")))
	marks := func() map[string]string {
		var all v1.VirtualMachineInstanceList
		if err := again(t, d).List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		of := map[string]string{}
		for _, g := range all.Items {
			of[g.Name] = g.Annotations["example.com/note"]
		}
		return of
	}
	first, second := marks(), marks()
	if first["a"] != first["b"] || first["a"] == first["c"] || first["d"] != "" || !strings.HasPrefix(first["a"], "redacted-") {
		t.Errorf("marks are %v", first)
	}
	if first["a"] == second["a"] {
		t.Errorf("marks of two files are the same: %v", first)
	}
}
