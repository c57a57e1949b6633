// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import "testing"

// auditedPods returns the names of the Pods that were created in the namespace.
func (c *cluster) auditedPods(t *testing.T, namespace string) []string {
	t.Helper()
	requests, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, q := range requests {
		if q.What() == "create pods" && q.ObjectRef.Namespace == namespace && q.Accepted() {
			out = append(out, q.ObjectRef.Name)
		}
	}
	return out
}
