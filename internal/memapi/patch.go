// SPDX-License-Identifier: Apache-2.0

package memapi

import (
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// decode reads an object with whole numbers as int64.
func decode(text []byte) (map[string]any, error) {
	var o map[string]any
	if err := json.Unmarshal(text, &o); err != nil || o == nil {
		return nil, apierrors.NewBadRequest("the body is no object")
	}
	if _, ok := o["metadata"].(map[string]any); !ok {
		o["metadata"] = map[string]any{}
	}
	return o, nil
}

func deepEqual(a, b any) bool { return reflect.DeepEqual(a, b) }

// replacing is the edit of an update.
func (r *request) replacing() edit {
	return func(map[string]any) (map[string]any, error) { return decode(r.body) }
}

// patching is the edit of a patch.
func (r *request) patching() edit {
	return func(was map[string]any) (map[string]any, error) {
		text, err := json.Marshal(was)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		switch types.PatchType(r.media) {
		case types.JSONPatchType:
			text, err = applyJSON(text, r.body)
		case types.MergePatchType:
			text, err = jsonpatch.MergePatch(text, r.body)
		case types.StrategicMergePatchType:
			if r.table.kind.Typed == nil {
				return nil, unsupported(r)
			}
			text, err = strategicpatch.StrategicMergePatch(text, r.body, r.table.kind.Typed)
		default:
			return nil, unsupported(r)
		}
		if err != nil {
			return nil, unprocessable(err)
		}
		return decode(text)
	}
}

func applyJSON(text, patch []byte) ([]byte, error) {
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	return p.Apply(text)
}

// unprocessable is what a real server answers to a patch that does not apply; it speaks of no object.
func unprocessable(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid,
		Message: "the server rejected our request due to an error in our request: " + err.Error(),
	}}
}

func unsupported(r *request) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 415, Reason: metav1.StatusReasonUnsupportedMediaType, Message: "patch of type " + r.media,
	}}
}
