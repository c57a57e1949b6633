// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
)

const (
	// clusterEvery is how often the cluster looks at its Pods.
	clusterEvery = time.Second
	// eventsLive is how long the API server keeps events; Kubernetes keeps them for an hour.
	eventsLive = 10 * time.Minute
)

func eachItem(list client.ObjectList, do func(client.Object) error) error {
	return meta.EachListItem(list, func(o runtime.Object) error { return do(o.(client.Object)) })
}

// cluster is what there is besides virtloom: scheduler, kubelets, garbage collectors.
type cluster struct {
	w *World
	client.Client
}

// run does what is to be done until ctx ends.
func (c *cluster) run(ctx context.Context) error {
	tick := time.NewTicker(clusterEvery)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := c.lookAtPods(ctx)
		if i%60 == 0 {
			err = errors.Join(err, c.expireEvents(ctx))
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func settled(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *cluster) lookAtPods(ctx context.Context) error {
	if !c.w.busy.Swap(false) && c.w.fates.random(20) > 0 {
		return nil // nothing was written; what changes with time alone can wait
	}
	var pods corev1.PodList
	var guests v1.VirtualMachineInstanceList
	var nodes corev1.NodeList
	if err := errors.Join(c.List(ctx, &pods), c.List(ctx, &guests), c.List(ctx, &nodes)); err != nil {
		return err
	}
	owners, registered := map[types.UID]string{}, map[string]*corev1.Node{}
	for _, g := range guests.Items {
		owners[g.UID] = g.Status.NodeName
	}
	for i := range pods.Items {
		owners[pods.Items[i].UID] = ""
	}
	for i := range nodes.Items {
		registered[nodes.Items[i].Name] = &nodes.Items[i]
	}
	for i := range pods.Items {
		if err := settled(c.lookAt(ctx, &pods.Items[i], owners, registered)); err != nil {
			return err
		}
	}
	return nil
}

// lookAt does what there is to do about one Pod.
func (c *cluster) lookAt(ctx context.Context, p *corev1.Pod, owners map[types.UID]string, nodes map[string]*corev1.Node) error {
	var ofGuest string
	if o := metav1.GetControllerOf(p); o != nil {
		at, exists := owners[o.UID]
		if !exists && p.DeletionTimestamp == nil {
			return c.Delete(ctx, p, client.Preconditions{UID: &p.UID})
		}
		ofGuest = at
	}
	switch {
	case p.Spec.NodeName == "":
		return c.schedule(ctx, p, ofGuest, nodes)
	case nodes[p.Spec.NodeName] == nil:
		return c.vanish(ctx, p)
	}
	n := c.w.node(p.Spec.NodeName)
	if !n.up {
		return nil
	}
	switch {
	case p.DeletionTimestamp != nil:
		return c.vanish(ctx, p)
	case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
		return c.endWith(ctx, p) // nothing can be started in it, either
	case p.Status.StartTime != nil && p.Status.StartTime.Time.Before(n.booted.Truncate(time.Second)):
		return c.fail(ctx, p)
	}
	return c.runPod(ctx, p)
}

// vanish lets a Pod go at once.
func (c *cluster) vanish(ctx context.Context, p *corev1.Pod) error {
	c.w.busy.Store(true)
	return c.Delete(ctx, p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID})
}

// schedule binds a Pod to a node that it can be on, if there is one: a migration's target to another one than the
// guest is on.
func (c *cluster) schedule(ctx context.Context, p *corev1.Pod, guestAt string, nodes map[string]*corev1.Node) error {
	var fit []string
	for name, n := range nodes {
		switch {
		case p.Labels[v1.MigrationJobLabel] != "" && name == guestAt, n.Labels[v1.NodeSchedulable] != "true":
		case !c.w.node(name).up, !selects(p, n):
		default:
			fit = append(fit, name)
		}
	}
	if len(fit) == 0 {
		c.w.busy.Store(true)
		return nil
	}
	slices.Sort(fit)
	was := p.DeepCopy()
	p.Spec.NodeName = fit[c.w.fates.random(len(fit))]
	return c.Patch(ctx, p, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
}

// selects reports whether the Pod's selector and required affinity for a name allow the node.
func selects(p *corev1.Pod, n *corev1.Node) bool {
	for k, v := range p.Spec.NodeSelector {
		if n.Labels[k] != v {
			return false
		}
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return !matches(e, n.Labels) }) &&
			!slices.ContainsFunc(t.MatchFields, func(e corev1.NodeSelectorRequirement) bool {
				return !matches(e, map[string]string{"metadata.name": n.Name})
			})
	})
}

func matches(e corev1.NodeSelectorRequirement, labels map[string]string) bool {
	v, has := labels[e.Key]
	switch e.Operator {
	case corev1.NodeSelectorOpIn:
		return has && slices.Contains(e.Values, v)
	case corev1.NodeSelectorOpNotIn:
		return !slices.Contains(e.Values, v)
	case corev1.NodeSelectorOpExists:
		return has
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	}
	return false
}

// runPod is a kubelet that starts a Pod, and says whether it is ready.
func (c *cluster) runPod(ctx context.Context, p *corev1.Pod) error {
	was := p.DeepCopy()
	now := metav1.Now()
	if p.Status.Phase != corev1.PodRunning {
		p.Status.Phase, p.Status.StartTime = corev1.PodRunning, ptr.To(now)
		p.Status.PodIP, p.Status.QOSClass = "192.0.2.1", corev1.PodQOSBurstable
		for _, s := range p.Spec.Containers {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: s.Name, Image: s.Image, ImageID: s.Image, Ready: true, Started: ptr.To(true), ContainerID: "memory://" + s.Name,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			})
		}
	}
	ready := corev1.ConditionTrue
	for _, g := range p.Spec.ReadinessGates {
		if i := condition(p, g.ConditionType); i < 0 || p.Status.Conditions[i].Status != corev1.ConditionTrue {
			ready = corev1.ConditionFalse
		}
	}
	changed := false
	for t, s := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.PodInitialized: corev1.ConditionTrue, corev1.ContainersReady: corev1.ConditionTrue, corev1.PodScheduled: corev1.ConditionTrue, corev1.PodReady: ready,
	} {
		i := condition(p, t)
		if i >= 0 && p.Status.Conditions[i].Status == s {
			continue
		}
		changed = true
		if i < 0 {
			i = len(p.Status.Conditions)
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t})
		}
		p.Status.Conditions[i].Status, p.Status.Conditions[i].LastTransitionTime = s, now
	}
	if !changed {
		return nil
	}
	return c.Status().Patch(ctx, p, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
}

func condition(p *corev1.Pod, t corev1.PodConditionType) int {
	return slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
}

// fail is a kubelet that finds out what has become of a Pod while the node had no power.
func (c *cluster) fail(ctx context.Context, p *corev1.Pod) error {
	was := p.DeepCopy()
	p.Status.Phase, p.Status.Reason = corev1.PodFailed, "NodeShutdown"
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		s.Ready, s.State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Unknown", FinishedAt: metav1.Now()}}
	}
	for i := range p.Status.Conditions {
		if t := p.Status.Conditions[i].Type; t == corev1.PodReady || t == corev1.ContainersReady {
			p.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
	err := c.Status().Patch(ctx, p, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	return errors.Join(err, c.endWith(ctx, p))
}

// endWith ends the guest that lives in a Pod with it, as the end of a launcher does.
func (c *cluster) endWith(ctx context.Context, p *corev1.Pod) error {
	n, guest := c.w.node(p.Spec.NodeName), p.Annotations[v1.DomainAnnotation]
	if guest == "" || p.Labels[v1.AppLabel] != "virt-launcher" {
		return nil
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(p.Namespace), client.MatchingLabels{v1.CreatedByLabel: p.Labels[v1.CreatedByLabel]}); err != nil {
		return err
	}
	for i := range pods.Items {
		o := &pods.Items[i]
		if o.UID != p.UID && o.Spec.NodeName == n.name && o.DeletionTimestamp == nil && o.Status.Phase == corev1.PodRunning {
			return nil // it may live in that one
		}
	}
	op := domain.Operation{Verb: domain.Destroy, Domain: domain.Name(p.Namespace, guest)}
	if err := n.hypervisor.Apply(ctx, op); err != nil && !errors.Is(err, domain.ErrDisconnected) && !errors.Is(err, errByChance) {
		return err
	}
	return nil
}

// boot is the kubelet of a node that has power again: before anything else it finds out what has become of its Pods.
func (c *cluster) boot(ctx context.Context, n *node) error {
	var pods corev1.PodList
	if err := c.List(ctx, &pods); err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName != n.name || p.Status.StartTime == nil || p.Status.Phase != corev1.PodRunning {
			continue
		}
		if err := settled(c.fail(ctx, p)); err != nil {
			return err
		}
	}
	return nil
}

// expireEvents drops old events.
func (c *cluster) expireEvents(ctx context.Context) error {
	var all eventsv1.EventList
	if err := c.List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		if time.Since(all.Items[i].CreationTimestamp.Time) < eventsLive {
			continue
		}
		if err := settled(c.Delete(ctx, &all.Items[i])); err != nil {
			return err
		}
	}
	return nil
}

// register creates the Node object of a node if there is none.
func (c *cluster) register(ctx context.Context, n *node) error {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{
		corev1.LabelHostname: n.name, v1.CPUModelLabel + "qemu64": "true", v1.SupportedMachineTypeLabel + "q35": "true", v1.NodeSchedulable: "true", corev1.LabelArchStable: "amd64",
	}}}
	if err := c.Create(ctx, o); err != nil {
		return ignoreExists(err)
	}
	was := o.DeepCopy()
	o.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity("64"), corev1.ResourceMemory: quantity("256Gi")}
	o.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return c.Status().Patch(ctx, o, client.MergeFrom(was))
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
