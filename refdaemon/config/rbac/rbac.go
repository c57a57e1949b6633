// SPDX-License-Identifier: Apache-2.0

// Package rbac holds what the daemons may do in a cluster, as manifests for "kubectl apply -f" and for
// programs: roles and their bindings for the controller and for the node agents, and the
// ValidatingAdmissionPolicies that keep an agent to the guests of its node, users from what says who has a guest, and a
// migration what it was created as.
//
// # Where rights come from
//
// The rules of the roles stand beside the code that needs them, as markers (+kubebuilder:rbac), from which
// "make generate" makes controller_role.yaml and node_role.yaml. Those of the packages domainctrl and nodectrl
// are the agents', those of refdaemon/guarded are both's, all others the controller's. A right is taken away by deleting the code that needs it.
//
// # Identities
//
// The controller is the user [ControllerUser] or the service account virtloom-controller in
// [Namespace]. A node agent is the user [NodeUser] in [NodesGroup], or the service account
// virtloom-node in [NodeNamespace]; its Node is named by the user's name, or by the claim
// authentication.kubernetes.io/node-name that the API server puts into the token of a Pod. An agent
// whose identity names no Node may write nothing but events.
//
// # What no user may write
//
// Status, reserved labels and annotations (package vmi/admit) and the finalizer of guests and migrations; reserved labels
// and annotations in what guests are made from (VirtualMachines, replica sets, pools, instance types, preferences); and what makes a Pod
// that of a guest: labels, annotations, and a guest as its controller. Whoever may do everything in a namespace may not
// do that there: it is for the controller, for agents as far as they may, for KubeVirt's service accounts by name, and for
// the group system:masters.
//
// # Who may migrate how
//
// A migration with priority system-critical goes before all others; one with the annotation
// kubevirt.io/evacuationMigration or kubevirt.io/workloadUpdateMigration is taken for one that a
// controller made, which may delete it, and so for all annotations that begin with virtloom.dev/. They are for the controller, for KubeVirt's service accounts in
// namespace kubevirt and for the group system:masters. The priorities user-triggered and
// system-maintenance are for everybody who may create migrations: users need one that is of use to them.
// Whoever restores migrations from a backup has to leave out these annotations, or be one of the above.
//
// # Who may see metrics
//
// Whoever is bound to the ClusterRole virtloom-metrics-reader, or virtloom-sight-reader for what
// "refdaemon explain --controller" asks. Both come without a binding.
//
// # Which Secrets an agent may read
//
// None, unless the ClusterRole virtloom-node-secrets is bound to the agents in a namespace, which comes without a binding: for
// guests whose cloud-init data, answer files or disks are Secrets that no kubelet mounts for the agent.
//
// # What an agent may write
//
// Guests that its node has, or that are about to move there (the labels kubevirt.io/nodeName and
// kubevirt.io/migrationTargetNodeName): their status, their lease, and the labels that say where they
// are. It cannot name another node as owner or target, take a guest that is not handed to it, change
// a spec, or touch metadata that is somebody else's; a node that a guest is moving to says nothing of
// its phase before the guest is there. Of Nodes it may change its own, and there the labels and the
// annotation that tell what the node can do.
//
// Two things are not narrowed to the node. The two ends of a migration trust each other with that
// guest's status and lease. And reading: the roles of RBAC know no label selectors, so an agent can
// read every guest and, by name, every object that a guest's disks may be made of. Requests to
// authorizers carry the selectors of a list or watch, so a cluster with a webhook in its
// AuthorizationConfiguration can refuse an agent those that do not ask for its own node's guests
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

// NodeUser is the user name of the agent of a node.
func NodeUser(node string) string { return NodeUserPrefix + node }

//go:embed *.yaml
var files embed.FS

// order puts what others refer to first.
var order = []string{
	"namespace.yaml", "controller_role.yaml", "controller.yaml", "node_role.yaml", "node.yaml", "secrets.yaml", "node-policy.yaml",
	"controller-policy.yaml", "guest-policy.yaml", "migration-policy.yaml", "metrics.yaml",
}

// longestPrefix is how far a decoder looks for what tells YAML from JSON.
const longestPrefix = 4096

// Manifests returns all objects in an order in which they can be created. Every call decodes them
// anew, so the caller may change what it gets.
func Manifests() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, name := range order {
		objects, err := read(name)
		if err != nil {
			return nil, fmt.Errorf("manifests in %s: %w", name, err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

func read(name string) ([]*unstructured.Unstructured, error) {
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
