// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pollInterval is the pause between two looks at the cluster.
const pollInterval = 50 * time.Millisecond

// fieldManager is the field manager of applied manifests.
const fieldManager = "virtloom-refcluster"

// load reads the objects of a manifest. The directory of a hostPath volume is
// replaced by one of the rig's shared storage.
func (c *Cluster) load(manifests fs.FS, name string) ([]*unstructured.Unstructured, error) {
	raw, err := fs.ReadFile(manifests, name)
	if err != nil {
		return nil, fmt.Errorf("refcluster: %w", err)
	}
	var objects []*unstructured.Unstructured
	for dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := dec.Decode(o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("refcluster: %s: %w", name, err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if err := c.share(o); err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
}

func (c *Cluster) share(o *unstructured.Unstructured) error {
	if o.GetKind() != "PersistentVolume" {
		return nil
	}
	dir := filepath.Join(c.SharedDir(), o.GetName())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("refcluster: shared storage: %w", err)
	}
	return unstructured.SetNestedField(o.Object, dir, "spec", "hostPath", "path")
}

// SharedDir returns the directory that every node sees at the same path.
func (c *Cluster) SharedDir() string { return filepath.Join(c.Rig.Dir(), "shared") }

// Apply applies the objects of a manifest, as kubectl apply --server-side does.
func (c *Cluster) Apply(ctx context.Context, manifests fs.FS, name string) error {
	objects, err := c.load(manifests, name)
	if err != nil {
		return err
	}
	for _, o := range objects {
		err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(fieldManager), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("refcluster: apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// Await polls until ok returns no error. The error of a failed wait wraps the last
// error of ok, or that of a daemon that ended meanwhile.
func (c *Cluster) Await(ctx context.Context, within time.Duration, what string, ok func(context.Context) error) error {
	return Await(ctx, within, what, func(ctx context.Context) error {
		if err := c.Alive(); err != nil {
			return hopeless{err}
		}
		return ok(ctx)
	})
}

// Await is Cluster.Await for conditions that need no daemon.
func Await(parent context.Context, within time.Duration, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, within)
	defer cancel()
	var last error
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil && last != nil {
			err = last // what was cut off says nothing
		}
		last = err
		var final hopeless
		if errors.As(err, &final) {
			return fmt.Errorf("waiting for %s: %w", what, final.error)
		}
		select {
		case <-ctx.Done():
			if parent.Err() != nil {
				return fmt.Errorf("waiting for %s: %w", what, parent.Err())
			}
			return fmt.Errorf("waited %s for %s: %w", within, what, err)
		case <-time.After(pollInterval):
		}
	}
}

// VMI reads a VirtualMachineInstance.
func (c *Cluster) VMI(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	return vmi, c.Client.Get(ctx, key, vmi)
}

// AwaitPhase waits until a VirtualMachineInstance is in the phase.
func (c *Cluster) AwaitPhase(ctx context.Context, key types.NamespacedName, phase v1.VirtualMachineInstancePhase, within time.Duration) (vmi *v1.VirtualMachineInstance, err error) {
	err = c.Await(ctx, within, fmt.Sprintf("%s to be %s", key, phase), func(ctx context.Context) error {
		if vmi, err = c.VMI(ctx, key); err != nil {
			return err
		}
		if vmi.Status.Phase != phase {
			return fmt.Errorf("it is %s, conditions %v", vmi.Status.Phase, vmi.Status.Conditions)
		}
		return nil
	})
	return vmi, err
}

// AwaitMigration waits until a migration is in the phase.
func (c *Cluster) AwaitMigration(ctx context.Context, key types.NamespacedName, phase v1.VirtualMachineInstanceMigrationPhase, within time.Duration) error {
	return c.Await(ctx, within, fmt.Sprintf("migration %s to be %s", key, phase), func(ctx context.Context) error {
		m := &v1.VirtualMachineInstanceMigration{}
		if err := c.Client.Get(ctx, key, m); err != nil {
			return err
		}
		if m.Status.Phase == phase {
			return nil
		}
		err := fmt.Errorf("it is %s, conditions %v, state %+v", m.Status.Phase, m.Status.Conditions, m.Status.MigrationState)
		if m.IsFinal() {
			return hopeless{err}
		}
		return err
	})
}

// hopeless is a permanent error.
type hopeless struct{ error }

// AwaitGone waits until an object has been removed.
func (c *Cluster) AwaitGone(ctx context.Context, obj client.Object, within time.Duration) error {
	key := client.ObjectKeyFromObject(obj)
	return c.Await(ctx, within, fmt.Sprintf("%T %s to be gone", obj, key), func(ctx context.Context) error {
		err := c.Client.Get(ctx, key, obj)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is still there, finalizers %v", obj.GetFinalizers())
		}
		return err
	})
}

// Pods lists the launcher Pods in a namespace.
func (c *Cluster) Pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := c.Client.List(ctx, &list, client.InNamespace(namespace), client.HasLabels{v1.AppLabel})
	return list.Items, err
}

// Domains lists the domains of every node, as node/domain.
func (c *Cluster) Domains(ctx context.Context) ([]string, error) {
	var all []string
	for _, n := range c.Nodes {
		names, err := n.Domains(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, n.Name()+"/"+name)
		}
	}
	return all, nil
}
