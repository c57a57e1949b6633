// SPDX-License-Identifier: Apache-2.0

// Package pods holds the end-to-end tests of virtloom on real nodes: kubelets and containerd run its images, installed from its
// manifests, and guests run in their launcher Pods. Nothing of virtloom runs beside the cluster. It exports nothing.
package pods
