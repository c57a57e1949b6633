// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

// groupsOf are the groups of a user: those of virtloom's daemons and of what runs on a node have the rights they have in a real
// cluster, all others may do everything.
func groupsOf(user string) []string {
	switch {
	case user == UserController, user == userProxy, user == userFrontProxy:
		return nil
	case strings.HasPrefix(user, userKubelet):
		return []string{"system:nodes"}
	case strings.HasPrefix(user, rbac.NodeUserPrefix):
		return []string{rbac.NodesGroup}
	}
	return []string{"system:masters"}
}

// installPermissions gives virtloom's daemons their rights, and waits until they have them. The
// policies among them are in force a moment later, which no client that keeps to them notices.
func (r controlPlane) installPermissions(ctx context.Context) error {
	if r.options.Bare {
		return nil
	}
	objects, err := rbac.Manifests()
	if err != nil {
		return fmt.Errorf("install permissions: %w", err)
	}
	c, err := client.New(r.Config(UserAdmin), client.Options{})
	if err != nil {
		return fmt.Errorf("install permissions: %w", err)
	}
	for _, o := range objects {
		if err := c.Create(ctx, o); err != nil {
			return fmt.Errorf("install permissions: %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	clientset, err := kubernetes.NewForConfig(r.Config(UserAdmin))
	if err != nil {
		return fmt.Errorf("install permissions: %w", err)
	}
	for _, user := range []string{UserController, rbac.NodeUser("any")} {
		if err := waitAllowed(ctx, clientset, user); err != nil {
			return err
		}
	}
	return nil
}

// waitAllowed waits until the authorizer knows the rights of a daemon.
func waitAllowed(ctx context.Context, c kubernetes.Interface, user string) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: append(groupsOf(user), "system:authenticated"),
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "patch", Group: "kubevirt.io", Resource: "virtualmachineinstances"},
	}}
	err := wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		answer, err := c.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed, err
	})
	if err != nil {
		return fmt.Errorf("rights of user %q: %w", user, err)
	}
	return nil
}
