// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// The controller joins a manager that already has other controllers. Here it reconciles the
// VMIs of one team only.
func Example() {
	start := func(ctx context.Context) error {
		scheme := runtime.NewScheme() // with the types of the other controllers
		if err := vmictrl.AddToScheme(scheme); err != nil {
			return err
		}
		mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Scheme: scheme})
		if err != nil {
			return err
		}
		r := &vmictrl.Reconciler{
			Client:        mgr.GetClient(),
			APIReader:     mgr.GetAPIReader(),
			LauncherImage: "quay.io/kubevirt/virt-launcher:v1.9.0",
			Recorder:      mgr.GetEventRecorder("virtualmachine-controller"),
			Scope:         vmictrl.Scope{Selector: labels.SelectorFromSet(labels.Set{"team": "blue"})},
			Config:        vmi.Config{AcceptWithin: 2 * time.Minute},
		}
		if err := r.SetupWithManager(ctx, mgr); err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
	_ = start
}

// The launcher Pods are rendered by a custom renderer: here by the stock stages and one more,
// which assigns them to a queue.
func ExampleReconciler_renderer() {
	renderer, err := template.Default().After(template.StageMetadata, render.Stage{
		Name: "queue",
		Apply: func(d *render.Draft) error {
			d.From("metadata.labels").Label("kueue.x-k8s.io/queue-name", d.VMI().Labels["queue"])
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &vmictrl.Reconciler{LauncherImage: "quay.io/kubevirt/virt-launcher:v1.9.0", Renderer: renderer}

	pod, err := r.Renderer.Launcher(template.Input{
		VMI: &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "guest", UID: "5d8f", Labels: map[string]string{"queue": "night"}}},
		Config: template.Config{LauncherImage: r.LauncherImage},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pod.Labels["kueue.x-k8s.io/queue-name"])
	// Output:
	// night
}

// The next plan of the controller is computed without executing it.
func ExampleReconciler_Plan() {
	ask := func(ctx context.Context, r *vmictrl.Reconciler) error {
		plan, err := r.Plan(ctx, types.NamespacedName{Namespace: "default", Name: "guest"})
		if err != nil || plan == nil {
			return err
		}
		fmt.Fprintln(os.Stderr, plan)
		for _, w := range plan.Waits {
			fmt.Fprintf(os.Stderr, "%s: %s; it is the %s's turn, until %s\n", w.Object, w.Message, w.Responsible, w.Until)
		}
		return nil
	}
	_ = ask
}

// Plans can be computed from objects alone, without a cluster, by package vmi.
func Example_dryRun() {
	guest := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "guest", UID: "5d8f"},
		Spec: v1.VirtualMachineInstanceSpec{Volumes: []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root"}},
		}}}},
	}
	snapshot := vmi.Snapshot{VMI: guest}
	fmt.Println(vmi.Decide(snapshot, time.Now()))

	snapshot.Storage.Claims = map[string]*corev1.PersistentVolumeClaim{"root": {ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "root"}}}
	fmt.Println(vmi.Decide(snapshot, time.Now()))
	// Output:
	// phase=Pending
	//   emit FailedPvcNotFound: spec.volumes[0].persistentVolumeClaim.claimName: PersistentVolumeClaim default/root does not exist; create it or correct the name
	//   wait until the claim is created: FailedPvcNotFound: spec.volumes[0].persistentVolumeClaim.claimName: PersistentVolumeClaim default/root does not exist; create it or correct the name
	// phase=Pending
	//   do CreateLauncher (the VirtualMachineInstance has no Pod)
}

// Two replicas share the VMIs of a cluster. A program beside them finds out whose a VMI is.
func ExampleScope_Has() {
	replicas := []vmictrl.Scope{{Shard: 0, Shards: 2}, {Shard: 1, Shards: 2}}
	for _, uid := range []types.UID{"5d8f", "91aa", "7f2c"} {
		guest := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", UID: uid}}
		fmt.Println(uid, replicas[0].Has(guest), replicas[1].Has(guest))
	}
	// Output:
	// 5d8f true false
	// 91aa false true
	// 7f2c false true
}

// A program beside the controller reports what it will do next. It cannot write, whatever it calls.
func ExampleReconciler_Observe() {
	report := func(ctx context.Context, mgr ctrl.Manager) error {
		r := &vmictrl.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader()}
		if err := r.Observe(ctx, mgr.GetFieldIndexer()); err != nil {
			return err
		}
		guest := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "guest"}}
		if err := r.Client.Delete(ctx, guest); !errors.Is(err, vmictrl.ErrReadOnly) {
			return fmt.Errorf("an observer must not write: %w", err)
		}
		why, err := r.Explain(ctx, types.NamespacedName{Namespace: "default", Name: "guest"})
		if err != nil || why == nil {
			return err
		}
		fmt.Fprintln(os.Stderr, why)
		return nil
	}
	_ = report
}
