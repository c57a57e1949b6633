// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// LabelValue is the API server's rule for label values. It evaluates the rule itself, a regular expression, only for
// strings that are not obviously valid.
func LabelValue(s string) []string {
	if isLabelWord(s) {
		return nil
	}
	return validation.IsValidLabelValue(s)
}

// LabelKey is the API server's rule for keys of labels and annotations, optimized like LabelValue.
func LabelKey(s string) []string {
	prefix, name, prefixed := strings.Cut(s, "/")
	if !prefixed {
		prefix, name = "", s
	}
	if isLabelWord(name) && (!prefixed || isDomain(prefix)) {
		return nil
	}
	return validation.IsQualifiedName(s)
}

// isLabelWord reports whether a string consists of letters and digits with single signs between them.
func isLabelWord(s string) bool {
	if s == "" || len(s) > validation.LabelValueMaxLength || !isAlphanumeric(s[0]) || !isAlphanumeric(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

// isDomain reports whether a string consists of short plain words with dots between them, such as kubevirt.io.
func isDomain(s string) bool {
	if len(s) > validation.LabelValueMaxLength {
		return false
	}
	for word := range strings.SplitSeq(s, ".") {
		if !Plain(word) {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return isLower(c) || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Plain reports whether a string is a short lower case word that satisfies all rules for names, ports and label values.
// Most strings of a VMI do, and the rules are regular expressions.
func Plain(s string) bool {
	if s == "" || len(s) > 15 || !isLower(s[0]) || s[len(s)-1] == '-' {
		return false
	}
	for i := 1; i < len(s); i++ {
		lone := s[i] == '-' && s[i-1] != '-'
		if digit := s[i] >= '0' && s[i] <= '9'; !lone && !digit && !isLower(s[i]) {
			return false
		}
	}
	return true
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' }

// sortedKeys returns the keys of maps, each once.
func sortedKeys[M ~map[K]V, K cmp.Ordered, V any](lists ...M) []K {
	n := 0
	for _, list := range lists {
		n += len(list)
	}
	if n == 0 {
		return nil
	}
	keys := make([]K, 0, n)
	for _, list := range lists {
		for key := range list {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
