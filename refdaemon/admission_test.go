// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/template/templatectrl"
)

func TestWebhooks_Served(t *testing.T) {
	for address, want := range map[string]bool{"": false, "0": false, ":9443": true, "localhost": false} {
		a := admission{webhooks: configfile.Webhooks{Address: address, CertDir: "/certs"}}
		if serves := a.server() != nil; serves != want {
			t.Errorf("%q: serves: %t", address, serves)
		}
	}
	err := run(t.Context(), []string{"controller", "--webhook-address", ":9443"}, io.Discard)
	if usage := (usageError{}); !errors.As(err, &usage) || !strings.Contains(err.Error(), "--webhook-cert-dir is required") {
		t.Errorf("the controller starts: %v", err)
	}
}

func TestPrivileged_Accounts(t *testing.T) {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kv", Name: "kubevirt"}}
	a := &admission{webhooks: configfile.Webhooks{Trust: []string{"me", "group:us"}}}
	for name, tt := range map[string]struct {
		user authenticationv1.UserInfo
		kv   *v1.KubeVirt
		want bool
	}{
		"somebody":                     {user: authenticationv1.UserInfo{Username: "somebody", Groups: []string{"system:authenticated"}}},
		"an administrator":             {user: authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters"}}},
		"the controller":               {user: authenticationv1.UserInfo{Username: "virtloom-controller"}, want: true},
		"its Pod":                      {user: authenticationv1.UserInfo{Username: "system:serviceaccount:virtloom-system:virtloom-controller"}, want: true},
		"a node's Pod":                 {user: authenticationv1.UserInfo{Username: "system:serviceaccount:virtloom-node:virtloom-node"}, want: true},
		"a Pod of another's account":   {user: authenticationv1.UserInfo{Username: "system:serviceaccount:virtloom-system:virtloom-node"}},
		"a node":                       {user: authenticationv1.UserInfo{Username: "virtloom:node:a", Groups: []string{"virtloom:nodes"}}, want: true},
		"a node's name, not its right": {user: authenticationv1.UserInfo{Username: "virtloom:node:a"}},
		"KubeVirt's controller":        {user: authenticationv1.UserInfo{Username: "system:serviceaccount:kv:kubevirt-controller"}, kv: kv, want: true},
		"of another namespace":         {user: authenticationv1.UserInfo{Username: "system:serviceaccount:user:kubevirt-controller"}, kv: kv},
		"without KubeVirt":             {user: authenticationv1.UserInfo{Username: "system:serviceaccount:kv:kubevirt-controller"}},
		"who is trusted":               {user: authenticationv1.UserInfo{Username: "me"}, want: true},
		"whose group is trusted":       {user: authenticationv1.UserInfo{Username: "you", Groups: []string{"us"}}, want: true},
		"named like a trusted group":   {user: authenticationv1.UserInfo{Username: "us"}},
		"named as a trusted group is":  {user: authenticationv1.UserInfo{Username: "group:us"}},
	} {
		if got := a.privileged(tt.user, tt.kv); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// asked is what a webhook is asked about a guest.
func asked(t *testing.T, operation admissionv1.Operation, vmi, old *v1.VirtualMachineInstance) webhookadmission.Request {
	t.Helper()
	raw := func(o *v1.VirtualMachineInstance) runtime.RawExtension {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: text}
	}
	req := webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: operation, Object: raw(vmi), UserInfo: authenticationv1.UserInfo{Username: "somebody"},
	}}
	if old != nil {
		req.OldObject = raw(old)
	}
	return req
}

func admissionOf(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) (*admission, *runtime.Scheme) {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
	return &admission{cluster: templatectrl.Gatherer{Client: c}}, scheme
}

func TestAdmission_FollowsCluster(t *testing.T) {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kv", Name: "kubevirt"}}
	kv.Spec.Configuration.MachineType = "odd"
	a, scheme := admissionOf(t, interceptor.Funcs{}, kv)
	answer := webhookadmission.WithDefaulter(scheme, a).Handle(t.Context(), asked(t, admissionv1.Create, &v1.VirtualMachineInstance{}, nil))
	patches, err := json.Marshal(answer.Patches)
	if err != nil || !answer.Allowed || !strings.Contains(string(patches), `"odd"`) {
		t.Errorf("%v %+v", err, answer)
	}
	old := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{NodeName: "a"}}
	answer = webhookadmission.WithDefaulter(scheme, a).Handle(t.Context(), asked(t, admissionv1.Update, &v1.VirtualMachineInstance{}, old))
	if len(answer.Patches) != 1 || answer.Patches[0].Path != "/status/nodeName" || answer.Patches[0].Value != "a" {
		t.Errorf("an update: %+v", answer.Patches)
	}
	validator := webhookadmission.WithValidator(scheme, a)
	answer = validator.Handle(t.Context(), asked(t, admissionv1.Create, &v1.VirtualMachineInstance{}, nil))
	if answer.Allowed || answer.Result.Reason != metav1.StatusReasonInvalid || !strings.Contains(answer.Result.Message, "spec.domain.memory.guest") {
		t.Errorf("a guest without memory: %+v", answer.Result)
	}
	if answer = validator.Handle(t.Context(), asked(t, admissionv1.Update, old, old)); !answer.Allowed {
		t.Errorf("no change: %+v", answer.Result)
	}
	if answer = validator.Handle(t.Context(), asked(t, admissionv1.Delete, old, old)); !answer.Allowed {
		t.Errorf("deletion: %+v", answer.Result)
	}
}

func TestAdmission_ClusterUnreadable(t *testing.T) {
	broken := errors.New("no cache")
	a, scheme := admissionOf(t, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return broken }})
	vmi := &v1.VirtualMachineInstance{}
	for name, answer := range map[string]webhookadmission.Response{
		"default":  webhookadmission.WithDefaulter(scheme, a).Handle(t.Context(), asked(t, admissionv1.Create, vmi, nil)),
		"validate": webhookadmission.WithValidator(scheme, a).Handle(t.Context(), asked(t, admissionv1.Create, vmi, nil)),
		"update":   webhookadmission.WithValidator(scheme, a).Handle(t.Context(), asked(t, admissionv1.Update, vmi, vmi)),
	} {
		if answer.Allowed || !strings.Contains(answer.Result.Message, broken.Error()) {
			t.Errorf("%s: %+v", name, answer.Result)
		}
	}
}
