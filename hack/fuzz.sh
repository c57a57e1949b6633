#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs all fuzz targets one after the other, each for the time given (FUZZTIME, by default 30s), or those whose names match a
# pattern: "fuzz.sh 5m 'Render|Queue'". Continues after a failure, and fails at the end. What made a target fail is in the
# package's testdata/fuzz, to be committed with the mend: "make test" runs it from then on.
source "$(dirname "$0")/lib.sh"

# targets prints package and name of each fuzz target, in a fixed order.
targets() {
  git grep -E --untracked '^func Fuzz[A-Z][A-Za-z0-9_]*\(' -- '*_test.go' |
    sed -E 's|^([^:]*)/[^/:]*:func (Fuzz[A-Za-z0-9_]*)\(.*|\1 \2|' | LC_ALL=C sort
}

main() {
  local each=${1:-30s} matching=${2:-.} package name failed=() count=0 begin
  while read -r package name <&3; do
    [[ $name =~ $matching ]] || continue
    count=$((count + 1))
    begin=$SECONDS
    if CGO_ENABLED=0 go test "./$package" -run '^$' -fuzz "^$name\$" -fuzztime "$each" >"$bin/.log/fuzz.log" 2>&1; then
      say "$package $name: $(grep -o 'execs: [0-9]*' "$bin/.log/fuzz.log" | tail -n 1), $(elapsed $((SECONDS - begin)))"
    else
      failed+=("$package.$name")
      cat "$bin/.log/fuzz.log"
    fi
  done 3< <(targets)
  [ "$count" -gt 0 ] || die "no fuzz target matches $matching"
  [ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
  say "$count fuzz targets ran for $each each and found nothing"
}

mkdir -p "$bin/.log"
main "$@"
