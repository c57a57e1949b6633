// SPDX-License-Identifier: Apache-2.0

// Package launcherpb is the protocol of a launcher's command channel, generated from
// launcher.proto by "make generate". Package launcher speaks it.
package launcherpb
