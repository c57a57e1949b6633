// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

const (
	evictOnly = "descheduler.alpha.kubernetes.io/request-evict-only"
	evicting  = "descheduler.alpha.kubernetes.io/eviction-in-progress"
	evict     = "descheduler.alpha.kubernetes.io/evict"
	noEvict   = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
	preHook   = "pre.hook.backup.velero.io/command"
	postHook  = "post.hook.backup.velero.io/command"
)

type texts = map[string]string

// values returns a change as text, a removed key as "-".
func values(change map[string]*string) texts {
	if change == nil {
		return nil
	}
	out := texts{}
	for key, value := range change {
		if out[key] = "-"; value != nil {
			out[key] = *value
		}
	}
	return out
}

// The target Pod of a migration gets the timestamp that notifies the network, once.
func TestPodMetadata_AfterMigration(t *testing.T) {
	at := metav1.NewTime(now)
	arrived := &v1.VirtualMachineInstanceMigrationState{MigrationUID: "job", TargetNodeDomainReadyTimestamp: &at}
	for name, tt := range map[string]struct {
		move *v1.VirtualMachineInstanceMigrationState
		edit func(*corev1.Pod)
		want string
	}{
		"it is there":                 {arrived, target, at.String()},
		"it was set before":           {arrived, func(p *corev1.Pod) { target(p); p.Annotations = texts{v1.MigrationTargetReadyTimestamp: "before"} }, ""},
		"it is not there yet":         {&v1.VirtualMachineInstanceMigrationState{MigrationUID: "job"}, target, ""},
		"the Pod is of another move":  {&v1.VirtualMachineInstanceMigrationState{MigrationUID: "other", TargetNodeDomainReadyTimestamp: &at}, target, ""},
		"the Pod was made for none":   {arrived, func(*corev1.Pod) {}, ""},
		"the guest has never moved":   {nil, target, ""},
		"the Pod is not ready by now": {arrived, func(p *corev1.Pod) { target(p); p.Status.Phase = corev1.PodPending }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := guest(v1.Running)
			g.Status.MigrationState = tt.move
			_, notes := vmi.PodMetadata(g, pod("p", tt.edit), vmi.PodKeys{})
			got := ""
			if v := notes[v1.MigrationTargetReadyTimestamp]; v != nil {
				got = *v
			}
			if got != tt.want {
				t.Errorf("the annotation is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPodMetadata(t *testing.T) {
	storage := vmi.PodKeys{StorageKeys: []string{preHook, postHook}, StorageAnnotations: texts{preHook: "freeze"}}
	for name, tt := range map[string]struct {
		guest, pod           texts // labels
		guestNotes, podNotes texts // annotations
		keys                 vmi.PodKeys
		notReady, leaves     bool
		elsewhere            bool
		labels, annotations  texts
	}{
		"62 nothing differs": {
			guest: texts{v1.NodeNameLabel: "node-a", "app": "x"}, pod: texts{v1.NodeNameLabel: "node-a", "app": "y", v1.AppLabel: "virt-launcher"},
			guestNotes: texts{evict: "true"}, podNotes: texts{evict: "true", evictOnly: ""},
		},
		"62 labels differ": {
			guest: texts{v1.NodeNameLabel: "node-b", v1.OutdatedLauncherImageLabel: ""}, pod: texts{v1.NodeNameLabel: "node-a"},
			podNotes: texts{evictOnly: ""}, labels: texts{v1.NodeNameLabel: "node-b", v1.OutdatedLauncherImageLabel: ""},
		},
		"62 what the guest lacks goes": {
			pod: texts{v1.OutdatedLauncherImageLabel: "", "app": "y"}, podNotes: texts{evictOnly: "", evict: "true", noEvict: "true", "mine": "x"},
			labels: texts{v1.OutdatedLauncherImageLabel: "-"}, annotations: texts{evict: "-", noEvict: "-"},
		},
		"62 configured keys follow": {
			guest: texts{"team": "a"}, guestNotes: texts{"note": "a"}, pod: texts{"team": "b", "cost": "1"}, podNotes: texts{evictOnly: ""},
			keys:   vmi.PodKeys{Labels: []string{"team", "cost"}, Annotations: []string{"note"}},
			labels: texts{"team": "a", "cost": "-"}, annotations: texts{"note": "a"},
		},
		"62 a prefix stands for all that begin so": {
			guest: texts{"my.org/a": "1", "my.org/b": "2", "my.orgs": "3"}, pod: texts{"my.org/b": "2", "my.org/c": "4"}, podNotes: texts{evictOnly: ""},
			keys:   vmi.PodKeys{Labels: []string{"my.org/*"}},
			labels: texts{"my.org/a": "1", "my.org/c": "-"},
		},
		"62 a star alone and nothing are ignored": {
			guest: texts{"a": "1"}, pod: texts{"b": "2"}, podNotes: texts{evictOnly: "", "c": "3"},
			keys: vmi.PodKeys{Labels: []string{"*", ""}, Annotations: []string{"", "*"}},
		},
		"62 a star elsewhere is no pattern": {
			guest: texts{"abc": "1"}, pod: texts{"adc": "2"}, podNotes: texts{evictOnly: ""}, keys: vmi.PodKeys{Labels: []string{"a*c"}},
		},
		"62 no key takes away what a Pod is found by": {
			pod:      texts{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: "uid-1", v1.MigrationJobLabel: "m", "kubevirt.io/x": "1"},
			podNotes: texts{evictOnly: "", v1.DomainAnnotation: "guest"},
			keys:     vmi.PodKeys{Labels: []string{"kubevirt.io*", v1.CreatedByLabel}, Annotations: []string{"kubevirt.io/*", "descheduler.alpha.kubernetes.io/*"}},
			labels:   texts{"kubevirt.io/x": "-"},
		},
		"62 backup hooks are generated":  {podNotes: texts{evictOnly: "", preHook: "old", postHook: "old"}, keys: storage, annotations: texts{preHook: "freeze", postHook: "-"}},
		"62 backup hooks are up to date": {podNotes: texts{evictOnly: "", preHook: "freeze"}, keys: storage},
		"62 backup hooks of the guest's own": {
			guestNotes: texts{preHook: "mine", postHook: "mine"}, podNotes: texts{evictOnly: "", preHook: "freeze", postHook: "mine"}, keys: storage,
		},
		"62 backup hooks come before patterns": {
			guestNotes: texts{preHook: "mine"}, podNotes: texts{evictOnly: "", preHook: "freeze"},
			keys: vmi.PodKeys{Annotations: []string{"pre.hook*"}, StorageKeys: storage.StorageKeys, StorageAnnotations: storage.StorageAnnotations},
		},
		"61 asks the descheduler to ask":     {annotations: texts{evictOnly: ""}},
		"61 whatever its value":              {podNotes: texts{evictOnly: "true"}},
		"61 not before the Pod is ready":     {notReady: true},
		"64 asked to leave":                  {leaves: true, podNotes: texts{evictOnly: ""}, annotations: texts{evicting: "true"}},
		"64 asked to leave and marked":       {leaves: true, podNotes: texts{evictOnly: "", evicting: "true"}},
		"64 no longer asked":                 {podNotes: texts{evictOnly: "", evicting: "true"}, annotations: texts{evicting: "-"}},
		"64 another Pod than the one to end": {leaves: true, elsewhere: true, podNotes: texts{evictOnly: ""}},
		"64 not before the Pod is ready":     {leaves: true, notReady: true},
		"networks are set and not removed": {
			podNotes: texts{evictOnly: "", "a": "1", "b": "old", "c": "3"}, keys: vmi.PodKeys{NetworkAnnotations: texts{"a": "1", "b": "2", "d": ""}},
			annotations: texts{"b": "2", "d": ""},
		},
		"networks wait for the Pod": {notReady: true, keys: vmi.PodKeys{NetworkAnnotations: texts{"a": "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			g, p := guest(v1.Running), pod("p")
			g.Labels, g.Annotations = tt.guest, tt.guestNotes
			p.Labels, p.Annotations = maps.Clone(tt.pod), maps.Clone(tt.podNotes)
			p.Spec.NodeName, p.Status.Phase = "node-a", corev1.PodRunning
			if tt.leaves {
				g.Status.EvacuationNodeName = "node-a"
			}
			if tt.elsewhere {
				p.Spec.NodeName = "node-b"
			}
			if tt.notReady {
				p.Status.Phase = corev1.PodPending
			}
			before := p.DeepCopy()
			labels, annotations := vmi.PodMetadata(g, p, tt.keys)
			if diff := cmp.Diff(tt.labels, values(labels)); diff != "" {
				t.Errorf("labels: %s", diff)
			}
			if diff := cmp.Diff(tt.annotations, values(annotations)); diff != "" {
				t.Errorf("annotations: %s", diff)
			}
			if diff := cmp.Diff(before, p); diff != "" {
				t.Errorf("the Pod was modified: %s", diff)
			}
			merge(&p.Labels, labels)
			merge(&p.Annotations, annotations)
			if labels, annotations = vmi.PodMetadata(g, p, tt.keys); labels != nil || annotations != nil {
				t.Errorf("is not stable: %v, %v", values(labels), values(annotations))
			}
		})
	}
}

// merge applies a change as a merge patch does.
func merge(m *map[string]string, change map[string]*string) {
	for key, value := range change {
		if value == nil {
			delete(*m, key)
			continue
		}
		if *m == nil {
			*m = map[string]string{}
		}
		(*m)[key] = *value
	}
}
