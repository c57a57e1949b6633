// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/workspace"
)

// VolumeClaims locates claims: those that are bound to hostPath or local volumes, or all that a
// kubelet mounts.
type VolumeClaims struct {
	// Reader reads PersistentVolumeClaims and PersistentVolumes.
	Reader client.Reader
	// InPods says that a kubelet mounts the volumes into Pods, whatever they are: claims have no
	// path on the node.
	InPods bool
}

// PersistentVolume returns the name of the volume that the claim is bound to.
func (c VolumeClaims) PersistentVolume(ctx context.Context, namespace, name string) (string, error) {
	pvc, err := c.bound(ctx, namespace, name)
	return pvc.Spec.VolumeName, err
}

// HostPath returns the folder on the node of a volume of type hostPath; empty for others.
func (c VolumeClaims) HostPath(ctx context.Context, volume string) (string, error) {
	pv, err := c.volume(ctx, volume)
	if err != nil || pv.Spec.HostPath == nil {
		return "", err
	}
	return pv.Spec.HostPath.Path, nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get

func (c VolumeClaims) volume(ctx context.Context, name string) (pv corev1.PersistentVolume, err error) {
	if err := c.Reader.Get(ctx, types.NamespacedName{Name: name}, &pv); err != nil {
		return pv, fmt.Errorf("read PersistentVolume %s: %w", name, err)
	}
	return pv, nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get

func (c VolumeClaims) bound(ctx context.Context, namespace, name string) (pvc corev1.PersistentVolumeClaim, err error) {
	if err := c.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pvc); err != nil {
		return pvc, fmt.Errorf("read PersistentVolumeClaim %s/%s: %w", namespace, name, err)
	}
	if pvc.Status.Phase != corev1.ClaimBound {
		return pvc, fmt.Errorf("PersistentVolumeClaim %s/%s is %s, not Bound", namespace, name, pvc.Status.Phase)
	}
	return pvc, nil
}

// Locate returns where the claim's data lies on this node, or what the kubelet mounts.
func (c VolumeClaims) Locate(ctx context.Context, namespace, name string) (workspace.Claim, error) {
	pvc, err := c.bound(ctx, namespace, name)
	if err != nil {
		return workspace.Claim{}, err
	}
	out := workspace.Claim{
		Block:  pvc.Spec.VolumeMode != nil && *pvc.Spec.VolumeMode == corev1.PersistentVolumeBlock,
		Shared: slices.Contains(pvc.Spec.AccessModes, corev1.ReadWriteMany),
		Bytes:  pvc.Status.Capacity.Storage().Value(),
	}
	if c.InPods {
		return out, nil
	}
	pv, err := c.volume(ctx, pvc.Spec.VolumeName)
	if err != nil {
		return workspace.Claim{}, err
	}
	out.Bytes = pv.Spec.Capacity.Storage().Value()
	switch {
	case pv.Spec.HostPath != nil:
		out.Path = pv.Spec.HostPath.Path
	case pv.Spec.Local != nil:
		out.Path = pv.Spec.Local.Path
	default:
		return workspace.Claim{}, fmt.Errorf("PersistentVolume %s is neither hostPath nor local: volume type is not supported", pv.Name)
	}
	return out, nil
}

// ClusterObjects reads ConfigMaps and Secrets from the cluster.
type ClusterObjects struct {
	// Reader reads them. It should not be a cache, which would hold all Secrets of the cluster:
	// they are read once in the life of a VMI.
	Reader client.Reader
}

// ConfigMap implements [workspace.Objects].
func (o ClusterObjects) ConfigMap(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	var m corev1.ConfigMap
	if err := o.get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &m, "ConfigMap"); err != nil {
		return nil, err
	}
	out := maps.Clone(m.BinaryData)
	if out == nil {
		out = map[string][]byte{}
	}
	for name, text := range m.Data {
		out[name] = []byte(text)
	}
	return out, nil
}

// Secret implements [workspace.Objects].
func (o ClusterObjects) Secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	var s corev1.Secret
	if err := o.get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &s, "Secret"); err != nil {
		return nil, err
	}
	return s.Data, nil
}

// ConfigMaps by name, never listed. The agent has no right to Secrets: see [workspace.Pods].
//
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get

func (o ClusterObjects) get(ctx context.Context, key types.NamespacedName, obj client.Object, kind string) error {
	err := o.Reader.Get(ctx, key, obj)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s %s: %w", kind, key, fs.ErrNotExist)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s %s: %w", kind, key, fs.ErrPermission)
	case err != nil:
		return fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	return nil
}

// DefaultSettingsKept is how long [ClusterSettings] keeps an answer.
const DefaultSettingsKept = 30 * time.Second

// ClusterSettings reads the KubeVirt object at most once per Kept, however many passes ask for it.
// When it cannot be read the last answer stays valid. Safe for concurrent use.
type ClusterSettings struct {
	// Reader lists KubeVirt objects; required.
	Reader client.Reader
	// Kept is how long an answer is kept; DefaultSettingsKept if zero.
	Kept time.Duration
	// Clock defaults to the real one.
	Clock clock.PassiveClock

	mu   sync.Mutex
	kv   *v1.KubeVirt
	read time.Time // zero before the first answer
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=list

// KubeVirt implements [workspace.Settings]. Of several objects, which KubeVirt does not allow, the oldest
// counts. The result must not be changed.
func (s *ClusterSettings) KubeVirt(ctx context.Context) (*v1.KubeVirt, error) {
	s.mu.Lock()
	if s.Clock == nil {
		s.Clock = clock.RealClock{}
	}
	kept := s.Kept
	if kept == 0 {
		kept = DefaultSettingsKept
	}
	now, kv, known := s.Clock.Now(), s.kv, !s.read.IsZero()
	fresh := known && now.Sub(s.read) < kept
	s.mu.Unlock()
	if fresh {
		return kv, nil
	}
	// Callers do not wait for each other's list: it may take long.
	var list v1.KubeVirtList
	if err := s.Reader.List(ctx, &list); err != nil {
		if known {
			return kv, nil
		}
		return nil, fmt.Errorf("workspace: list KubeVirt objects: %w", err)
	}
	kv = nil
	for i := range list.Items {
		if o := &list.Items[i]; kv == nil || o.CreationTimestamp.Before(&kv.CreationTimestamp) {
			kv = o
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kv, s.read = kv, now
	return kv, nil
}

// AllowEmulation implements [workspace.Emulation].
func (s *ClusterSettings) AllowEmulation(ctx context.Context) (bool, error) {
	kv, err := s.KubeVirt(ctx)
	if err != nil || kv == nil {
		return false, err
	}
	d := kv.Spec.Configuration.DeveloperConfiguration
	return d != nil && d.UseEmulation, nil
}
