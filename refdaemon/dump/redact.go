// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// redactor removes sensitive data from objects.
type redactor struct {
	// key is the key of the marks; it is never stored, so that no value can be guessed from its mark.
	key []byte
}

func newRedactor() (*redactor, error) {
	r := &redactor{key: make([]byte, 32)}
	_, err := rand.Read(r.key)
	return r, err
}

// mark returns the replacement of a value: the same for equal values, empty for an empty one.
func (r *redactor) mark(value string) string {
	if value == "" {
		return ""
	}
	h := hmac.New(sha256.New, r.key)
	_, _ = h.Write([]byte(value)) // it never fails
	return "redacted-" + hex.EncodeToString(h.Sum(nil))[:12]
}

func (r *redactor) each(values []string) {
	for i := range values {
		values[i] = r.mark(values[i])
	}
}

func (r *redactor) values(of map[string]string) {
	for k, v := range of {
		of[k] = r.mark(v)
	}
}

// redacted returns a copy of the object without the data excluded from files.
func (r *redactor) redacted(o client.Object) client.Object {
	o, _ = o.DeepCopyObject().(client.Object)
	r.annotations(o)
	o.SetManagedFields(nil)
	switch o := o.(type) {
	case *v1.VirtualMachineInstance:
		r.vmi(&o.Spec)
	case *corev1.Pod:
		r.pod(o)
	case *corev1.Node:
		o.Status.Images = nil
	case *v1.KubeVirt:
		o.Spec.CustomizeComponents = v1.CustomizeComponents{}
		o.Status.Generations = nil
	case *storagev1.StorageClass:
		r.values(o.Parameters)
	case *cdiv1.DataVolume:
		o.Spec = cdiv1.DataVolumeSpec{}
	case *cdiv1.CDI:
		o.Spec, o.Status = cdiv1.CDISpec{}, cdiv1.CDIStatus{}
	case *cdiv1.CDIConfig:
		o.Spec, o.Status = cdiv1.CDIConfigSpec{}, cdiv1.CDIConfigStatus{FilesystemOverhead: o.Status.FilesystemOverhead}
	default:
		r.ofMachine(o)
	}
	return o
}

// keptDomains are the domains of annotations that controllers decide by.
var keptDomains = []string{
	"kubevirt.io", "virtloom.dev", "k8s.v1.cni.cncf.io", "multus-cni.io", "backup.velero.io", "istio.io",
	"descheduler.alpha.kubernetes.io", "storageclass.kubernetes.io",
}

// dropped are the domains and annotations among them that are removed all the same.
var dropped = []string{"cdi.kubevirt.io/storage.", "hooks.kubevirt.io/", v1.IgnitionAnnotation}

// keptAll are the annotations among those that are kept.
var keptAll = map[string]bool{"cdi.kubevirt.io/storage.contentType": true}

// hookSidecars is the annotation with a VMI's hooks, which are redacted one by one.
const hookSidecars = "hooks.kubevirt.io/hookSidecars"

// annotated has annotations.
type annotated interface {
	GetAnnotations() map[string]string
	SetAnnotations(map[string]string)
}

// annotations keeps the values of annotations that decisions depend on.
func (r *redactor) annotations(o annotated) {
	all := o.GetAnnotations()
	r.keep(all)
	o.SetAnnotations(all)
}

// keep marks the values of other annotations.
func (r *redactor) keep(all map[string]string) {
	for key, value := range all {
		switch {
		case key == hookSidecars:
			all[key] = r.hooks(value)
		case !keeps(key):
			all[key] = r.mark(value)
		}
	}
}

func keeps(key string) bool {
	if keptAll[key] {
		return true
	}
	for _, prefix := range dropped {
		if strings.HasPrefix(key, prefix) {
			return false
		}
	}
	domain, _, _ := strings.Cut(key, "/")
	for _, d := range keptDomains {
		if domain == d || strings.HasSuffix(domain, "."+d) {
			return true
		}
	}
	return false
}

// hooks keeps the images of a VMI's hooks and the ConfigMaps and claims that they name.
func (r *redactor) hooks(text string) string {
	var all []map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &all) != nil {
		return r.mark(text)
	}
	for _, hook := range all {
		for field := range hook {
			switch field {
			case "image", "imagePullPolicy", "configMap", "pvc":
			default:
				delete(hook, field)
			}
		}
	}
	kept, err := json.Marshal(all)
	if err != nil {
		return r.mark(text)
	}
	return string(kept)
}

func (r *redactor) vmi(g *v1.VirtualMachineInstanceSpec) {
	for i := range g.Volumes {
		v := &g.Volumes[i].VolumeSource
		if c := v.CloudInitNoCloud; c != nil {
			r.cloudInit(&c.UserData, &c.UserDataBase64, &c.NetworkData, &c.NetworkDataBase64)
		}
		if c := v.CloudInitConfigDrive; c != nil {
			r.cloudInit(&c.UserData, &c.UserDataBase64, &c.NetworkData, &c.NetworkDataBase64)
		}
	}
	if f := g.Domain.Firmware; f != nil && f.KernelBoot != nil {
		f.KernelBoot.KernelArgs = r.mark(f.KernelBoot.KernelArgs)
	}
	for _, p := range []*v1.Probe{g.LivenessProbe, g.ReadinessProbe} {
		if p == nil {
			continue
		}
		if p.Exec != nil {
			r.each(p.Exec.Command)
		}
		if p.HTTPGet != nil {
			p.HTTPGet.HTTPHeaders = nil
		}
	}
}

func (r *redactor) cloudInit(values ...*string) {
	for _, v := range values {
		*v = r.mark(*v)
	}
}

func (r *redactor) pod(p *corev1.Pod) {
	for _, all := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range all {
			bare(&all[i])
		}
	}
	for i := range p.Spec.EphemeralContainers {
		c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		bare(&c)
		p.Spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i].VolumeSource
		if v.CSI != nil {
			r.values(v.CSI.VolumeAttributes)
		}
		if v.FlexVolume != nil {
			r.values(v.FlexVolume.Options)
		}
	}
}

// bare removes environment, command, arguments and probes of a container.
func bare(c *corev1.Container) {
	c.Command, c.Args, c.Env, c.EnvFrom = nil, nil, nil, nil
	c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
}

// credentials and queries match the user and the query of a URL within JSON.
var (
	credentials = regexp.MustCompile(`://(?:[^/\s"\\@]|\\u[0-9a-f]{4})*@`)
	queries     = regexp.MustCompile(`(://[^\s"\\?]*)\?(?:[^\s"\\]|\\u[0-9a-f]{4})*`)
)

// withoutCredentials removes the credentials and queries of URLs from JSON, as messages may have some.
func withoutCredentials(text []byte) []byte {
	return queries.ReplaceAll(credentials.ReplaceAll(text, []byte("://redacted@")), []byte("$1?redacted"))
}
