// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// startRows cover the time before the Pod.
var startRows = map[string]row{
	"1 the versions are noted (better: with the first write, not by one of their own)": {
		until: func(g *v1.VirtualMachineInstance) bool { return g.Status.Phase == v1.Scheduling },
	},
	"2 a Pod and phase Scheduling (better: the gate is written when the guest is handed over)": {scene: scene{phase: v1.Pending}},
	"4 Pod security": {scene: scene{phase: v1.Pending}, edit: (*vmictrl.Reconciler).NeverRetry,
		wrap: answer(http.MethodPost, http.StatusForbidden, `pods \"guest\" is forbidden: violates PodSecurity \"restricted:latest\"`)},
	"5 the networks are not valid (better: an event is emitted)": {scene: scene{phase: v1.Pending},
		edit: func(r *vmictrl.Reconciler) {
			r.Config.SpecValidator = func(*v1.VirtualMachineInstance) []metav1.StatusCause {
				return []metav1.StatusCause{{Field: "spec.networks", Message: "are wrong"}}
			}
		}},
	"10 no Pod while a migration runs (better: its end is awaited, not tried)": {scene: scene{phase: v1.Pending, before: migrating(v1.MigrationRunning)}},
	"10 a Pod after the migration has succeeded":                               {scene: scene{phase: v1.Pending, before: migrating(v1.MigrationSucceeded)}},
	"11 a Pod while a migration is pending":                                    {scene: scene{phase: v1.Pending, before: migrating(v1.MigrationPending)}},
	"11 a Pod while a migration is unset":                                      {scene: scene{phase: v1.Pending, before: migrating(v1.MigrationPhaseUnset)}},
	"11 no Pod while a migration is scheduling":                                {scene: scene{phase: v1.Pending, before: migrating(v1.MigrationScheduling)}},
	"13 no clock known, which the guest needs to migrate": {edit: noHints, scene: scene{phase: v1.Pending,
		guest: func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{Enabled: ptr.To(true)}}}
		}}},
	"14 no clock known, which the guest needs to boot (better: a condition reports it, a change of nodes wakes)": {edit: noHints,
		scene: scene{phase: v1.Pending, guest: func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "invtsc", Policy: "require"}}}
		}}},
	"17 a claim is missing (better: one event, not one each pass)":        {scene: scene{phase: v1.Pending, guest: withClaim("data")}},
	"19 a claim that nobody fills may be Pending":                         {scene: scene{phase: v1.Pending, guest: withClaim("data"), before: unboundClaim}},
	"32 the firmware's state needs a claim, and no class is there for it": {scene: scene{phase: v1.Pending, guest: withFirmware}},
	"83 a guest to be received":                                           {scene: scene{phase: v1.Pending, guest: toBeReceived}},
}

// answer responds to the verb in place of the API server.
func answer(verb string, code int, message string) func(*world, *v1.VirtualMachineInstance, http.RoundTripper) http.RoundTripper {
	return func(_ *world, _ *v1.VirtualMachineInstance, next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != verb {
				return next.RoundTrip(req)
			}
			return refusal(req, code, message), nil
		})
	}
}

func noHints(r *vmictrl.Reconciler) {
	r.Config.TopologyHints = func(*v1.VirtualMachineInstance, []vmi.Node, *int64) (*v1.TopologyHints, error) {
		return nil, errors.New("no node has a frequency")
	}
}

func migrating(p v1.VirtualMachineInstanceMigrationPhase) func(*world) {
	return func(w *world) {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "move"},
			Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: vmiName}}
		w.create(m)
		m.Status.Phase = p
		if err := w.Status().Update(w.t.Context(), m); err != nil {
			w.t.Fatal(err)
		}
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(m), m); err != nil || m.Status.Phase != p {
			w.t.Fatalf("the migration is %q: %v", m.Status.Phase, err)
		}
	}
}

// toBeReceived marks the target of a migration from another cluster.
func toBeReceived(g *v1.VirtualMachineInstance) { g.Annotations[v1.CreateMigrationTarget] = "true" }

// unboundClaim creates a claim that waits for a volume.
func unboundClaim(w *world) {
	w.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: gigabyte},
		}})
}

// refusal returns an error response of an API server.
func refusal(req *http.Request, code int, message string) *http.Response {
	reason := map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusInternalServerError: metav1.StatusReasonInternalError}[code]
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"%s"}`, reason, code, message)
	return &http.Response{StatusCode: code, Request: req, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body))}
}
