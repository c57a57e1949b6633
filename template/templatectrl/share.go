// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	"encoding/binary"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// mostShared is the maximum number of different values of a kind that are shared; VMIs come in few sizes.
const mostShared = 4096

// table interns values by content. Cached objects are immutable, so that their Pods can share values, which dominate the
// size of a trimmed Pod otherwise.
type table[T any] struct {
	mu    sync.Mutex
	known map[string]T // guarded by mu
}

var (
	sharedStrings     table[string]
	sharedResources   table[corev1.ResourceRequirements]
	sharedContainers  table[[]corev1.Container]
	sharedVolumes     table[[]corev1.Volume]
	sharedTolerations table[[]corev1.Toleration]
	sharedAffinities  table[[]corev1.Affinity]
)

// of returns the known value of the key; v if there is none.
func (t *table[T]) of(key string, v T) T {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have, is := t.known[key]; is {
		return have
	}
	if t.known == nil || len(t.known) >= mostShared {
		t.known = map[string]T{}
	}
	t.known[key] = v
	return v
}

// protoValue is a value of the API; equal values have the same protobuf encoding.
type protoValue[T any] interface {
	*T
	Marshal() ([]byte, error)
}

// share returns the shared list with equal content.
func share[T any, P protoValue[T]](t *table[[]T], list []T) []T {
	if len(list) == 0 {
		return nil
	}
	var key []byte
	for i := range list {
		b, err := P(&list[i]).Marshal()
		if err != nil { // it cannot be compared with others
			return list
		}
		key = append(binary.AppendUvarint(key, uint64(len(b))), b...)
	}
	return t.of(string(key), list)
}

func shareAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil {
		return nil
	}
	return &share(&sharedAffinities, []corev1.Affinity{*a})[0]
}

// one returns the shared string with equal content if it is short: long ones differ.
func one[S ~string](s S) S {
	const short = 256
	if len(s) == 0 || len(s) > short {
		return s
	}
	return S(sharedStrings.of(string(s), string(s)))
}

// ones returns the map with shared strings.
func ones(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[one(k)] = one(v)
	}
	return out
}
