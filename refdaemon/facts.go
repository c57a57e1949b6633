// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// assumed returns the facts of a node that has everything the VMI requests, refined by the manifests: the options
// of the cluster, and which claims are block devices.
func assumed(c *offline.Cluster) convert.Facts {
	f, claims := assume.Facts(c.VMI), c.Claims()
	f.Cluster, f.SMBIOS = convert.ClusterFrom(c.KubeVirt)
	for i := range c.VMI.Spec.Volumes {
		v := &c.VMI.Spec.Volumes[i]
		src, known := f.Disks[v.Name]
		if claim := claims[claimOf(v)]; known && claim != nil {
			f.Disks[v.Name] = onClaim(src, v.Name, claim)
		}
	}
	return f
}

// claimOf returns the name of the claim behind a volume, empty if there is none.
func claimOf(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil && v.Ephemeral.PersistentVolumeClaim != nil:
		return v.Ephemeral.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name // the claim has its name
	default:
		return ""
	}
}

// onClaim returns the path of a claim's data in the launcher: /dev/VOLUME if it is a block device, or the device beside the files
// of hotplugged volumes.
func onClaim(src convert.DiskSource, volume string, claim *corev1.PersistentVolumeClaim) convert.DiskSource {
	for _, below := range []**convert.DiskSource{&src.DataStore, &src.Backing} {
		if *below != nil { // the guest does not write to the claim
			data := onClaim(**below, volume, claim)
			*below = &data
			return src
		}
	}
	src.Shared = slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
	if claim.Spec.VolumeMode == nil || *claim.Spec.VolumeMode != corev1.PersistentVolumeBlock {
		return src
	}
	src.Block = true
	if path.Base(src.Path) == "disk.img" {
		src.Path = "/dev/" + volume
	} else {
		src.Path = strings.TrimSuffix(src.Path, ".img")
	}
	return src
}

// overlayFacts overrides assumed facts with those of a file: fields one by one, lists as a whole, maps by entry. An
// interface whose network gets a bridge from the file has no link unless the file names one.
func overlayFacts(f *convert.Facts, file string, text []byte) error {
	fault := func(field, reason, remedy string) error {
		return &offline.Error{Source: offline.Source{File: file}, Object: "facts", Field: field, Reason: reason, Remedy: remedy, Err: render.ErrInvalid}
	}
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return fault("", "is neither YAML nor JSON: "+strings.Join(strings.Fields(err.Error()), " "), "correct that line")
	}
	var given convert.Facts
	unknown, err := strictjson.UnmarshalStrict(converted, &given)
	if err == nil {
		_, err = strictjson.UnmarshalStrict(converted, f)
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fault(wrong.Field, fmt.Sprintf("is a %s, which cannot be decoded into %s", wrong.Value, wrong.Type), "correct the value")
	}
	if err != nil {
		return fault("", strings.TrimPrefix(err.Error(), "json: "), "correct the value")
	}
	var errs []error
	for _, u := range unknown {
		_, field, _ := strings.Cut(u.Error(), `"`)
		errs = append(errs, fault(strings.TrimSuffix(field, `"`), "is an unknown or duplicate field",
			"correct its name (names are case-sensitive) or its place, or remove it"))
	}
	for network := range given.Bridges {
		if _, named := given.Links[network]; !named {
			delete(f.Links, network)
		}
	}
	return errors.Join(errs...)
}
