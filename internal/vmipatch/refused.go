// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refused tells whether an error of the API server means that a JSON Patch does not apply to
// what is stored, because a test of it failed or what it removes is gone: whoever decided
// has to look again. It is false for what the API server found wrong with the patched
// object, by its definition or by a policy.
func Refused(err error) bool {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return false
	}
	s := known.Status()
	return s.Code == http.StatusUnprocessableEntity && s.Reason == metav1.StatusReasonInvalid &&
		nameless(s.Details) && !strings.HasPrefix(s.Message, "admission webhook ")
}

// nameless tells whether the details say of no object that it is wrong. The refusal of a
// patch is made before there is a patched object to speak of. A webhook may leave them
// out, too; the API server then puts its name before the message.
func nameless(d *metav1.StatusDetails) bool {
	return d == nil || d.Kind == "" && d.Name == "" && len(d.Causes) == 0
}
