// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

const (
	secretVolumes    = "volumes/kubernetes.io~secret"
	projectedVolumes = "volumes/kubernetes.io~projected"
	// tokenVolume begins the name of the volume that the API server adds to a Pod for its service
	// account.
	tokenVolume = "kube-api-access-"
	// payload is the kubelet's link to the directory with the present files of a volume, all of one
	// version.
	payload = "..data"
)

// Secret returns the files of a Secret by name, as the kubelet has put them into a volume of the
// launcher Pod. They are read on the node, where no process of the Pod can change them, and all of
// one version of the Secret. While the kubelet has no such volume the error wraps
// [domain.ErrNotReady]; an optional Secret that does not exist has no files. Without a name of a volume
// they are those of the Pod's service account (ca.crt, namespace, token).
func (p Pods) Secret(_ context.Context, vmi *v1.VirtualMachineInstance, volume string) (map[string][]byte, error) {
	kind, choose := secretVolumes, func([]string) (string, error) { return volume, checkName(volume) }
	if volume == "" {
		kind, choose = projectedVolumes, onlyToken
	}
	files, err := p.projected(vmi, kind, choose)
	if err != nil {
		return nil, fmt.Errorf("mounts: Secret in volume %q of VMI %s: %w", volume, vmi.UID, err)
	}
	return files, nil
}

// onlyToken returns the volume with the token of the service account.
func onlyToken(volumes []string) (string, error) {
	tokens := slices.DeleteFunc(volumes, func(name string) bool { return !strings.HasPrefix(name, tokenVolume) })
	switch len(tokens) {
	case 0:
		return "", fmt.Errorf("the Pod has no token: %w", domain.ErrNotReady)
	case 1:
		return tokens[0], nil
	}
	return "", fmt.Errorf("the Pod has %d tokens: %w", len(tokens), domain.ErrInvalid)
}

// projected returns the files of one of the volumes of a kind that the kubelet writes.
func (p Pods) projected(vmi *v1.VirtualMachineInstance, kind string, choose func(volumes []string) (string, error)) (map[string][]byte, error) {
	pod, err := p.Pod(vmi)
	if err != nil {
		return nil, err
	}
	volumes, err := p.ofKubelet(pod, kind, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer volumes.Close()
	all, err := names(volumes)
	if err != nil {
		return nil, err
	}
	name, err := choose(all)
	if err != nil {
		return nil, err
	}
	volume, err := walk(volumes, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer volume.Close()
	dir, err := openFollowing(volume, payload, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return readFiles(dir, corev1.MaxSecretSize)
}

// readFiles reads the regular files of a directory, which may have that many bytes in all.
func readFiles(dir *os.File, limit int64) (map[string][]byte, error) {
	all, err := names(dir)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte, len(all))
	for _, name := range all {
		f, err := walk(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
		if err != nil {
			return nil, err
		}
		data, err := readFile(f, limit)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		files[name], limit = data, limit-int64(len(data))
	}
	return files, nil
}

// readFile reads a regular file of at most that many bytes.
func readFile(f *os.File, limit int64) ([]byte, error) {
	if _, err := isKind(f, unix.S_IFREG); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("more than %d bytes: %w", corev1.MaxSecretSize, domain.ErrInvalid)
	}
	return data, err
}
