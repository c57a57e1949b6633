// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refused reports whether an error of the API server means that a JSON Patch does not apply to
// the stored object, because a test failed or a removed value is missing: the caller must decide
// again. It is false for a patched object that is invalid by its schema or rejected by a
// policy.
func Refused(err error) bool {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return false
	}
	s := known.Status()
	return s.Code == http.StatusUnprocessableEntity && s.Reason == metav1.StatusReasonInvalid &&
		nameless(s.Details) && !strings.HasPrefix(s.Message, "admission webhook ")
}

// LostRace reports whether an error means that a write was rejected because another write came
// first: by its resourceVersion, or by a test of a JSON Patch.
func LostRace(err error) bool { return apierrors.IsConflict(err) || Refused(err) }

// QuotaExceeded reports whether the API server rejected an object because of a ResourceQuota, which its text alone says.
func QuotaExceeded(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// nameless reports whether the details name no object. A patch is rejected before a patched
// object exists. A webhook may omit the details, too; the API server then prefixes the message
// with the webhook's name.
func nameless(d *metav1.StatusDetails) bool {
	return d == nil || d.Kind == "" && d.Name == "" && len(d.Causes) == 0
}
