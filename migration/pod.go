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
)

// launcherApp is the value of label kubevirt.io on launcher Pods. Attachment Pods
// carry the job label too, but another app.
const launcherApp = "virt-launcher"

// computeContainer is the container in which virt-launcher runs.
const computeContainer = "compute"

// TargetPod returns the launcher Pod among pods that was made for the migration,
// or nil. Should there be several, which a fixed name excludes, it is the one
// still alive, then the oldest.
func TargetPod(pods []*corev1.Pod, migration types.UID) *corev1.Pod {
	return pick(pods, func(p *corev1.Pod) bool { return p.Labels[v1.MigrationJobLabel] == string(migration) })
}

// CurrentPod returns the launcher Pod among pods in which the guest runs: the
// living one on the guest's node that was not made for the migration except, if
// one is named, or nil. On a node that the guest has come back to, it is the one it came
// into, and not the one it had left there.
func CurrentPod(vmi *v1.VirtualMachineInstance, pods []*corev1.Pod, except types.UID) *corev1.Pod {
	here := func(p *corev1.Pod) bool {
		return metav1.IsControlledBy(p, vmi) && !terminal(p) && p.Spec.NodeName != "" &&
			p.Spec.NodeName == vmi.Status.NodeName && (except == "" || p.Labels[v1.MigrationJobLabel] != string(except))
	}
	if ms := vmi.Status.MigrationState; ms != nil && ms.Completed && !ms.Failed && ms.TargetNode == vmi.Status.NodeName {
		if p := pick(pods, func(p *corev1.Pod) bool { return here(p) && p.Name == ms.TargetPod }); p != nil {
			return p
		}
	}
	return pick(pods, here)
}

// strays returns the launcher Pods among pods that hold resources of the guest's and
// that nothing is known to need: they live, are not on their way out, and are neither
// source nor target of this migration, nor a target of another one that is unfinished.
func (s Snapshot) strays(pods []*corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		known := p == s.SourcePod || p == s.TargetPod || terminal(p) || p.DeletionTimestamp != nil
		if known || p.Labels[v1.AppLabel] != launcherApp || !metav1.IsControlledBy(p, s.VMI) {
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

func pick(pods []*corev1.Pod, match func(*corev1.Pod) bool) *corev1.Pod {
	var found []*corev1.Pod
	for _, p := range pods {
		if p.Labels[v1.AppLabel] == launcherApp && match(p) {
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
	if terminal(p) || p.DeletionTimestamp != nil {
		return 1
	}
	return 0
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// podReady is KubeVirt's notion of a launcher Pod that can take a guest: running
// and staying, its compute and istio-proxy containers at least running, all other
// containers ready.
func podReady(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || p.Spec.NodeName == "" {
		return false
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == computeContainer || c.Name == "istio-proxy" {
			if c.State.Running == nil {
				return false
			}
			continue
		}
		if !c.Ready {
			return false
		}
	}
	return true
}

// unschedulable returns the scheduler's message when no node takes the Pod.
func unschedulable(p *corev1.Pod) (string, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message, true
		}
	}
	return "", false
}

// newUser returns the user that the launcher at the target runs as, if the guest's object
// names another: the target Pod is always made for the user of new launchers.
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

// qemuUser is the user id of qemu in the launcher image.
const qemuUser = 107

// seconds reads a whole number of seconds from an annotation; anything else
// means the fallback. Zero and less mean at once, which is one nanosecond here,
// as zero stands for no bound.
func seconds(m *v1.VirtualMachineInstanceMigration, annotation string, fallback time.Duration) time.Duration {
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
