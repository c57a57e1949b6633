// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// ledger records which stage has set which field. A Pod has some hundred fields and most callers do not ask for them, so
// ledgers are reused and identify fields by value.
type ledger struct {
	owners fieldOwners
	terms  map[field][]Term
	// wholes are the fields written with Set, each of which owns its parts. wide are those that may contain elements of lists
	// and maps.
	wholes, wide []field
	// bases are the bases of the fields in owners, without duplicates.
	bases []string
}

// origin is the origin of a field: the stage, the source it named, and the stage that had set the field before.
type origin struct{ stage, from, overrode string }

var ledgers = sync.Pool{New: func() any {
	return &ledger{owners: newOwners(), terms: map[field][]Term{}}
}}

func newLedger() *ledger { return ledgers.Get().(*ledger) }

// release returns the ledger to the pool.
func (l *ledger) release() {
	l.owners.clear()
	clear(l.terms)
	l.wholes, l.wide, l.bases = l.wholes[:0], l.wide[:0], l.bases[:0]
	ledgers.Put(l)
}

// enter records the origin of a field, replacing the previous one.
func (l *ledger) enter(f field, o origin, terms []Term) { l.replace(l.owners.at(f), f, o, terms) }

// replace is enter at a known place.
func (l *ledger) replace(place *origin, f field, o origin, terms []Term) {
	if place.stage == "" && !slices.Contains(l.bases, f.base) {
		l.bases = append(l.bases, f.base)
	}
	*place = o
	if len(terms) > 0 {
		l.terms[f] = terms
	} else if len(l.terms) > 0 {
		delete(l.terms, f)
	}
}

// whole records that a field was written as a whole.
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

func (l *ledger) has(f field) bool {
	return l.owners.get(f).stage != ""
}

// replaced removes a part of a field that another stage has overwritten, unless that stage owns the part by now.
func (l *ledger) replaced(part, whole field) {
	o, by := l.owners.get(part), l.owners.get(whole)
	if o.stage == by.stage {
		return
	}
	if by.overrode == "" {
		by.overrode = o.stage
		l.owners.put(whole, by)
	}
	l.owners.remove(part)
	delete(l.terms, part)
}

// around returns the origin of the field that contains f, if a stage other than the given one has set it.
func (l *ledger) around(f field, stage string) (origin, bool) {
	candidates := l.wholes
	if f.name != "" {
		candidates = l.wide
	}
	for _, whole := range candidates {
		if whole != f && whole.contains(f) {
			if o := l.owners.get(whole); o.stage != "" && o.stage != stage {
				return o, true
			}
		}
	}
	// Fields that a container was added with are not written with Set, but are wholes as well: its security context, its
	// probes.
	for i := strings.LastIndexByte(f.sub, '.'); i > 0; i = strings.LastIndexByte(f.sub[:i], '.') {
		if o := l.owners.get(field{base: f.base, name: f.name, sub: f.sub[:i]}); o.stage != "" && o.stage != stage {
			return o, true
		}
	}
	return origin{}, false
}

// inside returns the parts of f that other stages have set, sorted by path.
func (l *ledger) inside(f field, stage string) (parts []field) {
	below := func(base string) bool { return base != f.base && within(base, f.base) }
	if f.name == "" && !slices.ContainsFunc(l.bases, below) && !slices.Contains(keyedBases, f.base) {
		return nil
	}
	for i := range l.owners.entries {
		other, by := l.owners.entries[i].field, l.owners.entries[i].origin.stage
		if by != "" && by != stage && other != f && f.contains(other) {
			parts = append(parts, other)
		}
	}
	slices.SortFunc(parts, func(a, b field) int { return cmp.Compare(a.String(), b.String()) })
	return parts
}

// hasVMISource reports whether a value is derived from the VMI's spec.
func (o origin) hasVMISource() bool { return strings.HasPrefix(o.from, "spec.") }
