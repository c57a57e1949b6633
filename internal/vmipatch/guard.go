// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"fmt"
	"reflect"
	"slices"
)

// Guard is a part of the object that a decision depended on, changed or not: the API server
// rejects the patch if that part has changed.
type Guard struct {
	at []string
	// keys are the members that count of each element of a list; all if there are none.
	keys []string
}

// Guards without a parameter.
var (
	// Version is the resourceVersion: no write at all may have happened. It makes all other
	// tests superfluous, and the patch omits them.
	Version = Guard{at: []string{"metadata", "resourceVersion"}}
	// Deletion is metadata.deletionTimestamp.
	Deletion = Guard{at: []string{"metadata", "deletionTimestamp"}}
	// Finalizers are all finalizers.
	Finalizers = Guard{at: []string{"metadata", "finalizers"}}
	// Phase is status.phase.
	Phase = Status("phase")
	// Volumes are the names in spec.volumes, VolumePhases those in status.volumeStatus with their phases.
	Volumes      = Guard{[]string{"spec", "volumes"}, []string{"name"}}
	VolumePhases = Guard{[]string{"status", "volumeStatus"}, []string{"name", "phase"}}
)

// Label guards the value of a label, or its absence.
func Label(key string) Guard { return Guard{at: []string{"metadata", "labels", key}} }

// Annotation guards the value of an annotation, or its absence.
func Annotation(key string) Guard { return Guard{at: []string{"metadata", "annotations", key}} }

// Status guards a field of the status by its JSON name, with everything below it as far as it
// can be tested, or its absence.
func Status(field string) Guard { return Guard{at: []string{"status", field}} }

func (g Guard) isVersion() bool { return slices.Equal(g.at, Version.at) }

func (g Guard) ofStatus() bool { return g.at[0] == "status" }

// guard tests the value of a guard, or its absence, or that of its deepest existing parent.
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
			if list, some := v.([]any); some && len(g.keys) > 0 {
				p.keys(at, t, list, g.keys)
			} else {
				p.field(at, f, v)
			}
			return nil
		}
		was, _ = v.(map[string]any)
	}
	return nil
}

// keys tests members of all elements of a list.
func (p *patch) keys(at path, t reflect.Type, list []any, keys []string) {
	for i, v := range list {
		e, _ := v.(map[string]any)
		for _, key := range keys {
			f, _ := fieldOf(elementOf(t), key)
			p.field(at.index(i).to(key), f, e[key])
		}
	}
	p.length(at, len(list))
}
