// SPDX-License-Identifier: Apache-2.0

// Package placement answers: which nodes could take a migration's target Pod, what excludes
// the others, and has the namespace's quota room for it? It schedules nothing: the scheduler
// and the quota admission of the API server have the last word.
//
// [Fit], or [NodeUsage.Fit] with the load of the nodes, judges all nodes for the target Pod
// and returns a [Fitness]: the candidates, and each [Exclusion] with its [Rule]. If it is
// [Fitness.Static], only changed labels or new nodes help, so the Pod is not created and the
// migration fails or waits; [Fitness.Remedies] names the changes. [CheckQuota] returns the
// [Shortage]s that a [QuotaError] reports. [Avoid] adds to a target Pod the preference for nodes
// with a free slot, those that queue.Admission.Full does not name. All are pure.
//
// The rules are those of kube-scheduler for selectors, affinity, taints and resources, and
// KubeVirt's for the labels of its node agent: kubevirt.io/schedulable, and those by which it
// reports CPU models, features, Hyper-V, machine types and the TSC frequency of a node.
// Volumes bound to nodes, topology spread, inter-Pod rules and device claims are not judged,
// nor quotas with scopes. KubeVirt creates a target Pod without any of these checks.
package placement
