// SPDX-License-Identifier: Apache-2.0

package mutation

// explained are generic changes, by name, that no test can notice, and why not.
var explained = map[string]string{
	"entry.go shows: return true, true // nothing more of it will come: true becomes false #2":  "of what is shown nobody asks whether versions have an order",
	"entry.go showsCreate: return true, true: true becomes false #2":                            "of what is shown nobody asks whether versions have an order",
	"command.go conclude: if extra := len(l.Outcomes) - maxOutcomes; extra > 0 {: > becomes >=": "with as many outcomes as are kept, those are copied whole",
}
