// SPDX-License-Identifier: Apache-2.0

package mutation

// explained are generic changes, by name, that no test can notice, and why not.
var explained = map[string]string{
	"command.go conclude: if extra := len(l.Outcomes) - maxOutcomes; extra > 0 {: > becomes >=": "with as many outcomes as are kept, those are copied whole",
}
