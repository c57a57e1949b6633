// SPDX-License-Identifier: Apache-2.0

// Package realcluster starts a cluster of nodes with real kubelets, for the end-to-end tests and the demo, and installs virtloom
// in it as its users do: by applying the manifests of refdaemon/config/default. It is no part of the SDK.
package realcluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	virtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

// errNoImages means that the images of virtloom are not there. Its remedy is "make images".
var errNoImages = errors.New("images of virtloom are missing: run \"make images\"")

// Options say what cluster to start. The zero value is one of two nodes.
type Options struct {
	// Nodes are the names of the nodes; node-a and node-b if empty.
	Nodes []string
	// Images are the archives that every node gets; those in the folder images of [rig.BinDir] if nil.
	Images []string
	// Rig is what the control plane looks like; Kubelets and Bare are set.
	Rig rig.Options
}

// Cluster is a control plane with nodes, and with nothing but Kubernetes until Install.
type Cluster struct {
	// Rig is the control plane; whoever stops it stops the nodes.
	Rig *rig.Rig
	// Nodes are the nodes, in the order of Options.Nodes.
	Nodes []*rig.KubeletNode
	// NodesReady is how long the nodes took to be Ready, from when the control plane ran.
	NodesReady time.Duration
	// Client may do everything, and knows the kinds of KubeVirt.
	Client client.WithWatch
	// Clientset may do everything.
	Clientset kubernetes.Interface
}

// Start starts a cluster and returns when its nodes are Ready and have the images. The cluster outlives ctx: it runs until Stop, or
// until this process ends. A start that fails leaves nothing behind but the logs, in the folder that the error names.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	names, images := o.Nodes, o.Images
	if len(names) == 0 {
		names = []string{"node-a", "node-b"}
	}
	if images == nil {
		var err error
		if images, err = archives(); err != nil {
			return nil, err
		}
	}
	o.Rig.Kubelets, o.Rig.Bare = true, true
	r, err := rig.Start(ctx, o.Rig)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Rig: r, Nodes: make([]*rig.KubeletNode, len(names))}
	if err := c.start(ctx, names, images); err != nil {
		r.Keep()
		err = fmt.Errorf("start a cluster, logs are in %s/log: %w", r.Dir(), err)
		return nil, errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// Stop ends the cluster; see [rig.Rig.Stop].
func (c *Cluster) Stop(ctx context.Context) error { return c.Rig.Stop(ctx) }

// archives are those that "make images" made.
func archives() ([]string, error) {
	bin, err := rig.BinDir()
	if err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(bin, "images", "*.tar"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w (no archive in %s)", errNoImages, filepath.Join(bin, "images"))
	}
	return found, nil
}

func (c *Cluster) start(ctx context.Context, names, images []string) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, virtv1.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config := c.Rig.Config(rig.UserAdmin)
	var err error
	if c.Clientset, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if c.Client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	began, ready := time.Now(), make([]time.Duration, len(names))
	for i, name := range names {
		group.Go(func() error {
			n, err := c.Rig.StartKubeletNode(ctx, rig.KubeletNodeOptions{Name: name})
			if err != nil {
				return err
			}
			c.Nodes[i], ready[i] = n, time.Since(began)
			return n.LoadImages(ctx, images...)
		})
	}
	err = group.Wait()
	c.NodesReady = slices.Max(ready)
	return err
}
