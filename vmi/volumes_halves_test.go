// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/status"
)

// standing is the state of one volume as observed by controller and node.
type standing struct {
	phase  v1.VolumePhase
	reason string
	// bare: the entry has no hotplugVolume. wanted: the spec has the volume.
	bare, wanted bool
	// pod is the state of its attachment Pod: none, there, going.
	pod string
	// live: the domain runs. plugged: it has the volume as a disk. here: the node has
	// it.
	live, plugged, here bool
	// broken is the verb that failed on the domain's disk; empty if none did.
	broken domain.Verb
}

// standings yields all combinations.
func standings(yield func(standing) bool) {
	for _, phase := range []v1.VolumePhase{"", v1.VolumePending, v1.VolumeBound, v1.HotplugVolumeAttachedToNode,
		v1.HotplugVolumeMounted, v1.VolumeReady, v1.HotplugVolumeUnMounted, v1.HotplugVolumeDetaching} {
		for _, reason := range []string{"", status.ReasonVolumeDetaching, status.ReasonHotplugFailed, status.ReasonResizeFailed, reasonSuccessfulDelete} {
			for _, pod := range []string{"", "there", "going"} {
				for bits := range 3 << 5 {
					on := func(i int) bool { return bits>>i&1 == 1 }
					s := standing{phase: phase, reason: reason, pod: pod, bare: on(0), wanted: on(1), live: on(2), plugged: on(3), here: on(4),
						broken: []domain.Verb{"", domain.AttachDevice, domain.ResizeDisk}[bits>>5]}
					if s.plugged && !s.live {
						continue
					}
					if !yield(s) {
						return
					}
				}
			}
		}
	}
}

// shelf returns the VMI and the controller's observation.
func (s standing) shelf() (*shelf, map[string]pluggedState) {
	k := newShelf(v1.Running).claim("c").guest(entry("v", s.phase, because(s.reason), func(e *v1.VolumeStatus) {
		if !s.bare {
			byPod("hp")(e)
		}
	}))
	if s.wanted {
		k.volume("v", pvcSource("c", true))
	}
	state := pluggedState{Wanted: s.wanted}
	switch s.pod {
	case "there":
		state.Pod = helperPod("hp")
	case "going":
		state.Pod = helperPod("hp", goingAway)
	}
	return k, map[string]pluggedState{"v": state}
}

// observation returns the node's observation.
func (s standing) observation() status.Observation {
	o := status.Observation{Node: "node-a"}
	if s.live {
		o.State = &domain.State{Domain: &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{}}}
	}
	disk := &libvirtxml.DomainDisk{
		Alias:  &libvirtxml.DomainAlias{Name: domain.AliasPrefix + "v"},
		Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: "/dev/v"}},
		Target: &libvirtxml.DomainDiskTarget{Dev: "sda"},
	}
	if s.plugged {
		o.State.Domain.Devices.Disks = []libvirtxml.DomainDisk{*disk}
	}
	if s.here {
		o.Facts.Disks = map[string]convert.DiskSource{"v": {Path: "/dev/v"}}
	}
	switch s.broken {
	case domain.AttachDevice:
		o.Failures = []action.Failure{{Action: action.Action{Operation: domain.Operation{Verb: s.broken, Device: disk}}, Err: errors.New("no slot")}}
	case domain.ResizeDisk:
		o.Failures = []action.Failure{{Action: action.Action{Operation: domain.Operation{Verb: s.broken, Disk: disk.Alias.Name}}, Err: errors.New("no room")}}
	}
	return o
}

// Controller and node write alternately until neither changes anything: from any initial state
// and observation they converge soon, otherwise they would write forever.
func TestVolumeStatus_Convergence(t *testing.T) {
	const rounds = 4
	seen := 0
	for s := range standings {
		seen++
		k, plugged := s.shelf()
		emitted := map[string]int{}
		var story []string
		quiet := false
		for range rounds {
			before := k.VMI.Status.VolumeStatus
			now, events := volumeStatus(k.Snapshot, helperPod("launcher"), plugged)
			for _, e := range events {
				emitted[e.Reason]++
			}
			keepsTheNodesWord(t, s, before, now)
			k.VMI.Status.VolumeStatus = now
			node := status.VolumeStatus(k.VMI, s.observation())
			k.VMI.Status.VolumeStatus = node
			story = append(story, words(now), words(node))
			if quiet = equality.Semantic.DeepEqual(before, now) && equality.Semantic.DeepEqual(now, node); quiet {
				break
			}
		}
		if !quiet {
			t.Errorf("%+v: after %d rounds they still write:\n%q", s, rounds, story)
		}
		for reason, times := range emitted {
			if times > 1 {
				t.Errorf("16 %+v: %s is emitted %d times", s, reason, times)
			}
		}
	}
	if seen < 1000 {
		t.Errorf("only %d standings", seen)
	}
}

// keepsTheNodesWord requires that the controller changes neither targets nor the node's fields
// of a volume that it has.
func keepsTheNodesWord(t *testing.T, s standing, before, now []v1.VolumeStatus) {
	t.Helper()
	if len(before) == 0 {
		return
	}
	was := before[0]
	switch {
	case len(now) == 0:
		if was.HotplugVolume != nil && onNode(was.Phase) {
			t.Errorf("%+v: the entry of a volume that the node has is gone", s)
		}
	case was.Target != now[0].Target, onNode(was.Phase) && (was.Phase != now[0].Phase || was.Reason != now[0].Reason || was.Message != now[0].Message):
		t.Errorf("%+v: the controller made %+v of %+v", s, now[0], was)
	}
}

func words(list []v1.VolumeStatus) string {
	if len(list) == 0 {
		return "nothing"
	}
	e := list[0]
	return fmt.Sprintf("%s %s %s", e.Phase, e.Reason, e.Target)
}

// A volume is hotplugged and unplugged through all phases.
func TestVolumeStatus_HotplugAndUnplug(t *testing.T) {
	k := newShelf(v1.Running).claim("c", inClaimPhase(corev1.ClaimPending))
	s := standing{live: true}
	for _, step := range []struct {
		name   string
		do     func()
		want   string
		events string
	}{
		{"added", func() { s.wanted = true; k.volume("v", pvcSource("c", true)) }, "Pending PVCNotReady ", ""},
		{"bound", func() { k.Storage.Claims["c"].Status.Phase = corev1.ClaimBound }, "Bound PVCNotReady ", ""},
		{"carried", func() { s.pod = "there" }, "AttachedToNode SuccessfulCreate ", "SuccessfulCreate"},
		{"on the node", func() { s.here = true }, "MountedToPod VolumeMountedToPod ", ""},
		{"refused by the guest", func() { s.broken = domain.AttachDevice }, "MountedToPod HotplugFailed ", ""},
		{"taken by the guest", func() { s.broken, s.plugged = "", true }, "Ready VolumeReady sda", ""},
		{"13 its Pod is replaced", func() { s.pod = "" }, "Ready VolumeReady sda", ""},
		{"carried again", func() { s.pod = "there" }, "Ready VolumeReady sda", ""},
		{"91 removed", func() { s.wanted, k.VMI.Spec.Volumes = false, nil }, "Ready VolumeDetaching sda", ""},
		{"91 released", func() { s.plugged, s.here = false, false }, "Detaching VolumeUnMountedFromPod sda", ""},
		{"91 its Pod is deleted", func() { s.pod = "going" }, "Detaching SuccessfulDelete sda", "SuccessfulDelete"},
		{"92 its Pod is gone", func() { s.pod = "" }, "nothing", ""},
	} {
		step.do()
		_, plugged := s.shelf()
		var emitted []Event
		for range 3 {
			now, events := volumeStatus(k.Snapshot, helperPod("launcher"), plugged)
			k.VMI.Status.VolumeStatus = now
			k.VMI.Status.VolumeStatus = status.VolumeStatus(k.VMI, s.observation())
			emitted = append(emitted, events...)
		}
		if got := words(k.VMI.Status.VolumeStatus); got != step.want || reasonsOf(emitted) != step.events {
			t.Errorf("%s: %q, events %q; want %q, events %q", step.name, got, reasonsOf(emitted), step.want, step.events)
		}
	}
}
