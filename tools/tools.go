// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the programs of the rig; nothing imports it.
package tools

import _ "kubevirt.io/api/core/v1"
