// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain/plan"
)

// Of its own node only: a selector of fields, which rights cannot say.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch

// proofs fills in the Pods of the VMI on this node. An action that needs one depends on a live
// read. Where the cache has none, the API server is asked once: after the status reports the
// absence, the cache notices its end.
func (r gatherer) proofs(ctx context.Context, s *plan.Snapshot) error {
	if s.VMI == nil {
		return nil
	}
	var err error
	var early *cache.ErrCacheNotStarted
	s.Pods, err = guestPods(ctx, r.Caches.Pods, s.VMI, client.MatchingFields{podByVMI: string(s.VMI.UID)})
	switch {
	case errors.As(err, &early): // a cache that does not run proves nothing
	case err != nil:
		return err
	case !s.NeedsProof():
		return nil
	default:
		switch pod, why := s.Proof(); {
		case why == nil:
			return r.confirmed(ctx, s, pod)
		case saidUnproven(s.VMI, why):
			return nil
		}
	}
	s.Pods, err = guestPods(ctx, r.APIReader, s.VMI, client.MatchingFieldsSelector{Selector: podsOnNode(r.NodeName)})
	return err
}

// guestPods lists the Pods that the VMI controls, of those that the reader selects.
func guestPods(ctx context.Context, from client.Reader, vmi *v1.VirtualMachineInstance, which client.ListOption) ([]*corev1.Pod, error) {
	var all corev1.PodList
	if err := from.List(ctx, &all, client.InNamespace(vmi.Namespace), which); err != nil {
		return nil, fmt.Errorf("domainctrl: list the Pods of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	var out []*corev1.Pod
	for i := range all.Items {
		if _, uid, launches := plan.VMIOf(&all.Items[i]); launches && uid == vmi.UID {
			out = append(out, &all.Items[i])
		}
	}
	return out, nil
}

// saidUnproven reports whether the status reports already that the VMI lacks a launcher Pod, with
// that reason.
func saidUnproven(vmi *v1.VirtualMachineInstance, why error) bool {
	m := vmi.Status.MigrationState
	return outOfSync(vmi) == why.Error() || m != nil && strings.HasSuffix(m.FailureReason, why.Error())
}

// confirmed reads the Pod live on which the start of a domain, or its arrival, depends: a Pod that
// is gone starts nothing, and has no files made.
func (r gatherer) confirmed(ctx context.Context, s *plan.Snapshot, pod *corev1.Pod) error {
	live := &corev1.Pod{}
	switch err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(pod), live); {
	case apierrors.IsNotFound(err):
		live = nil
	case err != nil:
		return fmt.Errorf("domainctrl: read Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	s.Pods = slices.DeleteFunc(s.Pods, func(p *corev1.Pod) bool { return p == pod })
	if live != nil {
		s.Pods = append(s.Pods, live)
	}
	return nil
}

// NodePods finds Pods of a node by UID, as the API server has them: the purpose of a launcher is
// that of its Pod.
type NodePods struct {
	// NodeName is the name of the node.
	NodeName string
	// Cache is that of [Caches]; Reader reads the Pods it lacks, and all while it does not run.
	Cache  cache.Cache
	Reader client.Reader
}

// Pod returns the Pod of that UID on the node; nil if the API server has none.
func (n NodePods) Pod(ctx context.Context, uid types.UID) (*corev1.Pod, error) {
	var found corev1.PodList
	var early *cache.ErrCacheNotStarted
	err := n.Cache.List(ctx, &found, client.MatchingFields{podByUID: string(uid)})
	if err == nil && len(found.Items) == 0 || errors.As(err, &early) {
		err = n.Reader.List(ctx, &found, client.MatchingFieldsSelector{Selector: podsOnNode(n.NodeName)})
	}
	if err != nil {
		return nil, fmt.Errorf("domainctrl: list the Pods of node %s: %w", n.NodeName, err)
	}
	for i := range found.Items {
		if found.Items[i].UID == uid {
			return &found.Items[i], nil
		}
	}
	return nil, nil //nolint:nilnil // absence is an answer
}

// requestsOfLauncherPod requests a pass over the VMI that a Pod was made for.
func requestsOfLauncherPod(_ context.Context, pod *corev1.Pod) []reconcile.Request {
	if key, _, launches := plan.VMIOf(pod); launches {
		return []reconcile.Request{{NamespacedName: key}}
	}
	return nil
}
