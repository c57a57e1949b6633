// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"fmt"
	"slices"
)

// Guard is something that a decision depended on, whether or not it changes it: the patch is
// refused if that is not any more as it was.
type Guard struct{ at []string }

// Guards without a parameter.
var (
	// Version is the resourceVersion: nothing at all may have been written. It makes all
	// other tests superfluous, and the patch has none.
	Version = Guard{[]string{"metadata", "resourceVersion"}}
	// Deletion is whether, and when, the object was deleted.
	Deletion = Guard{[]string{"metadata", "deletionTimestamp"}}
	// Finalizers are all finalizers.
	Finalizers = Guard{[]string{"metadata", "finalizers"}}
	// Phase is status.phase.
	Phase = Status("phase")
)

// Label is the value of a label, or its absence.
func Label(key string) Guard { return Guard{[]string{"metadata", "labels", key}} }

// Annotation is the value of an annotation, or its absence.
func Annotation(key string) Guard { return Guard{[]string{"metadata", "annotations", key}} }

// Status is a field of the status by its JSON name, with all that is below it as far as it
// can be tested, or its absence.
func Status(field string) Guard { return Guard{[]string{"status", field}} }

func (g Guard) isVersion() bool { return slices.Equal(g.at, Version.at) }

func (g Guard) ofStatus() bool { return g.at[0] == "status" }

// guard tests what the guard names, or that it, or the deepest part of the way to it, is
// not there.
func (p *patch) guard(g Guard, was map[string]any) error {
	at, t := path(""), documentType
	for i, name := range g.at {
		f, known := fieldOf(t, name)
		if !known {
			return fmt.Errorf("vmipatch: %s has no field %q to guard: %w", path("").to(g.at[:i]...), name, ErrUnsupported)
		}
		at, t = at.to(name), f.t
		v := was[name]
		if v == nil || i == len(g.at)-1 {
			p.field(at, f, v)
			return nil
		}
		was, _ = v.(map[string]any)
	}
	return nil
}
