// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/config/webhook"
)

// patience bounds waiting for the webhooks to be asked.
const patience = time.Minute

// world is a cluster whose API server asks a refdaemon about guests.
type world struct {
	*rig.Rig
	client.Client
	controller client.Client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: 2})}
	w.Client, w.controller = w.as(t, rig.UserAdmin), w.as(t, rig.UserController)
	dir := t.TempDir()
	binary := build(t, dir)
	authority, address := certificate(t, dir), freeAddress(t)
	_, err := w.Run("refdaemon-controller", exec.Command(binary, "controller",
		"--kubeconfig", w.Kubeconfig(rig.UserController), "--leader-elect=false", "--webhook-address", address, "--webhook-cert-dir", dir))
	must(t, err)
	objects, err := webhook.Manifests(webhook.Endpoint{URL: "https://" + address, CABundle: authority})
	must(t, err)
	for _, o := range objects {
		must(t, w.Create(t.Context(), o))
	}
	w.awaitWebhooks(t)
	return w
}

func (w *world) as(t *testing.T, user string) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme), v1beta1.AddToScheme(scheme)))
	c, err := client.New(w.Config(user), client.Options{Scheme: scheme})
	must(t, err)
	return c
}

// certificate writes a certificate for loopback and its key, and returns who vouches for it: itself.
func certificate(t *testing.T, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	must(t, os.WriteFile(filepath.Join(dir, "tls.crt"), text, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return text
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// awaitWebhooks waits until both are asked and answer.
func (w *world) awaitWebhooks(t *testing.T) {
	t.Helper()
	var last error
	err := rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		vmi := guest("probe", "")
		last = w.Create(ctx, vmi, client.DryRunAll)
		return apierrors.IsInvalid(last) && strings.Contains(last.Error(), "memory must be set"), nil
	})
	if err != nil {
		t.Fatalf("%v; the last answer: %v", err, last)
	}
}

func guest(name, memory string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	if memory != "" {
		vmi.Spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
	return vmi
}

// TestWebhooks_APIServer goes through the life of guests at a real API server; what is filled in and refused in detail is tested
// with package admit.
func TestWebhooks_APIServer(t *testing.T) {
	w := newWorld(t)
	t.Run("a bare guest is filled in", w.testBareGuest)
	t.Run("a wrong guest is refused", w.testWrongGuest)
	t.Run("a guest in the cluster is kept", w.testExistingGuest)
	t.Run("VirtualMachines", w.testMachines)
}

func (w *world) testBareGuest(t *testing.T) {
	vmi := guest("bare", "256Mi")
	must(t, w.Create(t.Context(), vmi))
	for what, ok := range map[string]bool{
		"finalizer":   len(vmi.Finalizers) == 1 && vmi.Finalizers[0] == v1.VirtualMachineInstanceFinalizer,
		"annotations": vmi.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] == "v1" && vmi.Annotations[v1.ControllerAPIStorageVersionObservedAnnotation] == "v1",
		"machine":     vmi.Spec.Domain.Machine != nil && vmi.Spec.Domain.Machine.Type == "q35",
		"memory":      vmi.Spec.Domain.Memory != nil && vmi.Spec.Domain.Memory.Guest.String() == "256Mi",
		"network":     len(vmi.Spec.Networks) == 1 && len(vmi.Spec.Domain.Devices.Interfaces) == 1,
		"UUID":        vmi.Spec.Domain.Firmware != nil && len(vmi.Spec.Domain.Firmware.UUID) == 36,
		"time": len(vmi.Status.PhaseTransitionTimestamps) == 1 && vmi.Status.PhaseTransitionTimestamps[0].Phase == v1.Pending &&
			!vmi.Status.PhaseTransitionTimestamps[0].PhaseTransitionTimestamp.IsZero(),
		"phase": vmi.Status.Phase == v1.Pending,
		"user":  vmi.Status.RuntimeUser == 107,
	} {
		if !ok {
			t.Errorf("%s: metadata %+v, spec %+v, status %+v", what, vmi.ObjectMeta, vmi.Spec, vmi.Status)
		}
	}
}

func (w *world) testWrongGuest(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		want []string
	}{
		"no-volume": {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}} },
			[]string{"spec.domain.devices.disks[0].name", `"root"`, "add it to spec.volumes, or remove the disk"}},
		"elsewhere": {func(vmi *v1.VirtualMachineInstance) { vmi.Labels = map[string]string{v1.NodeNameLabel: "n1"} },
			[]string{"metadata.labels[kubevirt.io/nodeName]", "remove the label"}},
		"lease": {func(vmi *v1.VirtualMachineInstance) { vmi.Annotations = map[string]string{handoff.Annotation: "{}"} },
			[]string{"metadata.annotations[" + handoff.Annotation + "]", "remove the annotation"}},
		"running": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Running },
			[]string{"status.phase", `"Running"`, "remove the status"}},
	} {
		vmi := guest(name, "256Mi")
		tt.edit(vmi)
		err := w.Create(t.Context(), vmi)
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", name, err, want)
			}
		}
	}
}

func (w *world) testExistingGuest(t *testing.T) {
	vmi := guest("kept", "256Mi")
	must(t, w.Create(t.Context(), vmi))
	merge := func(c client.Client, patch string) error {
		return c.Patch(t.Context(), vmi.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	if err := merge(w.Client, `{"spec":{"hostname":"other"}}`); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "recreate the VMI") {
		t.Errorf("a user changes the spec: error %v", err)
	}
	must(t, merge(w.Client, `{"metadata":{"labels":{"app":"web"}},"status":{"phase":"Failed","reason":"a user"}}`))
	got := &v1.VirtualMachineInstance{}
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(vmi), got))
	if got.Labels["app"] != "web" || got.Status.Phase == v1.Failed || got.Status.Reason != "" {
		t.Errorf("labels %v, status %+v", got.Labels, got.Status)
	}
	must(t, merge(w.controller, `{"spec":{"hostname":"other"},"status":{"reason":"a controller"}}`))
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(vmi), got))
	if got.Spec.Hostname != "other" || got.Status.Reason != "a controller" {
		t.Errorf("hostname %q, reason %q", got.Spec.Hostname, got.Status.Reason)
	}
	must(t, w.Delete(t.Context(), vmi))
}
