// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
)

// mostShared bounds how many different lists are shared; guests come in few sizes.
const mostShared = 4096

// sharedLists has resource lists by what they say. What is in a cache is not changed, so that Pods may have one list in
// common, which is most of what a trimmed Pod consists of otherwise.
var sharedLists = struct {
	sync.Mutex
	lists map[string]corev1.ResourceList // guarded by the mutex
}{lists: map[string]corev1.ResourceList{}}

// shared is a list that says the same.
func shared(list corev1.ResourceList) corev1.ResourceList {
	if len(list) == 0 {
		return nil
	}
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		key.WriteString(string(name) + "=" + q.String() + ",")
	}
	sharedLists.Lock()
	defer sharedLists.Unlock()
	if have, known := sharedLists.lists[key.String()]; known {
		return have
	}
	if len(sharedLists.lists) >= mostShared {
		clear(sharedLists.lists)
	}
	sharedLists.lists[key.String()] = list
	return list
}

// one is the string, in the memory of another that says the same.
func one(s string) string { return unique.Make(s).Value() }

// ones is the map with keys and values in the memory of others that say the same, if they are short: long ones differ.
func ones(m map[string]string) map[string]string {
	const short = 64
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		if len(v) <= short {
			v = one(v)
		}
		out[one(k)] = v
	}
	return out
}
