// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/nodestandin"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// hold is an annotation of a VMI that stops the nodes before a step: one of
// holdReady, holdBegin, holdTakeOver.
const hold = "test.virtloom.dev/hold"

const (
	holdReady    = string(nodestandin.Ready)
	holdBegin    = string(nodestandin.Begin)
	holdTakeOver = string(nodestandin.TakeOver)
)

// startNodes runs stand-ins of the node agents, whose migrations take that long. The VMIs of
// these tests run already.
func (c *cluster) startNodes(t *testing.T, takes time.Duration) {
	t.Helper()
	mgr := c.manager(t, "all-nodes")
	n := &nodestandin.Nodes{
		Client: mgr.GetClient(), Takes: func() time.Duration { return takes },
		Holds: func(vmi *v1.VirtualMachineInstance, s nodestandin.Step) bool {
			return s == nodestandin.Accept || vmi.Annotations[hold] == string(s)
		},
	}
	if err := n.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	rigtest.Run(t, mgr.Start)
}

// holdAt sets or, with the empty string, clears the hold of the VMI.
func (c *cluster) holdAt(t *testing.T, vmi *v1.VirtualMachineInstance, step string) {
	t.Helper()
	was := vmi.DeepCopy()
	metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, hold, step)
	if err := c.Patch(t.Context(), vmi, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
}
