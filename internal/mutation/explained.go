// SPDX-License-Identifier: Apache-2.0

package mutation

// explained are generic changes, by name, that no test can notice, and why not.
var explained = map[string]string{}
