// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/refdaemon/config/crd"
)

// installDefinitions creates KubeVirt's definitions and waits until the API server serves them.
func (r *Rig) installDefinitions(ctx context.Context) error {
	definitions, err := crd.Definitions()
	if err != nil {
		return err
	}
	client, err := clientset.NewForConfig(r.Config(UserAdmin))
	if err != nil {
		return fmt.Errorf("install definitions: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelRequests)
	for _, definition := range definitions {
		group.Go(func() error {
			if err := install(ctx, client, definition); err != nil {
				return fmt.Errorf("install definition %s: %w", definition.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.logf("%d definitions are served", len(definitions))
	return nil
}

func install(ctx context.Context, client clientset.Interface, definition *apiextensionsv1.CustomResourceDefinition) error {
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 2*probeInterval, false, func(ctx context.Context) (bool, error) {
		got, err := definitions.Get(ctx, definition.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
			if c.Type == apiextensionsv1.NamesAccepted && c.Status == apiextensionsv1.ConditionFalse {
				return false, fmt.Errorf("%s: %s", c.Reason, c.Message)
			}
		}
		return false, nil
	})
}
