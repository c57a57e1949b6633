// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
)

// installDefinitions creates KubeVirt's definitions and waits until the API server serves them. It
// looks for them in discovery, where they appear once established: to read the definitions
// themselves, which are large, over and over would hold up what it waits for.
func (r controlPlane) installDefinitions(ctx context.Context, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	client, err := clientset.NewForConfig(r.Config(UserAdmin))
	if err != nil {
		return fmt.Errorf("install definitions: %w", err)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelRequests)
	wanted := map[string][]string{} // by group and version
	for _, d := range definitions {
		gv := d.Spec.Group + "/" + d.Spec.Versions[0].Name
		wanted[gv] = append(wanted[gv], d.Spec.Names.Plural)
		group.Go(func() error {
			_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(groupCtx, d, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("install definition %s: %w", d.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for gv, plurals := range wanted {
		if err := waitServed(ctx, client.Discovery(), gv, plurals); err != nil {
			return err
		}
	}
	r.logf("%d definitions are served", len(definitions))
	return nil
}

// waitServed waits until discovery has the resources of a group and version.
func waitServed(ctx context.Context, client discovery.DiscoveryInterface, gv string, plurals []string) error {
	missing := plurals
	err := wait.PollUntilContextCancel(ctx, 2*probeInterval, true, func(context.Context) (bool, error) {
		list, err := client.ServerResourcesForGroupVersion(gv)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		missing = slices.DeleteFunc(slices.Clone(missing), func(plural string) bool {
			return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural })
		})
		return len(missing) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("definitions %v of %s are not served: %w", missing, gv, err)
	}
	return nil
}
