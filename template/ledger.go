// SPDX-License-Identifier: Apache-2.0

package template

import (
	"slices"
	"strings"
	"sync"
)

// ledger records which stage has set which field. A Pod has some hundred fields and most renderings ask for none of them,
// so ledgers are reused and name fields by value.
type ledger struct {
	owners map[field]origin
	terms  map[field][]Term
	// wholes are the fields written with Set, each of which owns everything below it. wide are those of them that may
	// contain elements of lists and maps.
	wholes, wide []field
	// bases are those of all fields in owners, each once.
	bases []string
}

// origin is where a field comes from: the stage, the source it named, and the stage that had set the field before.
type origin struct{ stage, from, overrode string }

var ledgers = sync.Pool{New: func() any {
	return &ledger{owners: make(map[field]origin, 192), terms: map[field][]Term{}}
}}

func newLedger() *ledger { return ledgers.Get().(*ledger) }

// release makes the ledger free for another rendering.
func (l *ledger) release() {
	clear(l.owners)
	clear(l.terms)
	l.wholes, l.wide, l.bases = l.wholes[:0], l.wide[:0], l.bases[:0]
	ledgers.Put(l)
}

// enter notes the origin of a field in the place of the one before.
func (l *ledger) enter(f field, o origin, terms []Term) {
	if !slices.Contains(l.bases, f.base) {
		l.bases = append(l.bases, f.base)
	}
	l.owners[f] = o
	if len(terms) > 0 {
		l.terms[f] = terms
	} else if len(l.terms) > 0 {
		delete(l.terms, f)
	}
}

// whole notes that a field was written as a whole.
func (l *ledger) whole(f field) {
	if slices.Contains(l.wholes, f) {
		return
	}
	l.wholes = append(l.wholes, f)
	for _, list := range keyedBases {
		if f.name != "" || within(list, f.base) {
			l.wide = append(l.wide, f)
			return
		}
	}
}

// keyedBases are the lists and maps whose elements are fields of their own.
var keyedBases = []string{
	fieldLabels, fieldAnnotations, fieldNodeSelector, fieldVolumes, fieldContainers, fieldInitContainers,
	fieldPullSecrets, fieldResourceClaims, fieldTolerations,
}

// around returns a field, written as a whole by another stage than the given one, that f is a part of.
func (l *ledger) around(f field, stage string) (field, origin, bool) {
	candidates := l.wholes
	if f.name != "" {
		candidates = l.wide
	}
	for _, whole := range candidates {
		if whole != f && whole.contains(f) {
			if o := l.owners[whole]; o.stage != stage {
				return whole, o, true
			}
		}
	}
	return field{}, origin{}, false
}

// inside calls yield for the parts of f that other stages have set, until it returns false.
func (l *ledger) inside(f field, stage string, yield func(field, origin) bool) {
	below := func(base string) bool { return base != f.base && within(base, f.base) }
	if f.name == "" && !slices.ContainsFunc(l.bases, below) && !slices.Contains(keyedBases, f.base) {
		return
	}
	for other, o := range l.owners {
		if other != f && f.contains(other) && o.stage != stage && !yield(other, o) {
			return
		}
	}
}

// hasVMISource tells whether a value follows from what the VMI's author wrote.
func (o origin) hasVMISource() bool { return strings.HasPrefix(o.from, "spec.") }
