// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// TestExplain_Waits: "refdaemon explain" says what a VMI waits for that a user has to mend: an image that is missing, a claim that is
// missing or not bound. (What a node lacks: TestNode_WithoutKVM.)
func TestExplain_Waits(t *testing.T) {
	nightly(t)
	c := cluster(t)
	request := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "unbound", Namespace: namespace}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To(""), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	must(t, c.Client.Create(t.Context(), request))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), request)) })
	for name, tt := range map[string]struct {
		vmi  func(*v1.VirtualMachineInstance)
		want []string
	}{
		"image missing": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes[0].ContainerDisk = &v1.ContainerDiskSource{Image: "virtloom.test/nowhere:1"}
		}, []string{"virtloom.test/nowhere:1", "remedy"}},
		"claim missing":   {func(vmi *v1.VirtualMachineInstance) { addDisk(vmi, "data", onClaim("nowhere", false)) }, []string{"nowhere", "remedy"}},
		"claim not bound": {func(vmi *v1.VirtualMachineInstance) { addDisk(vmi, "data", onClaim("unbound", false)) }, []string{"unbound", "create a PersistentVolume"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := create(t, newGuest("waits", tt.vmi))
			said := ""
			must(t, refcluster.Await(t.Context(), patience, "explain to say why", func(context.Context) error {
				said = explain(t, c.Rig, "vmi", s.key.String())
				for _, want := range tt.want {
					if !strings.Contains(said, want) {
						return fmt.Errorf("%q is not in\n%s", want, said)
					}
				}
				return nil
			}))
			t.Log(said)
		})
	}
}
