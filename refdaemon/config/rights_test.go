// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// account begins the user names of service accounts.
const account = "system:serviceaccount:"

// testRights runs the controller and both agents, each with the token of its Pod, through the lives of guests. Every
// request that is forbidden is in the audit log, and is a fault; that it would be found is seen in the end.
func (w *world) testRights(t *testing.T) {
	w.testPods(t)
	programs := w.daemons(t)
	w.ask(t, programs[0].webhooks)
	t.Run("metrics are for those who may see them", func(t *testing.T) { w.testMetrics(t, programs) })
	w.cluster(t)
	t.Run("a guest with volumes", w.testVolumes)
	t.Run("a guest that keeps state", w.testState)
	t.Run("a guest that moves", w.testMoves)
	for _, p := range programs {
		select {
		case <-p.Done():
			t.Error(p.Ended())
		default:
		}
		// Watches are not in the audit log.
		text, err := os.ReadFile(p.Log())
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(strings.ToLower(line), "forbidden") || strings.Contains(line, "is not allowed") {
				t.Errorf("%s: %s", filepath.Base(p.Log()), line)
			}
		}
	}
	forbidden, allowed := w.answers(t)
	for _, what := range forbidden {
		t.Errorf("forbidden: %s", what)
	}
	for _, what := range []string{
		"virtloom-system:virtloom-controller create pods", "virtloom-system:virtloom-controller patch virtualmachineinstances",
		"virtloom-system:virtloom-controller create persistentvolumeclaims", "virtloom-system:virtloom-controller create virtualmachineinstancemigrations",
		"virtloom-system:virtloom-controller patch virtualmachineinstancemigrations/status", "virtloom-system:virtloom-controller create events",
		"virtloom-node:virtloom-node patch virtualmachineinstances", "virtloom-node:virtloom-node patch nodes",
		"virtloom-node:virtloom-node get configmaps", "virtloom-node:virtloom-node get persistentvolumes",
		"virtloom-system:virtloom-controller create tokenreviews", "virtloom-system:virtloom-controller create subjectaccessreviews",
		"virtloom-system:virtloom-controller update secrets", "virtloom-system:virtloom-controller patch mutatingwebhookconfigurations",
		"virtloom-system:virtloom-controller patch validatingwebhookconfigurations",
		"virtloom-system:virtloom-controller update configmaps", "virtloom-system:virtloom-controller update certificatesigningrequests/approval",
		"virtloom-system:virtloom-controller update certificatesigningrequests/status", "virtloom-node:virtloom-node create certificatesigningrequests",
		"virtloom-node:virtloom-node create tokenreviews", "virtloom-node:virtloom-node create subjectaccessreviews",
	} {
		if allowed[what] == 0 {
			t.Errorf("nobody asked for: %s", what)
		}
	}
	w.testForbiddenIsFound(t)
}

// daemons runs a controller and the agents of both nodes.
func (w *world) daemons(t *testing.T) []*daemon {
	t.Helper()
	pods, err := w.pods(t.Context(), "controller")
	must(t, err)
	programs := []*daemon{w.run(t, "controller", &pods[0], "--leader-elect-namespace="+pods[0].Namespace)}
	pods, err = w.pods(t.Context(), "node")
	must(t, err)
	for i := range pods {
		// Its path is shorter than that of a folder of the test.
		dir, err := os.MkdirTemp("", "vl")
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
		programs = append(programs, w.run(t, "node", &pods[i],
			"--hypervisor=memory:", "--launchers=", "--cgroups=", "--device-plugins=", "--state-dir="+dir+"/state", "--migration-dir="+dir+"/moves"))
	}
	return programs
}

// unasked lets guests be made while the API server reaches no controller: there is no Service here.
func (w *world) unasked(t *testing.T) {
	t.Helper()
	w.webhooks(t, func(hook map[string]any) error {
		hook["failurePolicy"] = "Ignore"
		return nil
	})
}

// ask has the API server ask a controller here, which makes a certificate for that, and refuse what it cannot ask about.
func (w *world) ask(t *testing.T, address string) {
	t.Helper()
	w.webhooks(t, func(hook map[string]any) error {
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		hook["clientConfig"], hook["failurePolicy"] = map[string]any{"url": "https://" + address + path}, "Fail"
		return err
	})
	w.await(t, "the controller to be asked", func(ctx context.Context) error {
		return w.Create(ctx, guest("asked"), client.DryRunAll)
	})
}

// webhooks changes all of both configurations.
func (w *world) webhooks(t *testing.T, edit func(map[string]any) error) {
	t.Helper()
	for _, kind := range []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("admissionregistration.k8s.io/v1")
		o.SetKind(kind)
		w.await(t, kind+" to be changed", func(ctx context.Context) error {
			if err := w.Get(ctx, client.ObjectKey{Name: "virtloom"}, o); err != nil {
				return err
			}
			hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
			if err != nil {
				return err
			}
			for _, h := range hooks {
				if err := edit(h.(map[string]any)); err != nil {
					return err
				}
			}
			return errors.Join(unstructured.SetNestedSlice(o.Object, hooks, "webhooks"), w.Update(ctx, o))
		})
	}
}

// answers are the requests of the daemons' accounts that were forbidden, and how many of each kind were not.
func (w *world) answers(t *testing.T) (forbidden []string, allowed map[string]int) {
	t.Helper()
	requests, err := w.Requests()
	must(t, err)
	allowed = map[string]int{}
	for i := range requests {
		q := &requests[i]
		who, found := strings.CutPrefix(q.User.Username, account+"virtloom-")
		switch {
		case !found:
		case q.ResponseStatus.Code == http.StatusForbidden || q.ResponseStatus.Code == http.StatusUnauthorized:
			forbidden = append(forbidden, fmt.Sprintf("virtloom-%s %s %s/%s", who, q.What(), q.ObjectRef.Namespace, q.ObjectRef.Name))
		case q.Accepted():
			allowed["virtloom-"+who+" "+q.What()]++
		}
	}
	return forbidden, allowed
}

// testForbiddenIsFound makes a request that the controller has no right to.
func (w *world) testForbiddenIsFound(t *testing.T) {
	pods, err := w.pods(t.Context(), "controller")
	must(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", w.credentials(t, &pods[0]))
	must(t, err)
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	if _, err := c.CoreV1().Secrets(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the controller lists Secrets: %v", err)
	}
	if forbidden, _ := w.answers(t); len(forbidden) == 0 || !strings.Contains(forbidden[len(forbidden)-1], "list secrets") {
		t.Errorf("a forbidden request is not found: %v", forbidden)
	}
}

// cluster creates what is there beside guests.
func (w *world) cluster(t *testing.T) {
	t.Helper()
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true, FeatureGates: []string{"VMPersistentState"}}
	kv.Spec.Configuration.VMStateStorageClass = "local"
	policy := &migrationsv1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	policy.Spec.Selectors = &migrationsv1.Selectors{NamespaceSelector: migrationsv1.LabelSelector{corev1.LabelMetadataName: metav1.NamespaceDefault}}
	policy.Spec.AllowPostCopy = ptr.To(true)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, 1<<20), 0o600))
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: "local", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named("disk"), Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To("local"), AccessModes: volume.Spec.AccessModes, VolumeName: volume.Name,
		Resources: corev1.VolumeResourceRequirements{Requests: volume.Spec.Capacity},
	}}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kv.Namespace}}, kv, policy,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner"}, volume, claim,
		&corev1.ConfigMap{ObjectMeta: named("files"), Data: map[string]string{"a": "b"}},
	} {
		must(t, w.Create(t.Context(), o))
	}
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}
}

// guest is one without volumes and networks, which can move.
func guest(name string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: named(name)}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	vmi.Spec.Domain.Devices.AutoattachPodInterface = ptr.To(false)
	vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
	vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
	return vmi
}

func plug(vmi *v1.VirtualMachineInstance, name string, source v1.VolumeSource) {
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
		Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}},
	})
}

// phase waits for a guest to be in a phase.
func (w *world) phase(t *testing.T, vmi *v1.VirtualMachineInstance, phase v1.VirtualMachineInstancePhase) {
	t.Helper()
	w.await(t, "guest "+vmi.Name+" to be "+string(phase), func(ctx context.Context) error {
		err := w.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)
		if err != nil || vmi.Status.Phase != phase {
			return fmt.Errorf("it is %s: %+v %w", vmi.Status.Phase, vmi.Status.Conditions, err)
		}
		return nil
	})
}

// gone deletes an object and waits until it is.
func (w *world) gone(t *testing.T, o client.Object) {
	t.Helper()
	must(t, client.IgnoreNotFound(w.Delete(t.Context(), o)))
	w.await(t, o.GetName()+" to be gone", func(ctx context.Context) error {
		if err := w.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return fmt.Errorf("finalizers %v %w", o.GetFinalizers(), err)
		}
		return nil
	})
}

func (w *world) testVolumes(t *testing.T) {
	vmi := guest("volumes")
	plug(vmi, "disk", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}})
	plug(vmi, "user-data", v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config\n"}})
	plug(vmi, "files", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "files"}}})
	must(t, w.Create(t.Context(), vmi))
	w.phase(t, vmi, v1.Running)
	w.gone(t, vmi)
}

// testState has the controller make a claim, which no volume is there for.
func (w *world) testState(t *testing.T) {
	vmi := guest("state")
	vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	must(t, w.Create(t.Context(), vmi))
	w.await(t, "a claim for its state", func(ctx context.Context) error {
		var claims corev1.PersistentVolumeClaimList
		err := w.List(ctx, &claims, client.InNamespace(vmi.Namespace))
		if err != nil || len(claims.Items) != 2 {
			return fmt.Errorf("%d claims, guest %+v %w", len(claims.Items), vmi.Status.Conditions, errors.Join(err, w.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)))
		}
		return nil
	})
	w.gone(t, vmi)
}

// testMoves has a guest leave its node, as far as agents whose guests are nowhere but in their memory can do that.
func (w *world) testMoves(t *testing.T) {
	// The agents of real nodes find which models these have: without, no guest of the host's model moves.
	model := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true",%q:"true"}}}`,
		v1.HostModelCPULabel+"Penryn", v1.SupportedHostModelMigrationCPU+"Penryn"))
	for i := range nodes {
		must(t, w.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("sim-%d", i)}}, model))
	}
	vmi := guest("moves")
	must(t, w.Create(t.Context(), vmi))
	w.phase(t, vmi, v1.Running)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: vmi.Status.NodeName}}
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	was := node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "kubevirt.io/drain", Effect: corev1.TaintEffectNoSchedule})
	must(t, w.Patch(t.Context(), node, client.MergeFrom(was)))
	var made v1.VirtualMachineInstanceMigrationList
	w.await(t, "a migration with a target Pod", func(ctx context.Context) error {
		var pods corev1.PodList
		err := errors.Join(w.List(ctx, &made), w.List(ctx, &pods, client.InNamespace(vmi.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(vmi.UID)}))
		if err != nil || len(made.Items) != 1 || len(pods.Items) < 2 {
			return fmt.Errorf("%d migrations, %d Pods %w", len(made.Items), len(pods.Items), err)
		}
		return nil
	})
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	was = node.DeepCopy()
	node.Spec.Taints = nil
	must(t, w.Patch(t.Context(), node, client.MergeFrom(was)))
	w.gone(t, &made.Items[0])
	w.gone(t, vmi)
}
