// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Folders in which sidecars meet the launcher.
const (
	hookSocketsDir   = "/var/run/kubevirt-hooks"
	pluginSocketsDir = "/var/run/kubevirt-plugin"
	podInfoDir       = "/etc/podinfo"
)

// checkSidecar refuses what would make a Pod that the API server refuses or that cannot start.
func checkSidecar(in Input, s *Sidecar) (errs []error) {
	at := s.From
	if s.Image == "" && in.Config.SidecarShimImage == "" {
		errs = append(errs, invalid(at+".image", "is empty, and there is no default", "name an image or set Config.SidecarShimImage"))
	}
	if strings.TrimSpace(s.Image) != s.Image {
		errs = append(errs, invalid(at+".image", fmt.Sprintf("%q begins or ends with white space", s.Image), "remove it"))
	}
	policies := []corev1.PullPolicy{"", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}
	if !slices.Contains(policies, s.PullPolicy) {
		errs = append(errs, invalid(at+".imagePullPolicy", fmt.Sprintf("%q is unknown", s.PullPolicy), "use Always, IfNotPresent or Never"))
	}
	taken := map[string]string{hookSocketsDir: "the sockets of hooks"}
	if s.DeviceInfo {
		taken[podInfoDir] = "the network's devices"
	}
	if s.ConfigMap != nil {
		errs = append(errs, checkSidecarConfigMap(in, at+".configMap", s.ConfigMap)...)
		errs = append(errs, checkSidecarPath(at+".configMap.hookPath", s.ConfigMap.HookPath, taken)...)
	}
	if s.Claim != nil {
		errs = append(errs, checkSidecarClaim(in, at+".pvc", s.Claim)...)
		errs = append(errs, checkSidecarPath(at+".pvc.volumePath", s.Claim.VolumePath, taken)...)
	}
	if s.Claim != nil && s.Claim.SharedComputePath != "" {
		errs = append(errs, checkSidecarPath(at+".pvc.sharedComputePath", s.Claim.SharedComputePath, map[string]string{})...)
	}
	return errs
}

func checkSidecarConfigMap(in Input, at string, c *SidecarConfigMap) (errs []error) {
	if problems := validation.IsConfigMapKey(c.Key); len(problems) > 0 {
		errs = append(errs, invalid(at+".key", fmt.Sprintf("%q: %s", c.Key, problems[0]), "name a key of the ConfigMap"))
	}
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		return append(errs, invalid(at+".name", fmt.Sprintf("%q: %s", c.Name, problems[0]), "name a ConfigMap of the guest's namespace"))
	}
	if !in.Facts.ConfigMaps[c.Name] {
		errs = append(errs, &Error{
			Field: at + ".name", Reason: fmt.Sprintf("ConfigMap %q is not known", c.Name),
			Remedy: "create the ConfigMap in the namespace of the guest", Err: ErrMissingFact,
		})
	}
	return errs
}

// checkSidecarClaim knows the claim only if the guest uses it as well; else the Pod waits for it.
func checkSidecarClaim(in Input, at string, c *SidecarClaim) []error {
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		return []error{invalid(at+".name", fmt.Sprintf("%q: %s", c.Name, problems[0]), "name a PersistentVolumeClaim of the guest's namespace")}
	}
	if claim := in.Facts.Claims[c.Name]; claim != nil && isBlock(claim) {
		return []error{invalid(at+".name", fmt.Sprintf("claim %q is a block device", c.Name), "use a claim with a file system")}
	}
	return nil
}

// checkSidecarPath refuses what is no place for a mount, and a place that is taken already.
func checkSidecarPath(at, p string, taken map[string]string) []error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, ":\x00") {
		return []error{invalid(at, fmt.Sprintf("%q is no clean absolute path", p), "use a path like /usr/bin/onDefineDomain")}
	}
	if what, ok := taken[p]; ok {
		return []error{invalid(at, fmt.Sprintf("%s is the place of %s", p, what), "use another path")}
	}
	taken[p] = at
	return nil
}
