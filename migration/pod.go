// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// TargetPod returns the launcher Pod among pods that was created for the migration, or nil.
// Of several, which a fixed name excludes, it returns one that has not ended, then the
// oldest.
func TargetPod(pods []*corev1.Pod, migration types.UID) *corev1.Pod {
	return pickLauncherPod(pods, func(p *corev1.Pod) bool { return p.Labels[v1.MigrationJobLabel] == string(migration) })
}

// CurrentPod returns the launcher Pod among pods in which the VMI runs: the live Pod on the
// VMI's node that was not created for the migration except (empty for none), or nil. On a node
// to which the VMI has returned it is the Pod of its return, not the one it had left there.
func CurrentPod(vmi *v1.VirtualMachineInstance, pods []*corev1.Pod, except types.UID) *corev1.Pod {
	here := func(p *corev1.Pod) bool {
		return metav1.IsControlledBy(p, vmi) && !launcherpod.Terminal(p) && p.Spec.NodeName != "" &&
			p.Spec.NodeName == vmi.Status.NodeName && (except == "" || p.Labels[v1.MigrationJobLabel] != string(except))
	}
	if ms := vmi.Status.MigrationState; ms != nil && ms.Completed && !ms.Failed && ms.TargetNode == vmi.Status.NodeName {
		if p := pickLauncherPod(pods, func(p *corev1.Pod) bool { return here(p) && p.Name == ms.TargetPod }); p != nil {
			return p
		}
	}
	return pickLauncherPod(pods, here)
}

// strays returns the launcher Pods among pods that hold resources of the VMI's without known
// need: they are live, are not being deleted, and are neither source nor target of this
// migration, nor target of another unfinished one.
func (s Snapshot) strays(pods []*corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		known := p == s.SourcePod || p == s.TargetPod || launcherpod.Terminal(p) || p.DeletionTimestamp != nil
		if known || p.Labels[v1.AppLabel] != launcherpod.LauncherApp || !metav1.IsControlledBy(p, s.VMI) {
			continue
		}
		if !slices.ContainsFunc(s.Others, func(o *v1.VirtualMachineInstanceMigration) bool {
			return !o.IsFinal() && p.Labels[v1.MigrationJobLabel] == string(o.UID)
		}) {
			out = append(out, p)
		}
	}
	return out
}

func pickLauncherPod(pods []*corev1.Pod, match func(*corev1.Pod) bool) *corev1.Pod {
	var found []*corev1.Pod
	for _, p := range pods {
		if p.Labels[v1.AppLabel] == launcherpod.LauncherApp && match(p) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return slices.MinFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

func rank(p *corev1.Pod) int {
	if launcherpod.Terminal(p) || p.DeletionTimestamp != nil {
		return 1
	}
	return 0
}

// podReady reports whether a launcher Pod is on a node and can receive a domain.
func podReady(p *corev1.Pod) bool { return p.Spec.NodeName != "" && launcherpod.Ready(p) }

// unschedulable returns the scheduler's message when the Pod is unschedulable.
func unschedulable(p *corev1.Pod) (string, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message, true
		}
	}
	return "", false
}

// newUser returns the user of the launcher at the target if it differs from the VMI's
// status: the target Pod always runs as the user of new launchers.
func (s Snapshot) newUser() *uint64 {
	_, annotated := s.VMI.Annotations[v1.DeprecatedNonRootVMIAnnotation]
	if nonRoot := annotated || s.VMI.Status.RuntimeUser != 0; nonRoot != s.Config.Root {
		return nil
	}
	user := uint64(qemuUser)
	if s.Config.Root {
		user = 0
	}
	return &user
}

// qemuUser is the user ID of qemu in the launcher image.
const qemuUser = 107

// annotatedSeconds reads a whole number of seconds from an annotation; an invalid value means the
// fallback. Zero and less mean at once, returned as one nanosecond, as zero stands for no
// bound.
func annotatedSeconds(m *v1.VirtualMachineInstanceMigration, annotation string, fallback time.Duration) time.Duration {
	text, found := m.Annotations[annotation]
	if !found {
		return fallback
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return fallback
	}
	return max(time.Duration(n)*time.Second, 1)
}
