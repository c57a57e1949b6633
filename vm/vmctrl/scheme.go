// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// AddToScheme adds all kinds that a Reconciler reads or writes to the scheme.
func AddToScheme(s *runtime.Scheme) error {
	return errors.Join(corev1.AddToScheme(s), appsv1.AddToScheme(s), authorizationv1.AddToScheme(s), v1.AddToScheme(s),
		v1beta1.AddToScheme(s), cdiv1.AddToScheme(s))
}
