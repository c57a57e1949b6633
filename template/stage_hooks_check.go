// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/virtloom/virtloom/template/render"
)

// Folders that sidecars share with the launcher.
const (
	hookSocketsDir   = "/var/run/kubevirt-hooks"
	pluginSocketsDir = "/var/run/kubevirt-plugin"
	podInfoDir       = "/etc/podinfo"
)

// checkSidecar rejects sidecars that the API server would reject or that cannot start.
func checkSidecar(in Input, s *render.Sidecar) (errs []error) {
	at := s.From
	if s.Image == "" && in.Config.SidecarShimImage == "" {
		errs = append(errs, render.Invalid(at+".image", "must be set without a default", "set an image or Config.SidecarShimImage"))
	}
	if strings.TrimSpace(s.Image) != s.Image {
		errs = append(errs, render.Invalid(at+".image", fmt.Sprintf("%q must not begin or end with white space", s.Image), "remove it"))
	}
	policies := []corev1.PullPolicy{"", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}
	if !slices.Contains(policies, s.PullPolicy) {
		errs = append(errs, render.Invalid(at+".imagePullPolicy", fmt.Sprintf("%q is not supported", s.PullPolicy), "use Always, IfNotPresent or Never"))
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

func checkSidecarConfigMap(in Input, at string, c *render.SidecarConfigMap) (errs []error) {
	if problems := validation.IsConfigMapKey(c.Key); len(problems) > 0 {
		errs = append(errs, render.Invalid(at+".key", fmt.Sprintf("%q: %s", c.Key, problems[0]), "use a key of the ConfigMap"))
	}
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		return append(errs, render.Invalid(at+".name", fmt.Sprintf("%q: %s", c.Name, problems[0]), "use a ConfigMap of the VMI's namespace"))
	}
	if !in.Facts.ConfigMaps[c.Name] {
		errs = append(errs, &render.Error{
			Field: at + ".name", Reason: fmt.Sprintf("ConfigMap %q not found", c.Name),
			Remedy: "create the ConfigMap in the namespace of the VMI", Err: render.ErrMissingFact,
		})
	}
	return errs
}

// checkSidecarClaim knows the claim only if a volume of the VMI uses it as well; otherwise the Pod waits for it.
func checkSidecarClaim(in Input, at string, c *render.SidecarClaim) []error {
	if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		return []error{render.Invalid(at+".name", fmt.Sprintf("%q: %s", c.Name, problems[0]), "use a PersistentVolumeClaim of the VMI's namespace")}
	}
	if claim := in.Facts.Claims[c.Name]; claim != nil && isBlock(claim) {
		return []error{render.Invalid(at+".name", fmt.Sprintf("claim %q must not be a block device", c.Name), "use a claim with volumeMode Filesystem")}
	}
	return nil
}

// checkSidecarPath rejects an invalid mount path, and one that is already in use.
func checkSidecarPath(at, p string, taken map[string]string) []error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, ":\x00") {
		return []error{render.Invalid(at, fmt.Sprintf("%q must be a clean absolute path", p), "use a path like /usr/bin/onDefineDomain")}
	}
	if what, ok := taken[p]; ok {
		return []error{render.Invalid(at, fmt.Sprintf("%s is already used by %s", p, what), "use another path")}
	}
	taken[p] = at
	return nil
}
