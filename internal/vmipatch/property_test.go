// SPDX-License-Identifier: Apache-2.0

package vmipatch_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmipatch"
)

type (
	types      = apitypes.UID
	transition = v1.VirtualMachineInstancePhaseTransitionTimestamp
)

// change sets one part of the object, whatever its previous value.
type change struct {
	// what is the path of the part: everything below it belongs to it.
	what string
	// in is its parent, if the parent's encoding may change with it.
	in string
	// untested is true if two such changes do not detect each other.
	untested bool
	// partly is true if it preserves the parts of an existing value that have changes of their
	// own.
	partly bool
	do     func(*vmi)
}

func (c change) meets(d change) bool {
	return c.what == d.what || strings.HasPrefix(c.what, d.what+"/") || strings.HasPrefix(d.what, c.what+"/")
}

// shifts reports whether the change may move, add or remove the parent of the other.
func (c change) shifts(d change, was *vmi) bool {
	switch c.in {
	case "", d.in:
		return c.in != "" && (c.in != "migration" || was.Status.MigrationState == nil)
	case "volumes":
		return strings.HasPrefix(d.what, "volume/")
	default:
		return false
	}
}

// changes are constructors of changes, with an element and a word chosen by the caller.
var changes = []func(element, word string) change{
	func(e, w string) change {
		return change{what: "label/" + e, do: func(g *vmi) { g.Labels[e+"/~"] = w }}
	},
	func(e, _ string) change {
		return change{what: "label/" + e, do: func(g *vmi) { delete(g.Labels, e+"/~") }}
	},
	func(e, w string) change {
		return change{what: "annotation/" + e, do: func(g *vmi) { g.Annotations[e] = "<" + w + ">" }}
	},
	func(e, _ string) change {
		return change{what: "finalizer/" + e, in: "finalizers", do: func(g *vmi) {
			if !slices.Contains(g.Finalizers, e) {
				g.Finalizers = append(g.Finalizers, e)
			}
		}}
	},
	func(e, _ string) change {
		return change{what: "finalizer/" + e, in: "finalizers", do: func(g *vmi) {
			g.Finalizers = slices.DeleteFunc(g.Finalizers, func(f string) bool { return f == e })
		}}
	},
	func(e, w string) change {
		return change{what: "condition/" + e, in: "conditions", do: func(g *vmi) {
			setIn(&g.Status.Conditions, conditionKey, e, condition(e, "True", w))
		}}
	},
	func(e, _ string) change {
		return change{what: "condition/" + e, in: "conditions", do: func(g *vmi) { dropFrom(&g.Status.Conditions, conditionKey, e) }}
	},
	func(e, w string) change {
		return change{what: "volume/" + e, in: "volumes", partly: true, do: func(g *vmi) {
			if editIn(g.Status.VolumeStatus, volumeKey, e, func(s *v1.VolumeStatus) { s.Target = w }) {
				return
			}
			size := resource.MustParse("1Gi")
			setIn(&g.Status.VolumeStatus, volumeKey, e, v1.VolumeStatus{
				Name: e, Target: w, Phase: v1.VolumePending,
				PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: w, Capacity: corev1.ResourceList{"storage": size}},
			})
		}}
	},
	func(e, _ string) change {
		return change{what: "volume/" + e, in: "volumes", do: func(g *vmi) { dropFrom(&g.Status.VolumeStatus, volumeKey, e) }}
	},
	func(e, w string) change {
		return change{what: "volume/" + e + "/reason", do: func(g *vmi) {
			editIn(g.Status.VolumeStatus, volumeKey, e, func(s *v1.VolumeStatus) { s.Reason = w })
		}}
	},
	func(e, w string) change {
		return change{what: "volume/" + e + "/message", do: func(g *vmi) {
			editIn(g.Status.VolumeStatus, volumeKey, e, func(s *v1.VolumeStatus) { s.Message = w })
		}}
	},
	func(e, w string) change {
		return change{what: "interface/" + e, in: "interfaces", do: func(g *vmi) {
			setIn(&g.Status.Interfaces, interfaceKey, e, v1.VirtualMachineInstanceNetworkInterface{Name: e, IP: w, IPs: []string{w}})
		}}
	},
	func(e, w string) change {
		return change{what: "transition/" + e, in: "transitions", untested: true, do: func(g *vmi) {
			at := metav1.NewTime(noon.AddDate(0, 0, len(w)+int(w[len(w)-1])))
			setIn(&g.Status.PhaseTransitionTimestamps, transitionKey, e, transition{Phase: v1.VirtualMachineInstancePhase(e), PhaseTransitionTimestamp: at})
		}}
	},
	func(_, w string) change {
		return change{what: "phase", do: func(g *vmi) { g.Status.Phase = v1.VirtualMachineInstancePhase(w) }}
	},
	func(_, _ string) change {
		return change{what: "evacuation", do: func(g *vmi) { g.Status.EvacuationNodeName = "" }}
	},
	func(_, w string) change {
		return change{what: "evacuation", do: func(g *vmi) { g.Status.EvacuationNodeName = w }}
	},
	func(_, w string) change {
		return change{what: "migration/target", in: "migration", do: func(g *vmi) { migrating(g).TargetNode = w }}
	},
	func(_, _ string) change {
		return change{what: "migration/abort", in: "migration", do: func(g *vmi) { migrating(g).AbortRequested = true }}
	},
	func(_, w string) change {
		return change{what: "migration/ports", in: "migration", do: func(g *vmi) { migrating(g).TargetDirectMigrationNodePorts = map[string]int{w: 1} }}
	},
	func(_, _ string) change {
		return change{what: "migration", in: "migration", do: func(g *vmi) { g.Status.MigrationState = nil }}
	},
	func(e, w string) change {
		return change{what: "pod/" + e, in: "pods", do: func(g *vmi) {
			if g.Status.ActivePods == nil {
				g.Status.ActivePods = map[types]string{}
			}
			g.Status.ActivePods[types(e)] = w
		}}
	},
	func(e, _ string) change {
		return change{what: "pod/" + e, in: "pods", do: func(g *vmi) { delete(g.Status.ActivePods, types(e)) }}
	},
	func(_, w string) change {
		return change{what: "memory", untested: true, do: func(g *vmi) {
			size := resource.MustParse(fmt.Sprint(len(w)*1000 + int(w[len(w)-1])))
			g.Status.Memory = &v1.MemoryStatus{GuestAtBoot: &size}
		}}
	},
}

func migrating(g *vmi) *v1.VirtualMachineInstanceMigrationState {
	if g.Status.MigrationState == nil {
		g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
	}
	return g.Status.MigrationState
}

func conditionKey(c v1.VirtualMachineInstanceCondition) string        { return string(c.Type) }
func volumeKey(s v1.VolumeStatus) string                              { return s.Name }
func interfaceKey(i v1.VirtualMachineInstanceNetworkInterface) string { return i.Name }
func transitionKey(t transition) string                               { return string(t.Phase) }

func setIn[T any](list *[]T, key func(T) string, k string, v T) {
	if i := slices.IndexFunc(*list, func(e T) bool { return key(e) == k }); i >= 0 {
		(*list)[i] = v
		return
	}
	*list = append(*list, v)
}

func editIn[T any](list []T, key func(T) string, k string, edit func(*T)) bool {
	i := slices.IndexFunc(list, func(e T) bool { return key(e) == k })
	if i >= 0 {
		edit(&list[i])
	}
	return i >= 0
}

func dropFrom[T any](list *[]T, key func(T) string, k string) {
	*list = slices.DeleteFunc(*list, func(e T) bool { return key(e) == k })
}

// alike reports whether two objects are equal, in any order of lists.
func alike(t testing.TB, a, b *vmi) bool {
	t.Helper()
	return string(marshal(t, sorted(a))) == string(marshal(t, sorted(b)))
}

func sorted(g *vmi) *vmi {
	g = g.DeepCopy()
	by(g.Status.Conditions, conditionKey)
	by(g.Status.VolumeStatus, volumeKey)
	by(g.Status.Interfaces, interfaceKey)
	by(g.Status.PhaseTransitionTimestamps, transitionKey)
	slices.Sort(g.Finalizers)
	return g
}

func by[T any](list []T, key func(T) string) {
	slices.SortStableFunc(list, func(a, b T) int { return strings.Compare(key(a), key(b)) })
}

// writer returns a random set of changes, none of which reverts another.
func writer(r *rand.Rand, word string, most int) []change {
	var all []change
	for range 1 + r.IntN(most) {
		c := changes[r.IntN(len(changes))]([]string{"a", "b", "c", "d"}[r.IntN(4)], fmt.Sprint(word, r.IntN(8)))
		if !slices.ContainsFunc(all, c.meets) {
			all = append(all, c)
		}
	}
	return all
}

func write(g *vmi, all []change) *vmi {
	return edited(g, func(g *vmi) {
		for _, c := range all {
			c.do(g)
		}
	})
}

// effective returns the changes that have an effect.
func effective(t testing.TB, g *vmi, all []change) []change {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(all), func(c change) bool { return alike(t, g, edited(g, c.do)) })
}

// pair reports whether ask is true for any two changes of both sets.
func pair(a, b []change, ask func(change, change) bool) bool {
	return slices.ContainsFunc(a, func(c change) bool {
		return slices.ContainsFunc(b, func(d change) bool { return ask(c, d) })
	})
}

// twoWriters lets two writers patch the same version of an object, one after the other.
func twoWriters(t testing.TB, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	base := stored(func(g *vmi) {
		g.Labels, g.Annotations = map[string]string{"is": "there"}, map[string]string{"is": "there"}
	})
	was := write(base, writer(r, "old", 12))
	first, second := effective(t, was, writer(r, "one", 5)), effective(t, was, writer(r, "two", 5))
	want := write(was, second)
	patch := between(t, was, want)
	if again := between(t, was, want); !reflect.DeepEqual(patch, again) {
		t.Fatalf("seed %d: two patches\n%s\n%s", seed, patch, again)
	}
	if got, err := apply(t, marshal(t, was), patch); err != nil || string(marshal(t, got)) != string(marshal(t, want)) {
		t.Fatalf("seed %d: %s makes of\n%s\n%s, %v; want\n%s", seed, patch, marshal(t, was), marshal(t, got), err, marshal(t, want))
	}
	now := write(was, first)
	got, err := apply(t, marshal(t, now), patch)
	collide := pair(first, second, func(c, d change) bool {
		return c.meets(d) && !(c.untested && d.untested) && (c.what == d.what || !c.partly && !d.partly)
	})
	reshaped := pair(first, second, func(c, d change) bool { return c.meets(d) || c.shifts(d, was) })
	switch {
	case collide && err == nil:
		t.Errorf("seed %d: %s is accepted on\n%s\nalthough it was decided on\n%s", seed, patch, marshal(t, now), marshal(t, was))
	case err != nil && !reshaped:
		t.Errorf("seed %d: %s is refused (%v) on\n%s\nalthough nobody touched the same", seed, patch, err, marshal(t, now))
	case err == nil && !alike(t, got, write(now, second)):
		t.Errorf("seed %d: %s makes of\n%s\n%s, want\n%s", seed, patch, marshal(t, now), marshal(t, got), marshal(t, write(now, second)))
	}
	locked := between(t, was, want, vmipatch.Version)
	if got, err := apply(t, marshal(t, was), locked); err != nil || !alike(t, got, want) {
		t.Errorf("seed %d: under the version %s makes %s, %v", seed, locked, marshal(t, got), err)
	}
	now.ResourceVersion = "8"
	if _, err := apply(t, marshal(t, now), locked); err == nil && locked != nil {
		t.Errorf("seed %d: under the version %s is accepted on another one", seed, locked)
	}
}

func TestBetween_TwoWriters(t *testing.T) {
	for seed := range uint64(2000) {
		twoWriters(t, seed)
	}
}

func FuzzTwoWriters(f *testing.F) {
	f.Add(uint64(1) << 40)
	f.Fuzz(func(t *testing.T, seed uint64) { twoWriters(t, seed) })
}
