// SPDX-License-Identifier: Apache-2.0

package template

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

const (
	maxLabel     = 63 // longest DNS-1123 label and label value
	namePrefix   = "virt-launcher-"
	nameHashSize = 10 // characters of five bits each
)

// LauncherName is the name of the VMI's launcher Pod: virt-launcher-<vmi>-<hash of the UID>. It is a DNS-1123 label of at
// most 63 characters, equal for equal UIDs and different for different ones.
func LauncherName(vmi *v1.VirtualMachineInstance) string {
	return podName(vmi.Name, "launcher", string(vmi.UID))
}

// TargetName is the name of the Pod that a migration moves the VMI to. It looks like LauncherName and depends on the UIDs
// of both objects.
func TargetName(vmi *v1.VirtualMachineInstance, migration types.UID) string {
	return podName(vmi.Name, "migration", string(vmi.UID), string(migration))
}

func podName(vmiName string, intent ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(intent, "\x00")))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:nameHashSize]
	room := maxLabel - len(namePrefix) - 1 - len(hash)
	readable := strings.Trim(truncate(strings.Map(labelRune, vmiName), room), "-")
	if readable == "" {
		return namePrefix + hash
	}
	return namePrefix + readable + "-" + hash
}

// labelRune maps what a VMI name may contain to what a DNS-1123 label may contain.
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
