// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// Volume labels of disks where the spec sets none (KubeVirt: pkg/config).
const (
	configLabel  = "cfgdata"
	sysprepLabel = "unattendCD"
)

func isSet(b *bool) bool { return b != nil && *b }

// generated makes disks, and files, of data in the cluster: cloud-init data, ConfigMaps, Secrets, fields of the VMI.
type generated struct{ *Workspace }

// configMap makes a disk of a ConfigMap.
func (w generated) configMap(ctx context.Context, v volume) (convert.DiskSource, error) {
	const field = "configMap"
	return v.seeded(field, func() (string, []seed, error) {
		c := v.ConfigMap
		files, err := w.configFiles(ctx, v.vmi, objectRef{name: c.Name, configMap: true, optional: isSet(c.Optional)}, v.blame(field+".name"))
		return cmp.Or(c.VolumeLabel, configLabel), files, err
	})
}

// secret makes a disk of a Secret.
func (w generated) secret(ctx context.Context, v volume) (convert.DiskSource, error) {
	const field = "secret"
	return v.seeded(field, func() (string, []seed, error) {
		s := v.Secret
		files, err := w.configFiles(ctx, v.vmi, objectRef{name: s.SecretName, optional: isSet(s.Optional), volume: v.Name}, v.blame(field+".secretName"))
		return cmp.Or(s.VolumeLabel, configLabel), files, err
	})
}

// answerFiles are the names under which Windows Setup finds its answer file.
var answerFiles = []string{"autounattend.xml", "unattend.xml"}

// sysprep makes a disk with the answer file of Windows Setup.
func (w generated) sysprep(ctx context.Context, v volume) (convert.DiskSource, error) {
	const field = "sysprep"
	return v.seeded(field, func() (string, []seed, error) {
		at, ref := field+".secret.name", objectRef{volume: v.Name}
		switch s := v.Sysprep; {
		case s.Secret != nil:
			ref.name = s.Secret.Name
		case s.ConfigMap != nil:
			at, ref = field+".configMap.name", objectRef{name: s.ConfigMap.Name, configMap: true}
		default:
			return "", nil, v.fault(field, "Required value: secret or configMap", "name a Secret or ConfigMap with the answer file", domain.ErrInvalid)
		}
		files, err := w.configFiles(ctx, v.vmi, ref, v.blame(at))
		if err != nil {
			return "", nil, err
		}
		if !slices.ContainsFunc(files, func(f seed) bool { return slices.Contains(answerFiles, strings.ToLower(f.name)) }) {
			return "", nil, v.fault(at, "Required value: key "+strings.Join(answerFiles, " or "), "add the answer file under that key", domain.ErrInvalid)
		}
		return sysprepLabel, files, nil
	})
}

// serviceAccount makes a disk of the service account of the launcher Pod, as the kubelet has mounted
// it: its token is valid for as long as that Pod is there and the API server accepts it, and is not
// renewed on the disk.
func (w generated) serviceAccount(ctx context.Context, v volume) (convert.DiskSource, error) {
	const field = "serviceAccount"
	switch {
	case !v.isDisk():
		return convert.DiskSource{}, nil
	case w.Pods == nil:
		return convert.DiskSource{}, v.fault(field, "service account tokens are not supported on this node",
			"store a token in a Secret of type kubernetes.io/service-account-token and use a secret volume", domain.ErrUnsupported)
	}
	return v.seeded(field, func() (string, []seed, error) {
		data, err := w.Pods.Secret(ctx, v.vmi, "")
		if err != nil {
			return "", nil, v.fault(field+".serviceAccountName", "cannot read the token of the launcher Pod", "create the ServiceAccount", err)
		}
		var files []seed
		for _, name := range slices.Sorted(maps.Keys(data)) {
			files = append(files, seed{name, data[name]})
		}
		return configLabel, files, nil
	})
}

// downwardMetrics is refused: nothing on this node writes them.
func (w generated) downwardMetrics(_ context.Context, v volume) (convert.DiskSource, error) {
	if !v.isDisk() {
		return convert.DiskSource{}, nil
	}
	return convert.DiskSource{}, v.fault("downwardMetrics", "downward metrics are not supported on this node",
		"remove the volume and its disk", domain.ErrUnsupported)
}
