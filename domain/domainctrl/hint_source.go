// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain/informer"
)

// Source requests a pass over a VMI whenever its domain changes, and once over every existing
// domain at the start. Requests carry namespace and name of the VMI, from the domain's name; see
// [domain.Name]. Domains with names of another form are left out; those of other users with such a
// name are not: only their metadata distinguishes them, which the pass reads anyway.
//
// The informer's owner runs it, in the same manager for example. The controller starts without
// waiting for it, because a hypervisor that cannot be reached proves nothing about any VMI; see
// [informer.Informer.HasSynced].
func Source(i *informer.Informer) source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		changes := i.Watch(ctx)
		go func() {
			for c := range changes {
				if key, ours := keyOf(c.Name); ours {
					q.Add(reconcile.Request{NamespacedName: key})
				}
			}
		}()
		return nil
	})
}

// keyOf splits the name of a domain; a namespace contains no underscore.
func keyOf(name string) (types.NamespacedName, bool) {
	ns, n, ours := strings.Cut(name, "_")
	return types.NamespacedName{Namespace: ns, Name: n}, ours && ns != "" && n != ""
}
