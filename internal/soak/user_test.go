// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Sizes of a guest: what it starts with and how far it can grow.
const (
	maxSockets = 4
	gigabyte   = 1 << 30
	maxMemory  = 4
)

// User does what users of a cluster do, at random. It is not safe for concurrent use.
type User struct {
	// Client reads without a cache, and writes.
	Client client.Client
	// Namespace has all guests. It exists.
	Namespace string
	// Random decides.
	Random *rand.Rand
	// Guests is how many there are at most.
	Guests int
	// Claims are the names of claims for volumes to be plugged; none: none are.
	Claims []string
	// Resizes says that CPUs and memory are changed.
	Resizes bool
	// Edit changes a guest before it is created; nil leaves it.
	Edit func(*v1.VirtualMachineInstance)

	made int
	// Counts is how often what was done.
	Counts map[string]int
}

// deed is one thing that a user may do, and how often it does it beside others.
type deed struct {
	name   string
	weight int
	do     func(*User, context.Context) (what string, err error)
}

var deeds = []deed{
	{"create", 24, (*User).create},
	{"delete", 12, (*User).remove},
	{"migrate", 26, (*User).migrate},
	{"cancel", 5, (*User).cancel},
	{"tidy", 14, (*User).tidy},
	{"plug", 8, (*User).plug},
	{"unplug", 6, (*User).unplug},
	{"resize-cpu", 5, (*User).resizeCPU},
	{"resize-memory", 4, (*User).resizeMemory},
	{"scribble", 10, (*User).scribble},
}

// Do does one thing and says what. Nothing to do is an empty word. What another writer or a fault has prevented is no
// error; what is returned is one of the client.
func (u *User) Do(ctx context.Context) (string, error) {
	if u.Counts == nil {
		u.Counts = map[string]int{}
	}
	d := pick(deeds, func(d deed) int { return d.weight }, u.Random.IntN)
	what, err := d.do(u, ctx)
	if what == "" || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", d.name, what, err)
	}
	u.Counts[d.name]++
	return d.name + " " + what, nil
}

func (u *User) create(ctx context.Context) (string, error) {
	all, err := u.guests(ctx, nil)
	if err != nil || len(all) >= u.Guests {
		return "", err
	}
	u.made++
	g := NewGuest(u.Namespace, fmt.Sprintf("guest-%d", u.made))
	if u.Edit != nil {
		u.Edit(g)
	}
	return g.Name, u.Client.Create(ctx, g)
}

// NewGuest is a guest as KubeVirt's webhooks leave it: without disks, that can grow.
func NewGuest(namespace, name string) *v1.VirtualMachineInstance {
	g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{"guest": name},
		Annotations: map[string]string{"kubevirt.io/nonroot": ""}, Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
	}}
	g.Spec = v1.VirtualMachineInstanceSpec{
		TerminationGracePeriodSeconds: ptr.To(int64(5)),
		EvictionStrategy:              ptr.To(v1.EvictionStrategyLiveMigrateIfPossible),
		Domain: v1.DomainSpec{
			CPU:     &v1.CPU{Cores: 1, Sockets: 1, Threads: 1, MaxSockets: maxSockets, Model: "qemu64"},
			Memory:  &v1.Memory{Guest: resource.NewQuantity(gigabyte, resource.BinarySI), MaxGuest: resource.NewQuantity(maxMemory*gigabyte, resource.BinarySI)},
			Machine: &v1.Machine{Type: "q35"},
			Devices: v1.Devices{AutoattachPodInterface: ptr.To(false), AutoattachGraphicsDevice: ptr.To(false), AutoattachSerialConsole: ptr.To(false)},
		},
	}
	g.Status.Phase, g.Status.RuntimeUser = v1.Pending, 107
	return g
}

// guests lists those that want is true of, in a fixed order.
func (u *User) guests(ctx context.Context, want func(*v1.VirtualMachineInstance) bool) ([]v1.VirtualMachineInstance, error) {
	var list v1.VirtualMachineInstanceList
	if err := u.Client.List(ctx, &list, client.InNamespace(u.Namespace)); err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(list.Items, func(g v1.VirtualMachineInstance) bool { return want != nil && !want(&g) })
	slices.SortFunc(all, func(a, b v1.VirtualMachineInstance) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return all, nil
}

func stays(g *v1.VirtualMachineInstance) bool { return g.DeletionTimestamp == nil }

func runs(g *v1.VirtualMachineInstance) bool { return stays(g) && g.Status.Phase == v1.Running }

// any picks one of the guests that want is true of; nil if there is none.
func (u *User) any(ctx context.Context, want func(*v1.VirtualMachineInstance) bool) (*v1.VirtualMachineInstance, error) {
	all, err := u.guests(ctx, want)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[u.Random.IntN(len(all))], nil
}

func (u *User) remove(ctx context.Context) (string, error) {
	// VMIs that have ended are deleted first: no controller does that.
	g, err := u.any(ctx, func(g *v1.VirtualMachineInstance) bool { return stays(g) && g.IsFinal() })
	if g == nil && err == nil {
		g, err = u.any(ctx, stays)
	}
	if g == nil || err != nil {
		return "", err
	}
	return g.Name, u.Client.Delete(ctx, g)
}

func (u *User) migrate(ctx context.Context) (string, error) {
	g, err := u.any(ctx, runs)
	if g == nil || err != nil {
		return "", err
	}
	u.made++
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: fmt.Sprintf("move-%d", u.made)}}
	m.Spec.VMIName = g.Name
	return g.Name + " by " + m.Name, u.Client.Create(ctx, m)
}

func (u *User) migrations(ctx context.Context, final bool) ([]v1.VirtualMachineInstanceMigration, error) {
	var list v1.VirtualMachineInstanceMigrationList
	if err := u.Client.List(ctx, &list, client.InNamespace(u.Namespace)); err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(list.Items, func(m v1.VirtualMachineInstanceMigration) bool {
		return m.DeletionTimestamp != nil || m.IsFinal() != final
	})
	slices.SortFunc(all, func(a, b v1.VirtualMachineInstanceMigration) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return all, nil
}

func (u *User) cancel(ctx context.Context) (string, error) {
	all, err := u.migrations(ctx, false)
	if err != nil || len(all) == 0 {
		return "", err
	}
	m := &all[u.Random.IntN(len(all))]
	return m.Name, u.Client.Delete(ctx, m)
}

// tidy deletes migrations that have ended, but for the last few.
func (u *User) tidy(ctx context.Context) (string, error) {
	const keep = 5
	all, err := u.migrations(ctx, true)
	if err != nil || len(all) <= keep {
		return "", err
	}
	for i := range all[:len(all)-keep] {
		if err := u.Client.Delete(ctx, &all[i]); client.IgnoreNotFound(err) != nil {
			return all[i].Name, err
		}
	}
	return fmt.Sprintf("%d migrations", len(all)-keep), nil
}

// change edits a guest that runs.
func (u *User) change(ctx context.Context, edit func(*v1.VirtualMachineInstance) string) (string, error) {
	g, err := u.any(ctx, runs)
	if g == nil || err != nil {
		return "", err
	}
	was := g.DeepCopy()
	what := edit(g)
	if what == "" {
		return "", nil
	}
	return g.Name + " " + what, u.Client.Patch(ctx, g, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
}

func (u *User) plug(ctx context.Context) (string, error) {
	if len(u.Claims) == 0 {
		return "", nil
	}
	claim := u.Claims[u.Random.IntN(len(u.Claims))]
	taken, err := u.guests(ctx, func(g *v1.VirtualMachineInstance) bool { return volume(g, claim) >= 0 })
	if err != nil || len(taken) > 0 {
		return "", err
	}
	return u.change(ctx, func(g *v1.VirtualMachineInstance) string {
		source := &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}
		source.ClaimName = claim
		g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: source}})
		g.Spec.Domain.Devices.Disks = append(g.Spec.Domain.Devices.Disks, v1.Disk{
			Name: claim, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}},
		})
		return claim
	})
}

func volume(g *v1.VirtualMachineInstance, name string) int {
	return slices.IndexFunc(g.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
}

func (u *User) unplug(ctx context.Context) (string, error) {
	return u.change(ctx, func(g *v1.VirtualMachineInstance) string {
		if len(g.Spec.Volumes) == 0 {
			return ""
		}
		name := g.Spec.Volumes[u.Random.IntN(len(g.Spec.Volumes))].Name
		g.Spec.Volumes = slices.DeleteFunc(g.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
		g.Spec.Domain.Devices.Disks = slices.DeleteFunc(g.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == name })
		return name
	})
}

func (u *User) resizeCPU(ctx context.Context) (string, error) {
	if !u.Resizes {
		return "", nil
	}
	return u.change(ctx, func(g *v1.VirtualMachineInstance) string {
		n := 1 + uint32(u.Random.IntN(maxSockets))
		if g.Spec.Domain.CPU.Sockets == n {
			return ""
		}
		g.Spec.Domain.CPU.Sockets = n
		return fmt.Sprintf("to %d CPUs", n)
	})
}

func (u *User) resizeMemory(ctx context.Context) (string, error) {
	if !u.Resizes {
		return "", nil
	}
	return u.change(ctx, func(g *v1.VirtualMachineInstance) string {
		n := int64(1 + u.Random.IntN(maxMemory))
		if g.Spec.Domain.Memory.Guest.Value() == n*gigabyte {
			return ""
		}
		g.Spec.Domain.Memory.Guest = resource.NewQuantity(n*gigabyte, resource.BinarySI)
		return fmt.Sprintf("to %d GiB", n)
	})
}

// scribble writes an annotation to some object of a guest, as others do who share it: whoever read it before has a
// conflict.
func (u *User) scribble(ctx context.Context) (string, error) {
	g, err := u.any(ctx, nil)
	if g == nil || err != nil {
		return "", err
	}
	objects := []client.Object{g}
	var pods corev1.PodList
	if err := u.Client.List(ctx, &pods, client.InNamespace(u.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(g.UID)}); err != nil {
		return "", err
	}
	for i := range pods.Items {
		objects = append(objects, &pods.Items[i])
	}
	o := objects[u.Random.IntN(len(objects))]
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.test/note":%q}}}`, time.Now().Format(time.RFC3339Nano))
	return o.GetName(), u.Client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", patch))
}

// DeleteAll deletes all guests and migrations.
func (u *User) DeleteAll(ctx context.Context) error {
	for _, o := range []client.ObjectList{&v1.VirtualMachineInstanceMigrationList{}, &v1.VirtualMachineInstanceList{}} {
		if err := u.Client.List(ctx, o, client.InNamespace(u.Namespace)); err != nil {
			return err
		}
		if err := eachItem(o, func(o client.Object) error { return client.IgnoreNotFound(u.Client.Delete(ctx, o)) }); err != nil {
			return err
		}
	}
	return nil
}
