// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/watch"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
)

// watch prints what happens to the objects of the guest.
func (s *story) watch(ctx context.Context) error {
	for _, list := range []client.ObjectList{
		&v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{}, &v1.VirtualMachineInstanceMigrationList{}, &corev1.PodList{}, &eventsv1.EventList{},
	} {
		w, err := s.cluster.Client.Watch(ctx, list, client.InNamespace(guestKey.Namespace))
		if err != nil {
			return fmt.Errorf("watch %T: %w", list, err)
		}
		go s.follow(w)
	}
	return nil
}

// follow prints each relevant change once.
func (s *story) follow(w watch.Interface) {
	last := map[string]string{}
	for e := range w.ResultChan() {
		obj, ok := e.Object.(client.Object)
		if !ok {
			continue
		}
		name, facts := describe(obj)
		if e.Type == watch.Deleted {
			facts = []fact{{what: "gone"}}
		}
		for _, f := range facts {
			key := name + "/" + f.about
			if f.what == "" || last[key] == f.what+f.why {
				continue
			}
			last[key] = f.what + f.why
			s.log.report(name, f.what, f.why)
		}
	}
}

// fact is something about an object that may change.
type fact struct{ about, what, why string }

// describe returns the name of an object and its relevant state.
func describe(obj client.Object) (string, []fact) {
	switch o := obj.(type) {
	case *v1.VirtualMachine:
		return "VM/" + o.Name, []fact{{about: "status", what: string(o.Status.PrintableStatus)}}
	case *v1.VirtualMachineInstance:
		return "VMI/" + o.Name, describeVMI(o)
	case *v1.VirtualMachineInstanceMigration:
		facts := []fact{{about: "phase", what: phrase("phase", string(o.Status.Phase))}}
		for _, c := range o.Status.Conditions {
			facts = append(facts, fact{string(c.Type), fmt.Sprintf("%s=%s", c.Type, c.Status), c.Message})
		}
		return "VMIM/" + o.Name, facts
	case *corev1.Pod:
		what := phrase("phase", string(o.Status.Phase))
		if o.DeletionTimestamp != nil {
			what = "terminating"
		}
		return "Pod/" + o.Name, []fact{{"phase", what, phrase("on", o.Spec.NodeName)}}
	case *eventsv1.Event:
		return "Event/" + o.Regarding.Kind, []fact{{"event", o.Reason, o.Note}}
	default:
		return "", nil
	}
}

func describeVMI(vmi *v1.VirtualMachineInstance) []fact {
	facts := []fact{{"phase", phrase("phase", string(vmi.Status.Phase)), phrase("on", vmi.Status.NodeName)}}
	if l, err := handoff.Of(vmi); err == nil && l.State != handoff.Unclaimed {
		facts = append(facts, fact{"lease", fmt.Sprintf("lease %s, epoch %d", l.State, l.Epoch), phrase("holder", l.Holder) + phrase(" target", l.Target)})
	}
	if vmi.DeletionTimestamp != nil {
		facts = append(facts, fact{about: "deletion", what: "is being deleted"})
	}
	for _, c := range vmi.Status.Conditions {
		facts = append(facts, fact{string(c.Type), fmt.Sprintf("%s=%s", c.Type, c.Status), c.Reason})
	}
	return facts
}

func phrase(word, value string) string {
	if value == "" {
		return ""
	}
	return word + " " + value
}
