// SPDX-License-Identifier: Apache-2.0

package vmipatch_test

import (
	"io"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/virtloom/virtloom/internal/vmipatch"
)

func TestResult_Labels(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for want, err := range map[string]error{
		"ok": nil, "conflict": apierrors.NewConflict(pods, "a", nil), "throttled": apierrors.NewTooManyRequests("", 1), "missing": apierrors.NewNotFound(pods, "a"),
		"forbidden": apierrors.NewForbidden(pods, "a", nil), "invalid": apierrors.NewBadRequest(""), "error": io.EOF,
	} {
		if got := vmipatch.Result(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}
