// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/migrationctrl"
)

func TestVirtAPI_AbortBackup(t *testing.T) {
	var asked string
	status := http.StatusAccepted
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.Path + " " + string(body)
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	api, err := migrationctrl.NewVirtAPI(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}
	if err := api.AbortBackup(t.Context(), vmi, "nightly"); err != nil {
		t.Error(err)
	}
	const want = `PUT /apis/subresources.kubevirt.io/v1/namespaces/shop/virtualmachineinstances/db/backup {"backupName":"nightly","cmd":"Abort"}`
	if asked != want {
		t.Errorf("asked\n%s, want\n%s", asked, want)
	}
	status = http.StatusNotFound
	if err := api.AbortBackup(t.Context(), vmi, "nightly"); err == nil || !strings.Contains(err.Error(), "abort backup nightly of VirtualMachineInstance shop/db") {
		t.Errorf("error is %v", err)
	}
}
