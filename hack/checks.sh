#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks of the repository that are no Go tests, cheapest first. "make test" begins with them, and "make verify" adds the tests
# that check the documents.
source "$(dirname "$0")/lib.sh"

# modules prints the folder of each Go module.
modules() { git ls-files --cached --others --exclude-standard '*go.mod' | xargs -n 1 dirname; }

main() {
  local unformatted module libraries
  say "== format"
  unformatted=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l)
  [ -z "$unformatted" ] || die "not formatted (run: gofmt -w): $unformatted"

  say "== modules are tidy"
  for module in $(modules); do
    go -C "$module" mod tidy -diff || die "go.mod or go.sum is not tidy; run: go -C $module mod tidy"
  done

  say "== build without a C compiler"
  # All packages are compiled or vetted. Of the programs one is linked, the released one: a link costs seconds each time, as none is cached.
  mapfile -t libraries < <(CGO_ENABLED=0 go list -f '{{if and .GoFiles (ne .Name "main")}}{{.ImportPath}}{{end}}' ./...)
  CGO_ENABLED=0 go build "${libraries[@]}" ./refdaemon

  # The linter vets the variant with libvirt.
  say "== vet without a C compiler"
  CGO_ENABLED=0 go vet ./...

  say "== generated files"
  hack/verify-generate.sh

  say "== expressions of dashboard and alerts"
  go -C tools/promql test ./...

  say "== licences"
  go -C tools/release test ./...
  go -C tools/release run ./licences -C "$root"

  say "== lint"
  hack/lint.sh
}

main
