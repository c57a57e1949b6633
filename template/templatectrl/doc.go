// SPDX-License-Identifier: Apache-2.0

// Package templatectrl reads from a cluster what package template renders from, by the readers of controller-runtime.
// Package template itself never talks to an API: whoever renders gathers first.
//
// A [Gatherer] is all of it:
//
//	KubeVirt(ctx)            the object of the cluster's configuration, for template.ConfigFrom
//	Facts(ctx, vmi, config)  template.Facts: what the cluster says about the objects the guest refers to
//	TargetFacts(…, m)        the same for the Pod that a migration makes
//	SourceNode(ctx, pod)     for template.Migration: the Node that a migration leaves
//	ClaimNames(vmi)          whose claims a controller watches, so that a guest is looked at again when one appears
//
// What does not exist is no error here, the guest's Namespace excepted. It stays out of the facts, and whoever renders is
// told by template.ErrMissingFact which field asks for it.
//
// # What is read, and from where
//
//	Client  PersistentVolumeClaims  by name, and by label in the guest's namespace
//	        ResourceQuotas          those of the guest's namespace
//	        Namespaces, Nodes       by name
//	        KubeVirts               all
//	Live    ConfigMaps              by name, metadata only, if a hook sidecar names one
//	        NetworkAttachmentDefinitions
//	                                by name, metadata only, if feature gate ExternalNetResourceInjection is off
//
// A manager's client begins a cache of a kind upon the first read of it, and needs to get, list and watch it throughout
// the manager's namespaces. Nothing is read by Live that more than a few guests of a cluster need, so that no process keeps
// the ConfigMaps of all the cluster in its memory; to get them is enough. Secrets are not read at all.
package templatectrl
