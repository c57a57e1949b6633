// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
)

// createTarget creates the target Pod.
func (s executor) createTarget(j *job) error {
	snap := controller(s).snapshot(j)
	p, err := s.o.Render(j.guest.VMI, j.m, snap.SourcePod)
	switch {
	case errors.Is(err, migration.ErrRender):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", migration.ErrRender, err)
	}
	if f := placement.Fit(p, j.guest.VMI.Status.NodeName, s.nodes); s.o.Config.AwaitNodes >= 0 && f.Static() {
		return &migration.NoNodeError{Fitness: f}
	}
	if short := placement.CheckQuota(p, s.quotas[p.Namespace]); len(short) > 0 {
		return &placement.QuotaError{Shortages: short}
	}
	placement.Avoid(p, s.admission.Full())
	p.UID = types.UID("pod-" + p.Namespace + "/" + p.Name)
	p.CreationTimestamp = s.clock.stamp()
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	j.guest.pods = append(j.guest.pods, p)
	s.quotas.charge(p)
	j.holding = true
	s.ledger.hold(1)
	scheduler(s).schedule(&placing{guest: j.guest, pod: p, source: j.guest.VMI.Status.NodeName})
	return nil
}

// createAttachment creates the Pod that attaches hotplugged volumes at the target.
func (s executor) createAttachment(j *job, volumes []string) {
	g, yes := j.guest, true
	owner := migration.TargetPod(g.pods, j.m.UID)
	if owner == nil {
		return
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.key.Namespace, Name: "hp-" + j.m.Name + "-" + strings.Join(volumes, "-"), CreationTimestamp: s.clock.stamp(),
			Labels:          map[string]string{v1.AppLabel: "hotplug-disk"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: owner.Name, UID: owner.UID, Controller: &yes}},
		},
		Spec:   corev1.PodSpec{NodeName: owner.Spec.NodeName},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	p.UID = types.UID("pod-" + p.Namespace + "/" + p.Name)
	for i := range g.VMI.Spec.Volumes {
		v := &g.VMI.Spec.Volumes[i]
		if !slices.Contains(volumes, v.Name) {
			continue
		}
		claim := &corev1.PersistentVolumeClaimVolumeSource{}
		switch {
		case v.PersistentVolumeClaim != nil:
			claim.ClaimName = v.PersistentVolumeClaim.ClaimName
		case v.DataVolume != nil:
			claim.ClaimName = v.DataVolume.Name
		case v.MemoryDump != nil:
			claim.ClaimName = v.MemoryDump.ClaimName
		}
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}})
	}
	g.pods = append(g.pods, p)
	s.quotas.charge(p)
	if p.Spec.NodeName != "" {
		s.usage.Add(p.Spec.NodeName, p)
	}
	kubelet(s).start(&placing{guest: g, pod: p})
}

func (s executor) annotate(g *simulatedGuest, a migration.Action) {
	for _, p := range g.pods {
		if p.UID != a.Pod.UID {
			continue
		}
		for k, v := range a.Annotations {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, k, v)
		}
		controller(s).changed(g)
	}
}
