// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
)

// audited is the part of an audit event that the tests look at.
type audited struct {
	Verb      string `json:"verb"`
	ObjectRef struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	Stage string `json:"stage"`
}

// auditedPods returns the names of the Pods that were created in the namespace.
func (c *cluster) auditedPods(t *testing.T, namespace string) []string {
	t.Helper()
	f, err := os.Open(c.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e audited
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // the line being written
		}
		if e.Verb == "create" && e.ObjectRef.Resource == "pods" && e.ObjectRef.Subresource == "" &&
			e.ObjectRef.Namespace == namespace && e.ResponseStatus.Code == 201 {
			out = append(out, e.ObjectRef.Name)
		}
	}
	return out
}
