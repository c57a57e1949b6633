// SPDX-License-Identifier: Apache-2.0

package render

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"
)

// missingInput returns the name of the first missing input without which a Pod of the kind cannot be named or run.
func missingInput(kind PodKind, in Input) string {
	if kind == ExporterPod {
		return missingExport(in)
	}
	if in.VMI == nil {
		return "Input.VMI"
	}
	if missing := missingMetadata(in.VMI); missing != "" {
		return missing
	}
	switch {
	case in.Config.LauncherImage == "":
		return "Config.LauncherImage"
	case kind&HotplugPods != 0:
		return missingHotplug(kind, in)
	case kind == TargetPod && in.Migration == nil:
		return "Input.Migration"
	case kind == TargetPod && in.Migration.SourcePod == nil && !in.Migration.Receives:
		return "Input.Migration.SourcePod"
	}
	return missingMigration(kind, in.Migration)
}

// missingMetadata returns the name of missing metadata that every object of an API server has.
func missingMetadata(o metav1.Object) string {
	switch {
	case o.GetName() == "":
		return "metadata.name"
	case o.GetNamespace() == "":
		return "metadata.namespace"
	case o.GetUID() == "":
		return "metadata.uid"
	default:
		return ""
	}
}

func missingMigration(kind PodKind, m *Migration) string {
	if kind&(TargetPod|AttachmentPod) != 0 && m != nil && (m.UID == "" || m.Name == "") {
		return "Input.Migration.UID and Name"
	}
	return ""
}

func missingHotplug(kind PodKind, in Input) string {
	h := in.Hotplug
	switch {
	case h == nil:
		return "Input.Hotplug"
	case h.Owner == nil || h.Owner.Name == "" || h.Owner.UID == "":
		return "Input.Hotplug.Owner with name and UID"
	case kind == AttachmentPod && h.Owner.Spec.NodeName == "":
		return "Input.Hotplug.Owner.Spec.NodeName"
	case kind == AttachmentPod && len(h.Volumes) == 0:
		return "Input.Hotplug.Volumes"
	case kind == TriggerPod && len(h.Volumes) != 1:
		return "Input.Hotplug.Volumes with exactly one name"
	}
	return missingMigration(kind, in.Migration)
}

func missingExport(in Input) string {
	e := in.Export
	if e == nil || e.Object == nil {
		return "Input.Export.Object"
	}
	if missing := missingMetadata(e.Object); missing != "" {
		return missing
	}
	switch {
	case in.Config.ExporterImage == "":
		return "Config.ExporterImage"
	case e.Server != nil && e.Server.CertificateSecret == "":
		return "Input.Export.Server.CertificateSecret"
	case e.Server != nil && e.Server.TokenSecret == "":
		return "Input.Export.Server.TokenSecret"
	default:
		return ""
	}
}

// Object returns kind, namespace and name of the object that a Pod is rendered for, as in Error.Object.
func (in Input) Object(kind PodKind) string {
	if kind == ExporterPod {
		if in.Export == nil {
			return "VirtualMachineExport"
		}
		return exportName(in.Export.Object)
	}
	return vmiName(in.VMI)
}

func vmiName(vmi *v1.VirtualMachineInstance) string {
	if vmi == nil {
		return "VirtualMachineInstance"
	}
	return "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name
}

func exportName(e *exportv1.VirtualMachineExport) string {
	if e == nil {
		return "VirtualMachineExport"
	}
	return "VirtualMachineExport " + e.Namespace + "/" + e.Name
}
