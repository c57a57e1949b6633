// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// failing rejects one kind of write of one object, with a text that always differs.
type failing struct {
	// write is the failing write, and of the prefix of the object's name.
	write, of string
	tries     int
	// words makes the text differ in letters; otherwise in numbers and times.
	words bool
	// ambiguous makes the outcome of the write unknown.
	ambiguous bool
}

func (f *failing) err(write string, o client.Object) error {
	if write != f.write || !strings.HasPrefix(o.GetName(), f.of) {
		return nil
	}
	f.tries++
	text := fmt.Sprintf("webhook at 10.0.0.%d:%d, %s: try %d failed after %dms", f.tries%250, 40000+f.tries,
		postponeEpoch.Add(time.Duration(f.tries)*time.Second).Format(time.RFC3339Nano), f.tries, f.tries*7)
	if f.words {
		text = "webhook " + string(rune('g'+f.tries%19)) + string(rune('g'+f.tries/19%19)) + " failed"
	}
	if f.ambiguous {
		return apierrors.NewInternalError(errors.New(text))
	}
	return apierrors.NewForbidden(corev1.Resource("any"), o.GetName(), errors.New(text))
}

func (f *failing) faults() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := f.err("create", o); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := f.err("delete", o); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := f.err("patch", o); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := f.err("patch", o); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	}
}

// plain renders Pods without content: their content does not matter.
type plain struct{}

func plainPod(in template.Input, name string) (*corev1.Pod, error) {
	p := scenePod(in.VMI)
	p.Name, p.UID, p.Status = name, "", corev1.PodStatus{}
	return p, nil
}

func (plain) Launcher(in template.Input) (*corev1.Pod, error) {
	return plainPod(in, "virt-launcher-web")
}
func (plain) Temporary(in template.Input) (*corev1.Pod, error)         { return plainPod(in, "temporary-web") }
func (plain) HotplugAttachment(in template.Input) (*corev1.Pod, error) { return plainPod(in, "hp-web") }
func (plain) HotplugTrigger(in template.Input) (*corev1.Pod, error) {
	return plainPod(in, "trigger-web")
}

func claimOf(name string, edit ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "claim-uid"}}
	c.Spec.StorageClassName, c.Spec.VolumeMode = ptr.To("class"), ptr.To(corev1.PersistentVolumeFilesystem)
	for _, e := range edit {
		e(c)
	}
	return c
}

func classOf(mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class",
		Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, VolumeBindingMode: &mode, Provisioner: "test"}
}

func bound(c *corev1.PersistentVolumeClaim) {
	c.Status.Phase, c.Spec.VolumeName = corev1.ClaimBound, "pv"
}

func diskOf(claim string, hotplugged bool) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Devices.Disks = append(g.Spec.Domain.Devices.Disks, v1.Disk{Name: "disk"})
		g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: hotplugged,
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
		}})
	}
}

func keepsState(g *v1.VirtualMachineInstance) {
	g.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
}

func deleted(g *v1.VirtualMachineInstance) {
	g.DeletionTimestamp = ptr.To(metav1.NewTime(postponeEpoch))
}

// awaiting returns a DataVolume that waits for its first consumer, and the claim.
func awaiting() []client.Object {
	dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "dv-uid"}}
	dv.Status.Phase = cdiv1.WaitForFirstConsumer
	claim := claimOf("data", func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv, dvKind)}
	})
	return []client.Object{dv, claim, classOf(storagev1.VolumeBindingWaitForFirstConsumer)}
}

// reported sets the SELinux context reported by the node, which hotplug requires.
func reported(g *v1.VirtualMachineInstance) { g.Status.SelinuxContext = "none" }

// fails maps each of the controller's verbs to the failing write and a scene in which it is tried.
var fails = map[vmi.Verb]struct {
	write, of string
	objects   func() []client.Object
}{
	vmi.CreateLauncher: {"create", "virt-launcher-web", func() []client.Object { return []client.Object{sceneVMI(v1.Pending)} }},
	vmi.CreateTemporary: {"create", "temporary-web", func() []client.Object {
		return append(awaiting(), sceneVMI(v1.Pending, diskOf("data", false)))
	}},
	vmi.CreateAttachment: {"create", "hp-web", func() []client.Object {
		g := sceneVMI(v1.Running, diskOf("data", true), reported)
		return []client.Object{g, scenePod(g), claimOf("data", bound), classOf(storagev1.VolumeBindingImmediate)}
	}},
	vmi.CreateTrigger: {"create", "trigger-web", func() []client.Object {
		g := sceneVMI(v1.Running, diskOf("data", true), reported)
		return append(awaiting(), g, scenePod(g))
	}},
	vmi.DeletePod: {"delete", "virt-launcher-web", func() []client.Object {
		g := sceneVMI(v1.Scheduling, deleted)
		return []client.Object{g, scenePod(g)}
	}},
	vmi.PatchPod: {"patch", "virt-launcher-web", func() []client.Object {
		g := sceneVMI(v1.Running)
		return []client.Object{g, scenePod(g)}
	}},
	vmi.CreateClaim: {"create", "persistent-state-for-web", func() []client.Object {
		return []client.Object{sceneVMI(v1.Pending, keepsState), classOf(storagev1.VolumeBindingImmediate)}
	}},
	vmi.DeleteClaim: {"delete", "state", func() []client.Object {
		g := sceneVMI(v1.Pending)
		return []client.Object{g, classOf(storagev1.VolumeBindingImmediate), claimOf("state", bound, func(c *corev1.PersistentVolumeClaim) {
			c.Labels = map[string]string{"persistent-state-for": g.Name}
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(g, v1.VirtualMachineInstanceGroupVersionKind)}
		})}
	}},
}

// failingAt returns a scene in which the write of a verb fails.
func failingAt(t *testing.T, verb vmi.Verb, f *failing) *scene {
	t.Helper()
	f.write, f.of = fails[verb].write, fails[verb].of
	s := newScene(t, f.faults(), fails[verb].objects()...)
	s.r.Renderer = plain{}
	s.serve(dvKind)
	return s
}

// A failing action is retried with back-off, whatever its error text, and reported once.
func TestAction_FailureTextChanges(t *testing.T) {
	for verb := range fails {
		for _, words := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, words %v", verb, words), func(t *testing.T) {
				f := &failing{words: words}
				s := failingAt(t, verb, f)
				const most = 400
				passes := s.run(t, 5*time.Minute, most)
				if f.tries == 0 {
					t.Fatalf("the action was not tried in %d passes, the last error is %v", passes, s.err)
				}
				// From 5 ms, doubling, up to a minute: 14 in the first minute, and 4 more. Text that differs each time
				// is reported a few times, and each report is an event.
				limit, news := 20, 1
				if words {
					limit, news = 40, 12
				}
				emitted := s.events()
				emitted = slices.DeleteFunc(emitted, func(e string) bool { return strings.HasPrefix(e, "Normal") })
				if passes >= most || f.tries > limit || len(emitted) > news {
					t.Errorf("%d passes, %d tries (want %d at most), %d events (want %d): %q", passes, f.tries, limit, len(emitted), news, emitted)
				}
			})
		}
	}
}

// After a 5xx response it is unknown whether the Pod was created. Its name is the same in each attempt, so it is retried
// with the back-off of any other error.
func TestCreate_UnknownOutcomeIsRetried(t *testing.T) {
	for _, verb := range []vmi.Verb{vmi.CreateLauncher, vmi.CreateTemporary, vmi.CreateAttachment, vmi.CreateTrigger, vmi.CreateClaim} {
		t.Run(string(verb), func(t *testing.T) {
			f := &failing{ambiguous: true}
			s := failingAt(t, verb, f)
			for passes := 0; f.tries == 0 && passes < 100; passes++ { // hotplugged volumes are batched
				s.run(t, 100*time.Millisecond, 1)
			}
			s.run(t, time.Second, 100)
			if f.tries < 7 || f.tries > 10 {
				t.Errorf("%d tries within a second; want those of a delay that doubles from %s; the last error is %v", f.tries, firstRetry, s.err)
			}
			if late := s.r.Gate.Late(expectationsctrl.OwnerOf(s.guest(t))); len(late) != 1 {
				t.Errorf("late are %v, want the one object", late)
			}
		})
	}
}

// The finalizer of a VMI deleted after such a response is removed when the request has expired.
func TestCreate_FinalizerKeptWhilePodMayArrive(t *testing.T) {
	f := &failing{ambiguous: true}
	s := failingAt(t, vmi.CreateLauncher, f)
	s.run(t, 10*time.Millisecond, 10)
	if err := s.Delete(t.Context(), s.guest(t)); err != nil {
		t.Fatal(err)
	}
	s.run(t, 20*time.Second, 100)
	if g := s.guest(t); g.Status.Phase != v1.Failed || len(g.Finalizers) == 0 {
		t.Fatalf("phase %s, finalizers %v; want one that has ended and is kept", g.Status.Phase, g.Finalizers)
	}
	for range 20 {
		s.clock.SetTime(s.clock.Now().Add(time.Second))
		if _, err := s.r.Reconcile(t.Context(), request(sceneGuest.Namespace, sceneGuest.Name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Get(t.Context(), sceneGuest, &v1.VirtualMachineInstance{}); !apierrors.IsNotFound(err) {
		t.Errorf("the guest is kept: %v", err)
	}
}
