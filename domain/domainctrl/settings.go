// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Settings returns the KubeVirt object of the cluster; nil if there is none, which means KubeVirt's
// defaults.
type Settings func(ctx context.Context) (*v1.KubeVirt, error)

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

// KubeVirt implements [Settings]. Of several objects, which KubeVirt does not allow, the oldest
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
		return nil, fmt.Errorf("domainctrl: list KubeVirt objects: %w", err)
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

// AllowEmulation implements [Emulation].
func (s *ClusterSettings) AllowEmulation(ctx context.Context) (bool, error) {
	kv, err := s.KubeVirt(ctx)
	if err != nil || kv == nil {
		return false, err
	}
	d := kv.Spec.Configuration.DeveloperConfiguration
	return d != nil && d.UseEmulation, nil
}
