// SPDX-License-Identifier: Apache-2.0

// Package templatectrl reads the input of package template from a cluster, by the readers of controller-runtime. Package
// template itself never reads an API: its callers gather the input first.
//
// A [Gatherer] reads all of it:
//
//	KubeVirt(ctx)            the object of the cluster's configuration, for template.ConfigFrom
//	Facts(ctx, vmi, config)  render.Facts: the objects that the VMI refers to
//	TargetFacts(…, m)        the same for the target Pod of a migration
//	SourceNode(ctx, pod)     for render.Migration: the source Node of a migration
//	ClaimNames(vmi)          the claims to watch, so that the VMI is reconciled when one is created
//
// A missing object is no error here, except for the VMI's Namespace. It is omitted from the facts, and the renderer reports
// the field that requires it by render.ErrMissingFact.
//
// # Reads
//
//	Client  PersistentVolumeClaims  by name, and by label in the VMI's namespace
//	        ResourceQuotas          those of the VMI's namespace
//	        Namespaces, Nodes       by name
//	        KubeVirts               all
//	Live    ConfigMaps              by name, metadata only, if a hook sidecar names one
//	        NetworkAttachmentDefinitions
//	                                by name, metadata only, if feature gate ExternalNetResourceInjection is off
//
// A manager's client starts a cache of a kind on its first read, which requires get, list and watch in all of the manager's
// namespaces. Kinds that only a few VMIs of a cluster need are read by Live, so that no process caches all ConfigMaps of
// the cluster; get suffices for them. Secrets are not read at all.
package templatectrl
