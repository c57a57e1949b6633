// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// plugRun simulates a VMI over time: users, kubelet, storage and node act in any order, and
// every pass of the controller is checked against the invariants.
type plugRun struct {
	*plugWorld
	t    *testing.T
	rand *rand.Rand
	now  time.Time
	made int
	log  []string
}

var plugVolumes = []string{"v1", "v2", "v3", "v4"}

func newPlugRun(t *testing.T, seed int64) *plugRun {
	r := &plugRun{plugWorld: newPlugWorld(), t: t, rand: rand.New(rand.NewSource(seed)), now: plugNow}
	for _, v := range plugVolumes {
		r.s.Storage.Claims["c-"+v] = boundClaim("c-" + v)
	}
	unplaced("v4")(r.plugWorld) // by its DataVolume, so that it needs a trigger
	return r
}

func (r *plugRun) fail(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(r.log, "\n"))
}

// pass makes a decision and executes it.
func (r *plugRun) pass() hotplugPlan {
	r.t.Helper()
	plan := hotplug(r.s, r.launcher, r.now, 0)
	r.log = append(r.log, fmt.Sprintf("%s: %s [%s] [%s]", r.now.Sub(plugNow), verbs(plan.Actions), carriers(plan.Plugged), reasons(plan.Waits)))
	var gone []*corev1.Pod
	for _, a := range plan.Actions {
		if a.Verb == DeletePod {
			gone = append(gone, a.Pod)
		}
	}
	for _, a := range plan.Actions {
		switch a.Verb {
		case DeletePod:
			r.deletable(a.Pod, gone)
			r.delete(a.Pod)
		default:
			r.create(a)
		}
	}
	r.report(plan)
	return plan
}

func (r *plugRun) create(a Action) {
	r.t.Helper()
	name := fmt.Sprintf("p%d", r.made)
	r.made++
	before := r.s.Attachments
	has(name, strings.Join(a.Volumes, " "))(r.plugWorld)
	p := r.s.Attachments[len(before)]
	p.CreationTimestamp, p.Status.Phase = metav1.NewTime(r.now.Truncate(time.Second)), corev1.PodPending
	if a.Verb == CreateTrigger {
		temporary(p)
	}
	for _, o := range before {
		switch same := maps.Equal(claimsOf(o), claimsOf(p)); {
		case isTemporary(o) != isTemporary(p):
		case same:
			r.fail("%s was made while %s has its name", p.Name, o.Name)
		case !isTemporary(p) && podLive(o) && r.wanted(o) && r.now.Sub(o.CreationTimestamp.Time) < defaultHotplugBatch:
			r.fail("%s was made, and %s is %s old", p.Name, o.Name, r.now.Sub(o.CreationTimestamp.Time))
		}
	}
}

func (r *plugRun) wanted(p *corev1.Pod) bool {
	return slices.ContainsFunc(r.s.VMI.Spec.Volumes, func(v v1.Volume) bool { return claimsOf(p)[v.Name] != "" })
}

// deletable fails the test if the domain loses a volume in use with the Pod.
func (r *plugRun) deletable(p *corev1.Pod, gone []*corev1.Pod) {
	r.t.Helper()
	if p.DeletionTimestamp != nil {
		r.fail("%s was deleted twice", p.Name)
	}
	for volume := range claimsOf(p) {
		other := slices.ContainsFunc(r.s.Attachments, func(o *corev1.Pod) bool {
			return podRunning(o) && !isTemporary(o) && !slices.Contains(gone, o) && claimsOf(o)[volume] != ""
		})
		if !isTemporary(p) && podRunning(p) && using(r.s.VMI, volume) && !other {
			r.fail("%s was deleted, and nothing else brings %s, which the guest uses", p.Name, volume)
		}
	}
}

// delete deletes a Pod, at once or when its finalizers are removed.
func (r *plugRun) delete(p *corev1.Pod) {
	if r.rand.Intn(3) == 0 {
		p.DeletionTimestamp = ptr.To(metav1.NewTime(r.now))
		return
	}
	r.s.Attachments = slices.DeleteFunc(r.s.Attachments, func(o *corev1.Pod) bool { return o == p })
}

// report writes the status as the controller does.
func (r *plugRun) report(plan hotplugPlan) {
	r.s.VMI.Status.VolumeStatus = slices.DeleteFunc(r.s.VMI.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		_, found := plan.Plugged[s.Name]
		return !found
	})
	for _, name := range slices.Sorted(maps.Keys(plan.Plugged)) {
		p, s := plan.Plugged[name], r.status(name)
		used := s.Phase == v1.VolumeReady || s.Phase == v1.HotplugVolumeMounted
		switch {
		case !p.Wanted && !used:
			s.Phase = v1.HotplugVolumeDetaching
		case p.Wanted && p.Pod == nil && s.Phase != v1.VolumeReady:
			s.Phase = v1.VolumeBound
		case p.Wanted && !used:
			s.Phase = v1.HotplugVolumeAttachedToNode
		}
	}
}

func (r *plugRun) status(name string) *v1.VolumeStatus {
	all := &r.s.VMI.Status.VolumeStatus
	i := slices.IndexFunc(*all, func(s v1.VolumeStatus) bool { return s.Name == name })
	if i < 0 {
		*all = append(*all, v1.VolumeStatus{Name: name, HotplugVolume: &v1.HotplugVolumeStatus{}})
		i = len(*all) - 1
	}
	return &(*all)[i]
}

// toggle adds or removes a volume.
func (r *plugRun) toggle() {
	name := plugVolumes[r.rand.Intn(len(plugVolumes))]
	spec := &r.s.VMI.Spec
	before := len(spec.Volumes)
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if len(spec.Volumes) == before {
		spec.Volumes = append(spec.Volumes, claimVolume(name, "c-"+name))
	}
	r.log = append(r.log, fmt.Sprintf("users toggle %s", name))
}

// mount lets the node mount and unmount the requested volumes, as far as a Pod carries them.
func (r *plugRun) mount(all bool) {
	for i := range r.s.VMI.Status.VolumeStatus {
		s := &r.s.VMI.Status.VolumeStatus[i]
		if !all && r.rand.Intn(2) == 0 {
			continue
		}
		wanted := slices.ContainsFunc(r.s.VMI.Spec.Volumes, func(v v1.Volume) bool { return v.Name == s.Name })
		carried := slices.ContainsFunc(r.s.Attachments, func(p *corev1.Pod) bool {
			return podRunning(p) && !isTemporary(p) && claimsOf(p)[s.Name] != ""
		})
		switch {
		case !wanted && using(r.s.VMI, s.Name):
			s.Phase = v1.HotplugVolumeUnMounted
		case wanted && carried && s.Phase == v1.HotplugVolumeAttachedToNode:
			s.Phase = v1.HotplugVolumeMounted
		case wanted && carried && s.Phase == v1.HotplugVolumeMounted:
			s.Phase = v1.VolumeReady
		}
		r.log = append(r.log, fmt.Sprintf("the node has %s %s", s.Name, s.Phase))
	}
}

// kubelet starts, fails and removes Pods.
func (r *plugRun) kubelet(all, failures bool) {
	r.s.Attachments = slices.DeleteFunc(r.s.Attachments, func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && (all || r.rand.Intn(2) == 0)
	})
	for _, p := range r.s.Attachments {
		switch {
		case !podLive(p):
		case failures && r.rand.Intn(8) == 0:
			p.Status.Phase = corev1.PodFailed
		case p.Status.Phase == corev1.PodPending && (all || r.rand.Intn(2) == 0):
			p.Status.Phase = corev1.PodRunning
			if isTemporary(p) {
				r.s.Storage.DataVolumes["c-v4"].Status.Phase = cdiv1.Succeeded
			}
		}
		r.log = append(r.log, fmt.Sprintf("%s %v is %s", p.Name, claimsOf(p), p.Status.Phase))
	}
}

// settle completes everything that is pending.
func (r *plugRun) settle() {
	r.t.Helper()
	// Each existing Pod is deleted; then follow a trigger, a Pod for the volumes that are ready
	// before it and one for those ready after it, replacing a failed one.
	budget, done := len(r.s.Attachments)+8, 0
	for i, calm := 0, 0; calm < 3; i++ {
		plan := r.pass()
		if done += len(plan.Actions); done > budget || i > 60 {
			r.fail("does not come to rest: %d actions in %d passes", done, i)
		}
		if calm++; len(plan.Actions) > 0 || plan.RequeueAt != nil {
			calm = 0
		}
		if plan.RequeueAt != nil {
			r.now = *plan.RequeueAt
		}
		r.kubelet(true, false)
		r.mount(true)
	}
	r.now = r.now.Add(time.Hour)
	plan := r.pass()
	if len(plan.Actions) > 0 || plan.RequeueAt != nil || len(plan.Waits) > 0 {
		r.fail("at rest, and still does %q, waits for %q", verbs(plan.Actions), reasons(plan.Waits))
	}
	want := map[string]string{}
	for _, v := range r.s.VMI.Spec.Volumes {
		want[v.Name] = "c-" + v.Name
		if r.status(v.Name).Phase != v1.VolumeReady {
			r.fail("at rest, and %s is %s", v.Name, r.status(v.Name).Phase)
		}
	}
	if n := len(r.s.Attachments); n > 1 || n == 0 && len(want) > 0 || n == 1 && !maps.Equal(claimsOf(r.s.Attachments[0]), want) {
		r.fail("at rest, and %d Pods bring %v", n, want)
	}
}

func TestHotplugSequences(t *testing.T) {
	for seed := range int64(400) {
		r := newPlugRun(t, seed)
		for range 60 {
			switch r.rand.Intn(6) {
			case 0:
				r.toggle()
			case 1:
				r.kubelet(false, seed%2 == 0)
			case 2:
				r.mount(false)
			default:
				r.pass()
			}
			r.now = r.now.Add(time.Duration(r.rand.Intn(2500)) * time.Millisecond)
		}
		r.settle()
	}
}

// TestHotplug_PermanentFailure retries a Pod that always fails with growing intervals.
func TestHotplug_PermanentFailure(t *testing.T) {
	r := newPlugRun(t, 1)
	r.launcher.CreationTimestamp = metav1.NewTime(plugNow)
	wants("v1")(r.plugWorld)
	var gaps []time.Duration
	last := r.now
	for r.now.Before(plugNow.Add(time.Hour)) {
		before := r.made
		plan := r.pass()
		if r.made > before {
			gaps = append(gaps, r.now.Sub(last))
			last = r.now
		}
		r.kubelet(true, false)
		for _, p := range r.s.Attachments {
			p.Status.Phase = corev1.PodFailed
		}
		if plan.RequeueAt != nil {
			r.now = *plan.RequeueAt
		}
	}
	if len(gaps) < 12 || len(gaps) > 20 {
		t.Fatalf("%d attempts in an hour: %v", len(gaps), gaps)
	}
	if !slices.IsSorted(gaps) || gaps[len(gaps)-1] != maxHotplugRetry {
		t.Errorf("attempts come at %v, want growing gaps up to %s", gaps, maxHotplugRetry)
	}
}
