// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/optional"
	"github.com/virtloom/virtloom/vm"
)

// A DataVolume that was not checked is denied: were CDI installed between the check and the creation, it would be created with the
// rights of the controller. And a tenant does not make the controller check any number of them.
func TestSources_NotChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		served    []schema.GroupVersionKind
		templates int
		want      string
	}{
		"CDI is not installed": {templates: 1, want: "install CDI"},
		"too many":             {served: []schema.GroupVersionKind{dvKind}, templates: vm.MaxDataVolumeTemplates + 1, want: "use 256 at most"},
	} {
		t.Run(name, func(t *testing.T) {
			mapper := meta.NewDefaultRESTMapper(nil)
			for _, kind := range tc.served {
				mapper.Add(kind, meta.RESTScopeNamespace)
			}
			r := &Reconciler{}
			if err := r.complete(); err == nil {
				t.Fatal("it needs no client") // and none is asked here
			}
			kinds, err := optional.Served(mapper, watcher{r}.optional())
			if err != nil {
				t.Fatal(err)
			}
			r.kinds = kinds
			g := &gathered{}
			g.VM = &v1.VirtualMachine{Spec: v1.VirtualMachineSpec{Template: &v1.VirtualMachineInstanceTemplateSpec{}, DataVolumeTemplates: make([]v1.DataVolumeTemplateSpec, tc.templates)}}
			for i := range g.VM.Spec.DataVolumeTemplates {
				g.VM.Spec.DataVolumeTemplates[i].Name = fmt.Sprint("disk-", i)
			}
			if err := (gatherer{r}).sources(t.Context(), g); err != nil {
				t.Fatal(err)
			}
			if len(g.Denied) != tc.templates || !strings.Contains(g.Denied["disk-0"], tc.want) || g.due.IsZero() {
				t.Errorf("%d of %d are denied, the first because %q, and looked at again at %v", len(g.Denied), tc.templates, g.Denied["disk-0"], g.due)
			}
		})
	}
}
