// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
// missing or not bound, a node whose disk is full. (What a node lacks: TestNode_WithoutKVM.)
func TestExplain_Waits(t *testing.T) {
	nightly(t)
	c := cluster(t)
	request := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "unbound", Namespace: namespace}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To(""), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	must(t, c.Client.Create(t.Context(), request))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), request)) })
	node := c.Nodes[0]
	fill(t, filepath.Join(c.Rig.Dir(), "fabric", "nodes", node.Name(), "etc", "kubelet.yaml"), func() {
		must(t, node.KillKubelet())
		must(t, node.StartKubelet(context.Background()))
	})
	for name, tt := range map[string]struct {
		vmi  func(*v1.VirtualMachineInstance)
		want []string
	}{
		"image missing": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes[0].ContainerDisk = &v1.ContainerDiskSource{Image: "virtloom.test/nowhere:1"}
		}, []string{"virtloom.test/nowhere:1", "remedy"}},
		"claim missing":   {func(vmi *v1.VirtualMachineInstance) { addDisk(vmi, "data", onClaim("nowhere", false)) }, []string{"nowhere", "remedy"}},
		"claim not bound": {func(vmi *v1.VirtualMachineInstance) { addDisk(vmi, "data", onClaim("unbound", false)) }, []string{"unbound", "create a PersistentVolume"}},
		"disk of the node full": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name()}
		}, []string{corev1.TaintNodeDiskPressure, "free disk space"}},
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

// fill makes a kubelet find that its disk is full: its threshold for that becomes nearly the whole disk, and nothing is evicted for an hour.
func fill(t *testing.T, config string, restart func()) {
	t.Helper()
	before, err := os.ReadFile(config)
	must(t, err)
	must(t, os.WriteFile(config, append(before, "evictionSoft: {nodefs.available: 99.99%}\nevictionSoftGracePeriod: {nodefs.available: 1h}\n"...), 0o600))
	t.Cleanup(func() {
		must(t, os.WriteFile(config, before, 0o600))
		restart()
		must(t, cluster(t).AwaitSchedulable(context.Background(), patience))
	})
	restart()
}
