// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"

	"github.com/virtloom/virtloom/refdaemon/config"
)

// Print what runs in a cluster when everything is installed.
func ExampleManifests() {
	all, err := config.Manifests()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, o := range all {
		if kind := o.GetKind(); kind == "Deployment" || kind == "DaemonSet" {
			fmt.Println(kind, o.GetNamespace()+"/"+o.GetName())
		}
	}
	// Output:
	// Deployment virtloom-system/virtloom-controller
	// DaemonSet virtloom-node/virtloom-node
}
