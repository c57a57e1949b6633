# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this folder, which run in bash from the root of the repository.
# shellcheck shell=bash

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
bin=$root/bin

# Flags of the caller's environment would make other builds than the ones cached.
unset GOFLAGS

say() { printf '%s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# elapsed SECONDS prints a duration for people.
elapsed() {
  if [ "$1" -ge 60 ]; then printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); else printf '%ds' "$1"; fi
}

# with_progress WHAT LOG COMMAND... runs a command with its output in LOG and shows the elapsed time
# and the last line of output: in place on a terminal, else as a line now and then. If the
# command fails, its output is shown. With parts="NUMBER WORD" before the call it says how many of those are done, for a command
# that prints a line for each; a part that is there already has no line, so that there are that many at most.
with_progress() {
  local what=$1 log=$2 begin=$SECONDS last=0 note pid rc=0
  shift 2
  mkdir -p "$(dirname "$log")"
  # The command makes its log when it gets to run, which may be after the first look at it.
  : >"$log"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  # shellcheck disable=SC2064 # the process of now is meant
  trap "kill $pid 2>/dev/null; exit 130" INT TERM
  [ -t 1 ] || say "$what"
  while kill -0 "$pid" 2>/dev/null; do
    note=$(tail -n 1 "$log" | tr -d '\r\033' | cut -c 1-60)
    note="$(wc -l <"$log") ${parts:+of }${parts:-lines}, ${note:-starting}"
    if [ -t 1 ]; then
      printf '\r\033[K%s: %s (%s)' "$what" "$(elapsed $((SECONDS - begin)))" "$note"
    elif [ $((SECONDS - begin - last)) -ge 20 ]; then
      last=$((SECONDS - begin))
      say "  $(elapsed "$last") ($note)"
    fi
    sleep 0.5
  done
  wait "$pid" || rc=$?
  trap - INT TERM
  [ -t 1 ] && printf '\r\033[K'
  if [ "$rc" -ne 0 ]; then
    tail -n 40 "$log" >&2
    die "$what: failed after $(elapsed $((SECONDS - begin))); all of its output is in $log"
  fi
  say "$what: done in $(elapsed $((SECONDS - begin)))"
}

# fingerprint FILE... identifies the content of files and the version of Go.
fingerprint() { { cat -- "$@" && go version; } | sha256sum | cut -d ' ' -f 1; }

# stamped NAME FINGERPRINT reports whether the output NAME was made from exactly that input.
stamped() { [ "$(cat "$bin/.stamp-$1" 2>/dev/null)" = "$2" ]; }

# stamp NAME FINGERPRINT notes it.
stamp() { printf '%s\n' "$2" >"$bin/.stamp-$1"; }

# module_version DIR MODULE prints the version that the go.mod of DIR requires.
module_version() { awk -v m="$2" '$1 == m && $2 ~ /^v/ {print $2; exit}' "$1/go.mod"; }

# release_build OUT FLAG... builds refdaemon as it is released: nothing in it depends on the folder that it was built in, and
# it says which commit it is.
release_build() {
  local out=$1
  shift
  mkdir -p "$(dirname "$out")"
  go build -trimpath -buildvcs=true -ldflags '-s -w -buildid=' "$@" -o "$out" ./refdaemon
}

# sbom PROGRAM FILE writes the bill of materials of a program.
sbom() { go -C tools/release run ./sbom -C "$root" -o "$(realpath "$2")" "$(realpath "$1")"; }

# epoch is the timestamp of all released files: that of the commit, unless it is set.
epoch() { printf '%s' "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"; }

command -v go >/dev/null || die "Go is not installed; this module needs the version named in go.mod (https://go.dev/dl)"
