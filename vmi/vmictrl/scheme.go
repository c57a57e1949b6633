// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// AddToScheme adds all kinds that a Reconciler reads or writes to the scheme.
func AddToScheme(s *runtime.Scheme) error {
	return errors.Join(corev1.AddToScheme(s), storagev1.AddToScheme(s), v1.AddToScheme(s), cdiv1.AddToScheme(s))
}
