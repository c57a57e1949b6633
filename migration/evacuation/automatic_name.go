// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// circumstancesAnnotation is the annotation of automatic migrations with a hash of what they depend on,
// as of their creation; see circumstances.
const circumstancesAnnotation = "virtloom.dev/circumstances"

const (
	automaticPrefix = "auto-"
	// sumSize is the length of a hash, in characters of five bits.
	sumSize = 12
)

// hashTexts hashes texts; their boundaries count.
func hashTexts(texts ...string) string {
	h := sha256.New()
	for _, t := range texts {
		_, _ = io.WriteString(h, t+"\x00") // a hash takes everything
	}
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)))[:sumSize]
}

// nextName returns the name of the next automatic migration of a VMI, whatever its cause. It is
// derived from the VMI's UID and the preceding migration, so that a controller with a stale cache can
// only create the same migration again.
func nextName(vmi *v1.VirtualMachineInstance, migrations []*v1.VirtualMachineInstanceMigration) string {
	g := Candidate{VMI: vmi, Migrations: migrations}
	var after types.UID
	if last := g.newest((*v1.VirtualMachineInstanceMigration).IsFinal); last != nil {
		after = last.UID
	}
	for {
		name := automaticName(vmi, after)
		i := slices.IndexFunc(migrations, func(m *v1.VirtualMachineInstanceMigration) bool { return m.Name == name })
		if i < 0 {
			return name
		}
		// Made in the same second as the one before it: their ages do not order them. A
		// migration that no API server has stored yet, as in a plan, has no UID.
		after = cmp.Or(migrations[i].UID, types.UID(name))
	}
}

func automaticName(vmi *v1.VirtualMachineInstance, after types.UID) string {
	// The name is used as a label value, which begins and ends with an alphanumeric character.
	readable := vmi.Name[:min(len(vmi.Name), validation.LabelValueMaxLength-len(automaticPrefix)-1-sumSize)]
	readable = strings.TrimRight(readable, "-.")
	return automaticPrefix + readable + "-" + hashTexts(string(vmi.UID), string(after))
}

// automatic returns a migration of the VMI without a user's request.
func (g Candidate) automatic(fleet string, p v1.MigrationPriority, annotation, value string) *v1.VirtualMachineInstanceMigration {
	return &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.VMI.Namespace, Name: nextName(g.VMI, g.Migrations),
			Annotations: map[string]string{annotation: value, circumstancesAnnotation: circumstances(g.VMI, fleet)},
		},
		Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: g.VMI.Name, Priority: priority(p)},
	}
}

// Fleet hashes what of the cluster decides whether a VMI can be migrated at all: names, labels and
// taints of the nodes, and KubeVirt's configuration, which may be nil.
func Fleet(nodes []corev1.Node, kv *v1.KubeVirt) string {
	type node struct {
		Name     string
		Labels   map[string]string
		Taints   []corev1.Taint
		Cordoned bool
	}
	all := make([]node, 0, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		all = append(all, node{Name: n.Name, Labels: n.Labels, Taints: lasting(n.Spec.Taints), Cordoned: n.Spec.Unschedulable})
	}
	slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.Name, b.Name) })
	var config *v1.KubeVirtConfiguration
	if kv != nil {
		config = &kv.Spec.Configuration
	}
	return hashTexts(jsonText(all), jsonText(config))
}

// lasting returns the taints without their times.
func lasting(taints []corev1.Taint) []corev1.Taint {
	out := slices.Clone(taints)
	for i := range out {
		out[i].TimeAdded = nil
	}
	slices.SortFunc(out, func(a, b corev1.Taint) int { return strings.Compare(a.ToString(), b.ToString()) })
	return out
}

// circumstances hashes what the migration of a VMI depends on: the cluster, as returned by [Fleet],
// the VMI's spec, its hotplugged volumes, and whether its node reports that it can be migrated.
func circumstances(vmi *v1.VirtualMachineInstance, fleet string) string {
	var plugged []string
	for i := range vmi.Status.VolumeStatus {
		if vmi.Status.VolumeStatus[i].HotplugVolume != nil {
			plugged = append(plugged, vmi.Status.VolumeStatus[i].Name)
		}
	}
	slices.Sort(plugged)
	migratable := ""
	if c := vmistatus.Condition(vmi, v1.VirtualMachineInstanceIsMigratable); c != nil {
		migratable = string(c.Status) + c.Reason
	}
	return hashTexts(fleet, jsonText(vmi.Spec), strings.Join(plugged, ","), migratable, vmi.Status.NodeName)
}

// jsonText returns a value as JSON, in which maps are sorted.
func jsonText(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
