#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All that can be wrong with a commit without a test of behaviour failing: see hack/checks.sh, and the tests of what is written
# down: documents, the table of metrics, manifests, layers, headers, the exported API. Starts no guest and no control plane.
source "$(dirname "$0")/lib.sh"

hack/checks.sh
say "== documents, tables, manifests, layers, headers, API"
go test -tags libvirt_dlopen ./internal/archtest ./internal/metricsdoc
go test -tags libvirt_dlopen ./internal/doctest -skip 'RunAsTheyStand$'
go test -tags libvirt_dlopen ./refdaemon/config -skip '^TestManifests_InCluster$'
