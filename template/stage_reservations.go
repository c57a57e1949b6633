// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// reservations labels the Pod with the LUNs that its VMI reserves, and keeps it off nodes with a Pod of the same label: to
// the storage, the reservations of two VMIs on one node are one. An unknown claim gets no label.
func reservations(d *render.Draft) error {
	marked := map[string]bool{}
	for _, r := range reservedClaims(d) {
		if r.claim.UID == "" {
			return &render.Error{
				Field: r.field, Reason: fmt.Sprintf("claim %q must have a UID", r.claim.Name),
				Remedy: "use the claim as read from the API server", Err: render.ErrMissingFact,
			}
		}
		label := v1.PersistentReservationLabelPrefix + string(r.claim.UID)
		if marked[label] {
			continue
		}
		marked[label] = true
		from := d.From(r.field + ", Facts.Claims")
		from.Label(label, "")
		from.Affinity().AvoidPods(corev1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: label, Operator: metav1.LabelSelectorOpExists,
			}}},
			TopologyKey: corev1.LabelHostname,
		})
	}
	return nil
}

// reservation is a claim that a disk of the VMI reserves.
type reservation struct {
	field string
	claim *corev1.PersistentVolumeClaim
}

// reservedClaims returns the known claims of disks with reservations, in the order of the disks.
func reservedClaims(d *render.Draft) (all []reservation) {
	names := map[string]string{}
	for i := range d.VMI().Spec.Volumes {
		switch v := &d.VMI().Spec.Volumes[i]; {
		case v.MemoryDump != nil:
			names[v.Name] = v.MemoryDump.ClaimName
		case v.PersistentVolumeClaim != nil, v.DataVolume != nil:
			source, _ := claimOf(v)
			names[v.Name] = source.ClaimName
		}
	}
	for i := range d.VMI().Spec.Domain.Devices.Disks {
		disk := &d.VMI().Spec.Domain.Devices.Disks[i]
		if disk.LUN == nil || !disk.LUN.Reservation {
			continue
		}
		if claim := d.Facts().Claims[names[disk.Name]]; claim != nil {
			all = append(all, reservation{elementOf(vmiDisks, i) + ".lun.reservation", claim})
		}
	}
	return all
}
