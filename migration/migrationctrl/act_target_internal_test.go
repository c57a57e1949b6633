// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
)

func TestCreateClaim_Errors(t *testing.T) {
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for name, tc := range map[string]struct {
		err                   error
		fails, quota, emitted bool
	}{
		"is there":   {err: apierrors.NewAlreadyExists(claims, "state")},
		"quota":      {err: apierrors.NewForbidden(claims, "state", errors.New("exceeded quota: team")), fails: true, quota: true},
		"no right":   {err: apierrors.NewForbidden(claims, "state", errors.New("not allowed")), fails: true, emitted: true},
		"is created": {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				return tc.err
			}})
			g := &gathered{}
			g.VMI = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "state"}}
			err := actor{s.r}.createClaim(t.Context(), g, migration.Action{Claim: claim})
			if (err != nil) != tc.fails || errors.Is(err, placement.ErrQuota) != tc.quota {
				t.Errorf("error is %v", err)
			}
			if emitted := len(s.recorded.Events) > 0; emitted != tc.emitted {
				t.Errorf("an event: %v, want %v", emitted, tc.emitted)
			}
		})
	}
}
