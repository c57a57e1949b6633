// SPDX-License-Identifier: Apache-2.0

// Package examples holds the manifests that the README, the demo and the tests
// share, and programs that use the packages. Each folder is one scene, or one program.
package examples

import "embed"

// FirstGuest holds the manifests of a VirtualMachine that is started and then migrated:
// cluster.yaml, guest.yaml, service.yaml and migration.yaml.
//
//go:embed first-guest/*.yaml
var FirstGuest embed.FS
