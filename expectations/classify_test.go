// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/virtloom/virtloom/expectations"
)

func TestClassify(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		verb expectations.Verb
		err  error
		want expectations.Outcome
	}{
		"no error":            {expectations.Create, nil, expectations.Accepted},
		"exists":              {expectations.Create, apierrors.NewAlreadyExists(gr, "a"), expectations.Exists},
		"exists, wrapped":     {expectations.Create, fmt.Errorf("x: %w", apierrors.NewAlreadyExists(gr, "a")), expectations.Exists},
		"quota conflict":      {expectations.Create, apierrors.NewConflict(gr, "a", errors.New("quota")), expectations.Refused},
		"conflict":            {expectations.Update, apierrors.NewConflict(gr, "a", errors.New("old")), expectations.Refused},
		"not found":           {expectations.Delete, apierrors.NewNotFound(gr, "a"), expectations.Refused},
		"forbidden":           {expectations.Create, apierrors.NewForbidden(gr, "a", errors.New("no")), expectations.Refused},
		"throttled":           {expectations.Create, apierrors.NewTooManyRequestsError("later"), expectations.Refused},
		"server timeout":      {expectations.Create, apierrors.NewServerTimeout(gr, "create", 1), expectations.Ambiguous},
		"request timeout":     {expectations.Create, apierrors.NewTimeoutError("slow", 1), expectations.Ambiguous},
		"bare 408":            {expectations.Create, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusRequestTimeout}}, expectations.Ambiguous},
		"bare 400":            {expectations.Create, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest}}, expectations.Refused},
		"internal error":      {expectations.Create, apierrors.NewInternalError(errors.New("x")), expectations.Ambiguous},
		"service unavailable": {expectations.Update, apierrors.NewServiceUnavailable("x"), expectations.Ambiguous},
		"deadline":            {expectations.Update, context.DeadlineExceeded, expectations.Ambiguous},
		"connection lost":     {expectations.Delete, io.ErrUnexpectedEOF, expectations.Ambiguous},
		"anything else":       {expectations.Delete, errors.New("?"), expectations.Ambiguous},
	} {
		t.Run(name, func(t *testing.T) {
			if got := expectations.Classify(tc.verb, tc.err); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestClassify_BareRequestTimeout: a proxy that gives up says 408 and no reason; what it
// has passed on may still arrive.
func TestClassify_BareRequestTimeout(t *testing.T) {
	for code, want := range map[int32]expectations.Outcome{408: expectations.Ambiguous, 409: expectations.Refused, 403: expectations.Refused, 502: expectations.Ambiguous} {
		err := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code}}
		if got := expectations.Classify(expectations.Update, err); got != want {
			t.Errorf("a bare %d: got %v, want %v", code, got, want)
		}
	}
}
