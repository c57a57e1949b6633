// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
