#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails if the generated files are not what hack/generate.sh makes.
source "$(dirname "$0")/lib.sh"

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
mkdir "$fresh/crd" "$fresh/launcherpb"
hack/generate.sh "$fresh/crd" "$fresh/launcherpb"
{ diff -ru --exclude '*.go' refdaemon/config/crd "$fresh/crd" &&
  diff -ru --exclude '*.proto' --exclude doc.go domain/launcher/launcherpb "$fresh/launcherpb"; } || die "generated files are not up to date: run make generate"
say "generated files are up to date"
