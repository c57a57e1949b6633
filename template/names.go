// SPDX-License-Identifier: Apache-2.0

package template

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	maxLabel      = 63 // longest DNS-1123 label and label value
	namePrefix    = "virt-launcher-"
	hotplugPrefix = "hp-volume-"
	exportPrefix  = "virt-export"
	nameHashSize  = 10 // characters of five bits each
	// The hash alone distinguishes hotplug Pods, so it is longer than next to a VMI's name.
	hotplugHashSize = 20
)

// LauncherName returns the name of the VMI's launcher Pod: virt-launcher-<vmi>-<hash of the UID>. It is a DNS-1123 label of
// at most 63 characters, equal for equal UIDs and different for different ones.
func LauncherName(vmi *v1.VirtualMachineInstance) string {
	return podName(vmi.Name, "launcher", string(vmi.UID))
}

// TemporaryName returns the name of the VMI's temporary Pod. It has the form of LauncherName and differs from it.
func TemporaryName(vmi *v1.VirtualMachineInstance) string {
	return podName(vmi.Name, "temporary", string(vmi.UID))
}

// TargetName returns the name of a migration's target Pod. It has the form of LauncherName and depends on the UIDs of both
// objects.
func TargetName(vmi *v1.VirtualMachineInstance, migration types.UID) string {
	return podName(vmi.Name, "migration", string(vmi.UID), string(migration))
}

// AttachmentName returns the name of the Pod that holds a set of hotplugged volumes for its owner: hp-volume-<hash>.
// volumes maps the names of the volumes to the UIDs of their claims. The name is a DNS-1123 label; it is equal for the same
// set and owner, and different for any other owner, volume or claim.
func AttachmentName(owner *corev1.Pod, volumes map[string]types.UID) string {
	intent := []string{"attachment", string(owner.UID)}
	for _, name := range sortedKeys(volumes) {
		intent = append(intent, name, string(volumes[name]))
	}
	return hotplugPrefix + intentHash(hotplugHashSize, intent)
}

// TriggerName returns the name of the Pod that triggers the provisioning of a volume's claim on its owner's node. It has
// the form of AttachmentName and is different for any other owner, volume or claim, and from the name of every attachment.
func TriggerName(owner *corev1.Pod, volume string, claim types.UID) string {
	return hotplugPrefix + intentHash(hotplugHashSize, []string{"trigger", string(owner.UID), volume, string(claim)})
}

// ExporterName returns the name of the Pod that serves an export: <prefix>-<export>, by which the rest of KubeVirt finds
// it. Longer names are shortened to 63 characters as KubeVirt does: a hash replaces the prefix and, if the export's name
// leaves no room for that, the name. Export.Object must be set.
func ExporterName(e *render.Export) string {
	prefix := e.NamePrefix
	if prefix == "" {
		prefix = exportPrefix
	}
	return joinName(prefix, e.Object.Name)
}

// joinName joins base and suffix to at most 63 characters.
func joinName(base, suffix string) string {
	full := base + "-" + suffix
	if len(full) <= maxLabel {
		return full
	}
	hash := func(s string) string {
		h := fnv.New32a()
		h.Write([]byte(s))
		return fmt.Sprintf("%08x", h.Sum32())
	}
	const hashSize = 8
	// A name must not begin with the dash before the hash.
	if room := maxLabel - len(suffix) - hashSize - len("--"); room > 0 {
		return truncate(base, room) + "-" + hash(base) + "-" + suffix
	}
	return truncate(base, maxLabel-hashSize-len("-")) + "-" + hash(full)
}

func podName(vmiName string, intent ...string) string {
	hash := intentHash(nameHashSize, intent)
	room := maxLabel - len(namePrefix) - 1 - len(hash)
	readable := strings.Trim(truncate(strings.Map(labelRune, vmiName), room), "-")
	if readable == "" {
		return namePrefix + hash
	}
	return namePrefix + readable + "-" + hash
}

// intentHash returns a hash of the given length in characters of a DNS-1123 label.
func intentHash(size int, intent []string) string {
	sum := sha256.Sum256([]byte(strings.Join(intent, "\x00")))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:size]
}

// labelRune maps a character of a VMI name to one of a DNS-1123 label.
func labelRune(r rune) rune {
	switch {
	case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
		return r
	case r >= 'A' && r <= 'Z':
		return r + 'a' - 'A'
	default:
		return '-'
	}
}

func truncate(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
