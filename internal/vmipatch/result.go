// SPDX-License-Identifier: Apache-2.0

package vmipatch

import apierrors "k8s.io/apimachinery/pkg/api/errors"

// Result returns the value of a metric's label for the result of a write, of which there are seven.
func Result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case LostRace(err):
		return "conflict"
	case apierrors.IsTooManyRequests(err):
		return "throttled"
	case apierrors.IsNotFound(err):
		return "missing"
	case apierrors.IsForbidden(err):
		return "forbidden"
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return "invalid"
	default:
		return "error"
	}
}
