// SPDX-License-Identifier: Apache-2.0

package contracttest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

var veleroKeys = []string{
	"pre.hook.backup.velero.io/container", "pre.hook.backup.velero.io/command", "pre.hook.backup.velero.io/timeout",
	"post.hook.backup.velero.io/container", "post.hook.backup.velero.io/command",
}

// A Pod needs no patch until its guest changes: what is rendered is what is then
// kept up to date.
func TestPodMetadata_NewPod(t *testing.T) {
	for name, tt := range map[string]struct {
		labels, annotations map[string]string
		skipHooks           bool
		hooks               int
	}{
		"62 plain":               {hooks: len(veleroKeys)},
		"62 no backup hooks":     {skipHooks: true},
		"62 hooks of one's own":  {skipHooks: true, annotations: map[string]string{veleroKeys[1]: "mine"}, hooks: 1},
		"62 hooks of both":       {annotations: map[string]string{veleroKeys[1]: "mine"}, hooks: len(veleroKeys)},
		"62 the guest opts out":  {annotations: map[string]string{"kubevirt.io/skip-backup-hooks": "true"}},
		"62 for the descheduler": {annotations: map[string]string{"descheduler.alpha.kubernetes.io/evict": "true"}, hooks: len(veleroKeys)},
		"62 configured keys": {
			labels: map[string]string{"my.org/team": "a"}, annotations: map[string]string{"my.org/cost": "1"}, hooks: len(veleroKeys),
		},
		"62 keys that Pods have of their own": {
			labels: map[string]string{v1.AppLabel: "mine", v1.CreatedByLabel: "me"}, hooks: len(veleroKeys),
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := template.Input{
				VMI: &v1.VirtualMachineInstance{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1", Labels: tt.labels, Annotations: tt.annotations},
				},
				Config: template.Config{LauncherImage: "example.com/virt-launcher:v1", SkipBackupHooks: tt.skipHooks},
			}
			in.VMI.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
			pod, err := template.Default().Launcher(in)
			if err != nil {
				t.Fatal(err)
			}
			hooks := 0
			for _, key := range veleroKeys {
				if _, there := pod.Annotations[key]; there {
					hooks++
				}
			}
			if hooks != tt.hooks {
				t.Errorf("the Pod has %d backup hooks, want %d", hooks, tt.hooks)
			}
			generated, err := template.VeleroHooks{}.Annotations(in)
			if err != nil {
				t.Fatal(err)
			}
			keys := vmi.PodKeys{
				Labels: []string{"my.org/*", "kubevirt.io*"}, Annotations: []string{"my.org/*", "kubevirt.io/*", "descheduler*"},
				StorageKeys: veleroKeys, StorageAnnotations: generated,
			}
			for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning} {
				pod.Status.Phase = phase
				if labels, annotations := vmi.PodMetadata(in.VMI, pod, keys); labels != nil || annotations != nil {
					t.Errorf("a Pod that is %s needs a patch: labels %v, annotations %v", phase, labels, annotations)
				}
			}
		})
	}
}
