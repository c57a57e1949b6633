// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func TestRelief_ResourceQuota(t *testing.T) {
	quota := func(hard, enforced, used string) *corev1.ResourceQuota {
		list := func(n string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}
		}
		return &corev1.ResourceQuota{
			Spec:   corev1.ResourceQuotaSpec{Hard: list(hard)},
			Status: corev1.ResourceQuotaStatus{Hard: list(enforced), Used: list(used)},
		}
	}
	was := quota("2", "2", "1")
	for name, tt := range map[string]struct {
		is   *corev1.ResourceQuota
		want bool
	}{
		"nothing":                    {quota("2", "2", "1"), false},
		"more used":                  {quota("2", "2", "2"), false},
		"less used":                  {quota("2", "2", "0"), true},
		"raised":                     {quota("3", "2", "1"), true},
		"enforced":                   {quota("2", "3", "1"), true},
		"same value, other spelling": {quota("2000m", "2", "1"), false},
	} {
		if got := relief().Update(event.UpdateEvent{ObjectOld: was, ObjectNew: tt.is}); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	if relief().Create(event.CreateEvent{Object: was}) || !relief().Delete(event.DeleteEvent{Object: was}) {
		t.Error("a new quota lets nothing through; one that is gone does")
	}
}
