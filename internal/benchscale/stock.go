// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/rig"
)

const (
	// userStock is who KubeVirt's virt-controller is to the API server.
	userStock = "virt-controller"
	// stockNamespace is where it looks for its KubeVirt object.
	stockNamespace = "kubevirt"
	// leadsWithin bounds its start.
	leadsWithin = time.Minute
)

// stockKinds are those that virt-controller watches and the rig does not serve, by plural.
var stockKinds = map[string]schema.GroupVersionKind{
	"virtualmachineclones":              {Group: "clone.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineClone"},
	"virtualmachineexports":             {Group: "export.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineExport"},
	"virtualmachineinstancereplicasets": {Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstanceReplicaSet"},
	"virtualmachinepools":               {Group: "pool.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachinePool"},
	"virtualmachinerestores":            {Group: "snapshot.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineRestore"},
	"virtualmachinesnapshotcontents":    {Group: "snapshot.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineSnapshotContent"},
	"virtualmachinesnapshots":           {Group: "snapshot.kubevirt.io", Version: "v1beta1", Kind: "VirtualMachineSnapshot"},
}

// stockDefinitions are the definitions of stockKinds, for every control plane of a run that measures virt-controller.
func stockDefinitions(o options) (out []*apiextensionsv1.CustomResourceDefinition) {
	if o.stock == "" {
		return nil
	}
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}}
	for plural, kind := range stockKinds {
		out = append(out, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + "." + kind.Group},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
				Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind.Kind), Kind: kind.Kind, ListKind: kind.Kind + "List"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: kind.Version, Served: true, Storage: true, Schema: schema}},
			},
		})
	}
	return out
}

// stockController is KubeVirt's virt-controller in a process of its own.
type stockController struct {
	*rig.Program
	rig *rig.Rig
}

// startStock starts virt-controller with its defaults, and waits until it leads.
func (b *bench) startStock(ctx context.Context) (*stockController, error) {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: stockNamespace, Name: "kubevirt"}}
	if err := b.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stockNamespace}}); err != nil {
		return nil, err
	}
	if err := b.client.Create(ctx, kv); err != nil {
		return nil, err
	}
	kv.Status.Phase = v1.KubeVirtPhaseDeployed
	if err := b.client.Status().Update(ctx, kv); err != nil {
		return nil, err
	}
	ports, err := rig.FreePorts(1)
	if err != nil {
		return nil, err
	}
	cert, key, err := b.servingPair()
	if err != nil {
		return nil, err
	}
	p, err := b.rig.Run("virt-controller", exec.Command(b.options.stock, "--kubeconfig="+b.rig.Kubeconfig(userStock),
		"--listen=127.0.0.1", "--port="+ports[0], "--prom-cert-file="+cert, "--prom-key-file="+key,
		"--launcher-image="+launcherImage, "--exporter-image=example.test/virt-exportserver:1"))
	if err != nil {
		return nil, err
	}
	return &stockController{Program: p, rig: b.rig}, leads(ctx, p, "https://127.0.0.1:"+ports[0]+"/leader")
}

// servingPair stores a certificate and its key, and returns their paths. No client checks who issued it.
func (b *bench) servingPair() (cert, key string, err error) {
	pair := b.rig.Config(userStock).TLSClientConfig
	cert, key = filepath.Join(b.rig.Dir(), "stock.crt"), filepath.Join(b.rig.Dir(), "stock.key")
	if err = os.WriteFile(cert, pair.CertData, 0o600); err == nil {
		err = os.WriteFile(key, pair.KeyData, 0o600)
	}
	return cert, key, err
}

// leads waits until a virt-controller says that it leads.
func leads(ctx context.Context, p *rig.Program, url string) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // on loopback
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeoutCause(ctx, leadsWithin, fmt.Errorf("virt-controller does not lead after %s (log %s)", leadsWithin, p.Log()))
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-p.Done():
			return false, p.Ended()
		default:
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return false, err
		}
		answer, err := client.Do(request)
		if err != nil {
			return false, nil // it does not listen yet
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		return strings.Contains(strings.Join(strings.Fields(string(text)), ""), `"leader":"true"`), err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

func (s *stockController) stop() error { return s.Stop(stopGrace) }

// rests waits until virt-controller has asked the API server for nothing for a while but to be its leader.
func (s *stockController) rests(ctx context.Context) error {
	const look = 5 * time.Second
	last := -1
	return wait.PollUntilContextCancel(ctx, look, true, func(context.Context) (bool, error) {
		requests, err := s.rig.Requests()
		if err != nil {
			return false, err
		}
		before := last
		last = countOf(requests, window{user: userStock, namespace: namespace})
		return last == before, nil
	})
}

// profile takes none: virt-controller offers none.
func (*stockController) profile(context.Context, string, string) func() []string {
	return func() []string { return nil }
}
