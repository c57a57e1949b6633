// SPDX-License-Identifier: Apache-2.0

package vmipatch_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmipatch"
)

// refusal returns the API server's error for a patch that does not apply.
func refusal() *apierrors.StatusError {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)
}

func TestRefused_Errors(t *testing.T) {
	vmi := schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachineInstance"}
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{
		Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: `admission webhook "w" denied the request: no`,
	}}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"none":                 {nil, false},
		"a refusal":            {refusal(), true},
		"a wrapped refusal":    {fmt.Errorf("store: %w", refusal()), true},
		"an invalid object":    {apierrors.NewInvalid(vmi, "guest", nil), false},
		"a denial":             {webhook, false},
		"a conflict":           {apierrors.NewConflict(schema.GroupResource{}, "guest", nil), false},
		"not the API server's": {errors.New("x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := vmipatch.Refused(tc.err); got != tc.want {
				t.Errorf("Refused(%v) is %t", tc.err, got)
			}
		})
	}
}

func TestWrite_FallbackToVersion(t *testing.T) {
	was := stored()
	want := edited(was, func(g *vmi) { g.Status.Phase = v1.Failed })
	other := errors.New("other")
	for name, tc := range map[string]struct {
		want    *vmi
		guards  []vmipatch.Guard
		answers []error
		sent    []bool // whether the version is tested
		err     error
	}{
		"nothing to write":         {want: was},
		"accepted":                 {want: want, answers: []error{nil}, sent: []bool{false}},
		"failed":                   {want: want, answers: []error{other}, sent: []bool{false}, err: other},
		"refused, then accepted":   {want: want, answers: []error{refusal(), nil}, sent: []bool{false, true}},
		"refused twice":            {want: want, answers: []error{refusal()}, sent: []bool{false, true}, err: refusal()},
		"refused by version alone": {want: want, guards: []vmipatch.Guard{vmipatch.Version}, answers: []error{refusal()}, sent: []bool{true}, err: refusal()},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []bool
			err := vmipatch.Write(was, tc.want, func(patch []byte) error {
				sent = append(sent, strings.Contains(string(patch), "resourceVersion"))
				return tc.answers[min(len(sent), len(tc.answers))-1]
			}, tc.guards...)
			if fmt.Sprint(sent) != fmt.Sprint(tc.sent) || fmt.Sprint(err) != fmt.Sprint(tc.err) || vmipatch.Refused(err) != vmipatch.Refused(tc.err) {
				t.Errorf("sent %v, %v; want %v, %v", sent, err, tc.sent, tc.err)
			}
		})
	}
	if err := vmipatch.Write(was, edited(was, func(g *vmi) { g.UID = "other" }), nil); !errors.Is(err, vmipatch.ErrUnsupported) {
		t.Errorf("another object: %v", err)
	}
}
