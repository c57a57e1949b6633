#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails if the generated files differ from the output of hack/generate.sh.
source "$(dirname "$0")/lib.sh"

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
mkdir "$fresh/crd" "$fresh/launcherpb" "$fresh/rbac"
hack/generate.sh "$fresh/crd" "$fresh/launcherpb" "$fresh/rbac"
{ diff -ru --exclude '*.go' --exclude kustomization.yaml refdaemon/config/crd "$fresh/crd" &&
  diff -ru --exclude '*.proto' --exclude doc.go domain/launcher/launcherpb "$fresh/launcherpb"; } || die "generated files are not up to date: run make generate"
for file in rbac/controller_role.yaml rbac/node_role.yaml; do
  diff -u "refdaemon/config/$file" "$fresh/$file" || die "generated files are not up to date: run make generate"
done
say "generated files are up to date"
