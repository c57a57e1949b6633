// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mentioned are the objects that the documents name.
func mentioned() []client.Object {
	guest := func(ns string) *v1.VirtualMachineInstance {
		memory := resource.MustParse("64Mi")
		g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
		g.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
		return g
	}
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		guest("default"), guest("shop"),
		&v1.VirtualMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec:       v1.VirtualMachineSpec{RunStrategy: new(v1.RunStrategyHalted), Template: &v1.VirtualMachineInstanceTemplateSpec{}},
		},
		&v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "web"},
		},
	}
}

// What needs a cluster is run as an administrator's shell would: kubectl and refdaemon are on the path, and the
// kubeconfig is where it usually is.
func TestClusterBlocks_Run(t *testing.T) {
	r := rigtest.New(t)
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)))
	c, err := client.New(r.Config(rig.UserAdmin), client.Options{Scheme: scheme})
	must(t, err)
	for _, o := range mentioned() {
		must(t, c.Create(t.Context(), o))
	}
	home := t.TempDir()
	text, err := os.ReadFile(r.Kubeconfig(rig.UserAdmin))
	must(t, err)
	must(t, os.Mkdir(filepath.Join(home, ".kube"), 0o700))
	must(t, os.WriteFile(filepath.Join(home, ".kube", "config"), text, 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", filepath.Join(home, "bin", "refdaemon"), "./refdaemon")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bin, err := rig.BinDir()
	must(t, err)
	runBlocks(t, "cluster", "HOME="+home, "PATH="+filepath.Join(home, "bin")+":"+bin+":"+os.Getenv("PATH"))
	t.Run("metrics for those who may see them", func(t *testing.T) { testSecureMetrics(t, r, filepath.Join(home, "bin", "refdaemon")) })
}
