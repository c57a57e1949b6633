// SPDX-License-Identifier: Apache-2.0

// Package rbac holds the permissions of the daemons, as manifests for "kubectl apply -f" and for
// programs: roles and their bindings for the controller and the node agents, and the
// ValidatingAdmissionPolicies that confine an agent to the VMIs of its node, protect the ownership of VMIs from users, and
// keep migrations immutable.
//
// # Where rights come from
//
// The rules of the roles stand beside the code that needs them, as markers (+kubebuilder:rbac), from which
// "make generate" makes controller_role.yaml and node_role.yaml. Those of the packages domainctrl, nodectrl
// and refdaemon/nodecert are the agents', those of refdaemon/guarded are both's, all others the controller's. Deleting the code that needs a right
// removes the right.
//
// # Identities
//
// The controller is the user [ControllerUser] or the service account virtloom-controller in
// [Namespace]. A node agent is the user [NodeUser] in [NodesGroup], or the service account
// virtloom-node in [NodeNamespace]; its Node is named by the user's name, or by the claim
// authentication.kubernetes.io/node-name that the API server puts into the token of a Pod. An agent
// whose identity names no Node may write events only. Any agent may request a certificate of the signer virtloom.dev/node-agent;
// the controller grants one to the service account only, for the Node that its token names.
//
// # What users may not write
//
// Status, reserved labels and annotations (package vmi/admit) and the finalizer of VMIs and migrations; reserved labels
// and annotations in templates of VMIs (VirtualMachines, replica sets, pools, instance types, preferences); and the
// properties of a launcher Pod: labels, annotations, and a VMI as its controller. Even an administrator of a namespace may
// not write these: only the controller, agents within their limits, KubeVirt's service accounts by name, and the group
// system:masters.
//
// # Who may migrate how
//
// A migration with priority system-critical goes before all others; one with the annotation
// kubevirt.io/evacuationMigration or kubevirt.io/workloadUpdateMigration counts as created by a
// controller, which may delete it. These, and all annotations that begin with virtloom.dev/, are for the controller, for
// KubeVirt's service accounts in namespace kubevirt and for the group system:masters. The priorities user-triggered and
// system-maintenance are for everybody who may create migrations.
// Migrations restored from a backup must not have these annotations, unless one of the above creates them.
//
// # Who may read metrics
//
// Subjects bound to the ClusterRole virtloom-metrics-reader, or to virtloom-cachestate-reader for
// "refdaemon explain --controller". Both come without a binding.
//
// # Which Secrets an agent may read
//
// None. Cloud-init data, keys, answer files, ACPI tables and disks of Secrets are read from the volumes that the kubelet has
// mounted for the launcher Pod.
//
// # What an agent may write
//
// VMIs of its node and VMIs that migrate to it (the labels kubevirt.io/nodeName and
// kubevirt.io/migrationTargetNodeName): their status, their lease, and the labels of their location.
// It cannot name another node as owner or target, take a VMI that is not handed to it, change a spec,
// or write metadata of other components; the target of a migration does not report the phase before
// the guest runs there. It may change its own Node only, and there the labels and the annotation of
// the node's capabilities.
//
// Two things are not confined to the node. The two ends of a migration trust each other with that
// VMI's status and lease. And reading: RBAC roles have no label selectors, so an agent can read every
// VMI and, by name, every object that a VMI's disks may use. Requests to authorizers carry the
// selectors of a list or watch, so a cluster with a webhook in its AuthorizationConfiguration can
// deny an agent all lists and watches that are not restricted to its own node's VMIs
// (labelSelector kubevirt.io/nodeName or kubevirt.io/migrationTargetNodeName, as the agents send it).
package rbac

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	// Namespace is where the controller runs if it runs as a Pod, and where its replicas elect a
	// leader.
	Namespace = "virtloom-system"
	// NodeNamespace is where the agents run if they run as Pods, which need privileges.
	NodeNamespace = "virtloom-node"
	// ControllerUser is the user name of the controller.
	ControllerUser = "virtloom-controller"
	// NodesGroup is the group of all node agents.
	NodesGroup = "virtloom:nodes"
	// NodeUserPrefix begins the user names of node agents.
	NodeUserPrefix = "virtloom:node:"
)

// NodeUser returns the user name of a node's agent.
func NodeUser(node string) string { return NodeUserPrefix + node }

//go:embed *.yaml
var files embed.FS

// order puts referenced objects first.
var order = []string{
	"namespace.yaml", "controller_role.yaml", "controller.yaml", "node_role.yaml", "node.yaml", "authority.yaml", "node-policy.yaml",
	"controller-policy.yaml", "guest-policy.yaml", "migration-policy.yaml", "metrics.yaml",
}

// longestPrefix is the number of bytes in which a decoder distinguishes YAML from JSON.
const longestPrefix = 4096

// Manifests returns all objects in an order in which they can be created. Every call decodes them
// anew, so the caller may modify them.
func Manifests() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, name := range order {
		objects, err := readManifest(name)
		if err != nil {
			return nil, fmt.Errorf("manifests in %s: %w", name, err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

func readManifest(name string) ([]*unstructured.Unstructured, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, longestPrefix); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if err == nil && len(o.Object) > 0 {
			objects = append(objects, o)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return slices.Clip(objects), errors.Join(err, f.Close())
		}
	}
}
