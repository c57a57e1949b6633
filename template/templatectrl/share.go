// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	"encoding/binary"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// mostShared bounds how many different values of a kind are shared; guests come in few sizes.
const mostShared = 4096

// table has values by what they say. What is in a cache is not changed, so that its Pods may have values in common, of
// which a trimmed Pod consists mostly otherwise.
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

// of is the value that is known by the key; v if none is.
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

// said is a value of the API; its protobuf encoding is the same for all that say the same.
type said[T any] interface {
	*T
	Marshal() ([]byte, error)
}

// share is a list that says the same, for all of them.
func share[T any, P said[T]](t *table[[]T], list []T) []T {
	if len(list) == 0 {
		return nil
	}
	var key []byte
	for i := range list {
		b, err := P(&list[i]).Marshal()
		if err != nil { // it cannot be told from others
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

// one is the string, in the memory of another that says the same, if it is short: long ones differ.
func one[S ~string](s S) S {
	const short = 256
	if len(s) == 0 || len(s) > short {
		return s
	}
	return S(sharedStrings.of(string(s), string(s)))
}

// ones is the map, of strings that are in memory once.
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
