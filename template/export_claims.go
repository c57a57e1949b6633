// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/template/render"
)

// exportedClaim is a claim of the export server.
type exportedClaim struct {
	at    string // path in the input
	dir   string // name of the folder or device, by which KubeVirt's controller finds the links to it
	claim *corev1.PersistentVolumeClaim
}

// exportedClaims returns the claims of the export server in order. It reports all faults.
func exportedClaims(d *render.Draft) (all []exportedClaim, err error) {
	var errs []error
	export := d.Input().Export
	for i, claim := range export.Server.Claims {
		at := fmt.Sprintf("Input.Export.Server.Claims[%d]", i)
		switch {
		case claim == nil || claim.Name == "":
			errs = append(errs, render.Invalid(at, "name must be set", "use claims read from the API server"))
			continue
		case claim.Namespace != "" && claim.Namespace != export.Object.Namespace:
			errs = append(errs, render.Invalid(at, "must be in the namespace of the export", "use claims in namespace "+export.Object.Namespace))
			continue
		}
		s := exportedClaim{at: at, dir: exportDir(claim.Name), claim: claim}
		if j := slices.IndexFunc(all, func(o exportedClaim) bool { return o.dir == s.dir }); j >= 0 {
			errs = append(errs, render.Invalid(at, fmt.Sprintf("%q and %q of %s have the same name in the exporter", claim.Name, all[j].claim.Name, all[j].at),
				"serve one of them with another export"))
			continue
		}
		all = append(all, s)
	}
	return all, errors.Join(errs...)
}

// exportDir converts the name of a claim to that of a volume.
func exportDir(claim string) string {
	name := strings.ReplaceAll(claim, ".", "-")
	if len(name) <= maxLabel {
		return name
	}
	return joinName(exportPrefix, name)
}

// serve adds the claim to the Pod, with the variables for the path of its content and its URIs on the server.
func (s exportedClaim) serve(d *render.Draft, index int) {
	from := d.From(s.at)
	volume := s.dir
	if slices.Contains([]string{certificateVolume, tokenVolume, manifestVolume}, volume) {
		volume = "claim-" + volume
	}
	from.Volume(corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.claim.Name},
	}})
	path := "/export-volumes/" + s.dir
	if isBlock(s.claim) {
		path = "/dev" + path
		from.Container(exporterContainer).Device(corev1.VolumeDevice{Name: volume, DevicePath: path})
	} else {
		from.Container(exporterContainer).Mount(corev1.VolumeMount{Name: volume, MountPath: path, ReadOnly: true})
	}
	env := func(name, value string) {
		from.Container(exporterContainer).Env(corev1.EnvVar{Name: fmt.Sprintf("VOLUME%d_EXPORT_%s", index, name), Value: value})
	}
	uri := "/volumes/" + s.claim.Name
	env("PATH", path)
	if holdsDisk(s.claim) {
		env("RAW_URI", uri+"/disk.img")
		env("RAW_GZIP_URI", uri+"/disk.img.gz")
		return
	}
	env("ARCHIVE_URI", uri+"/disk.tar.gz")
	env("DIR_URI", uri+"/dir/")
}

// holdsDisk reports whether a claim holds one disk image, not a folder. CDI annotates the claims it fills; the content of a
// DataVolume is a disk unless annotated otherwise.
func holdsDisk(claim *corev1.PersistentVolumeClaim) bool {
	if isBlock(claim) {
		return true
	}
	if content, ok := claim.Annotations["cdi.kubevirt.io/storage.contentType"]; ok {
		return content == "" || content == "kubevirt"
	}
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.Kind == "DataVolume" && strings.HasPrefix(owner.APIVersion, "cdi.kubevirt.io/")
}
