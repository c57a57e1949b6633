// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Outcome is the effect of a write on the server, as far as its error shows.
type Outcome int

// The outcomes of a write.
const (
	// Accepted means that the server carried out the write: there was no error.
	Accepted Outcome = iota
	// Refused means that the server definitely did not carry out the write and will not.
	Refused
	// Exists means that a creation was refused because an object of that name exists; when names are intents, it is the
	// intended object, and the cache has yet to show it.
	Exists
	// Ambiguous means that the server may have carried out the write or may still do so.
	Ambiguous
)

// Classify returns the outcome of a write from the error that it returned. Only a 4xx status sent by the API server is
// a definite refusal; request timeouts (408), timeouts reported by the server, 5xx, broken connections and expired
// contexts are ambiguous, and so is every error that Classify does not know.
func Classify(verb Verb, err error) Outcome {
	if err == nil {
		return Accepted
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return Ambiguous
	}
	s := status.Status()
	switch {
	case verb == Create && s.Reason == metav1.StatusReasonAlreadyExists:
		return Exists
	case s.Reason == metav1.StatusReasonTimeout, s.Reason == metav1.StatusReasonServerTimeout:
		return Ambiguous
	case s.Code == http.StatusRequestTimeout:
		return Ambiguous
	case s.Code >= 400 && s.Code < 500:
		return Refused
	default:
		return Ambiguous
	}
}
