// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	exportv1 "kubevirt.io/api/export/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// The stock stages in order, by the names that Before, After, Replace and Remove take.
func ExampleDefault() {
	names := []string{
		template.StageValidate, template.StageNetworkSpec, template.StageSupported, template.StageHooks, template.StageMetadata,
		template.StagePod, template.StageSecurity, template.StageCompute, template.StageConsole, template.StageResources,
		template.StageDevices, template.StageHostDevices, template.StageNetDevices, template.StageRuntime,
		template.StageConfigMounts, template.StageVolumes, template.StageCloudInit, template.StageCredentials,
		template.StageBackend, template.StageImages, template.StageImageCopies, template.StageHookSockets,
		template.StageHugepages, template.StageHotplug, template.StageNetworkInfo, template.StageVirtiofs,
		template.StageSidecars, template.StageProbes, template.StageNodeSelector, template.StageAffinity,
		template.StageReservations, template.StageScheduling, template.StageNetwork, template.StageMesh, template.StageStorage,
		template.StageTemporary, template.StageHotplugPod, template.StageAttachment, template.StageTrigger,
		template.StageMigration, template.StageMigrationCPU, template.StageSELinux, template.StageMCS, template.StageExporter,
		template.StageExportServer,
	}
	fmt.Println(slices.Equal(template.Default().Stages(), names))
	// Output: true
}

// The names of Pods follow from the UIDs of their objects, so that a Pod is found, and not created twice, without state.
func ExampleLauncherName() {
	vmi := newVMI(named("web"))
	fmt.Println(template.LauncherName(vmi))
	fmt.Println(template.TemporaryName(vmi))
	fmt.Println(template.TargetName(vmi, "5678"))
	launcher := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "9abc"}}
	fmt.Println(template.AttachmentName(launcher, map[string]types.UID{"data": "def0"}))
	fmt.Println(template.TriggerName(launcher, "data", "def0"))
	// Output:
	// virt-launcher-web-fcsw4lddrs
	// virt-launcher-web-jhd754pb3w
	// virt-launcher-web-7gkl26pgnv
	// hp-volume-sekve37uvlhz5m7vsfia
	// hp-volume-ovffl75mjbgncnfn6f4o
}

// An exporter serves claims to the holders of a token.
func ExampleExporterName() {
	export := &render.Export{
		Object: &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "backup", UID: "1234"}},
		Server: &render.ExportServer{
			Claims:            []*corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}},
			CertificateSecret: "backup-certificate", TokenSecret: "backup-token",
		},
	}
	pod, err := template.Default().Exporter(template.Input{
		Config: template.Config{ExporterImage: "example.com/virt-exportserver:v1"}, Export: export,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pod.Name == template.ExporterName(export))
	for _, v := range pod.Spec.Volumes {
		fmt.Println(v.Name)
	}
	// Output:
	// true
	// certificates
	// token
	// data
}
