#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All long tests, one after the other, each with its log in bin/.log/nightly: a failure does not stop the rest
# from being run. With an argument, those whose names match that pattern: "nightly.sh 'soak|fuzz'".
source "$(dirname "$0")/lib.sh"

logs=$bin/.log/nightly

# long TIMEOUT WORD... runs tests that have flags which make them long.
long() {
  local within=$1
  shift
  go test -tags libvirt_dlopen -count 1 -v -timeout "$within" "$@"
}

race() { long 90m -race ./...; }

# No state that can be reached breaks "never two, never none".
explore() { long 60m ./internal/explore -full; }

# Bugs that are planted in the shipped code: a test must notice each.
mutate() { long 90m ./internal/mutation -mutate; }

# Each guest of the corpus 10,000 times, and the same bytes.
determinism() { long 30m ./template -run '^TestRender_Deterministic$' -renders 10000; }

# 10^7 random operations on the queue, 3 * 10^6 on the admission, beside plain references.
queues() { long 90m ./migration/queue -run '^Test(Queue|Admission)_MatchesReference$' -operations 10000000; }

# A domain that is read back in 100,000 ways differs from its wish in none.
steady() { long 60m ./domain/diff -run '^TestCompare_RandomReadback$' -rounds 100000; }

# libvirtd is killed 50 times and guests 20 times under an informer.
chaos() {
  VIRTLOOM_CHAOS=1 long 30m ./domain/libvirt -run '^TestQEMU$/^(an_informer_misses_nothing|a_guest_that_hangs_costs)'
}

# 200 guests at once, ten idle minutes, their end.
burst() { long 60m ./vmi/vmictrl -run '^TestBurst$' -burst 200 -idle 10m; }

# 1,000 migrations wait for five slots.
waiting() { long 60m ./migration/migrationctrl -run '^TestAdmission_ManyWaiting$' -pending 1000 -move 1s -idle 1m; }

# A drain of 100 simulated nodes with 10,000 guests.
drains() { long 30m ./migration/migrationsim -run '^TestDrain_NearLowerBound$' -full; }

# A guest moves from Pod to Pod and back 50 times.
roundtrips() {
  hack/image.sh
  long 120m ./refdaemon/e2e/pods -run '^TestMigration_RoundTrips$' -rounds 50
}

# All on real nodes: probes that fail, volumes, faults, run strategies and live updates, and an upgrade while ten guests run.
pods() {
  hack/image.sh
  long 90m ./refdaemon/e2e/pods -full -guests 10
}

# The demo is interrupted or killed in any second, and leaves nothing.
kills() {
  hack/image.sh
  long 60m ./internal/demo -run '^TestDemo_KilledAtAnyTime$' -kills 5
}

# Aborts, cut links and kills at every step of a live migration.
migrations() {
  long 180m ./refdaemon/e2e -full \
    -run '^(TestMigration_AbortedAtAnyPoint|TestMigration_DoesNotConverge|TestMigration_LinkCut|TestMigration_KilledAtEveryStep)$'
}

# A day of random operations and faults in simulated time, an hour in real time.
soak() { long 120m ./internal/soak -run '^TestSoak$' -span 24h; }
soakreal() {
  go build -tags libvirt_dlopen -o "$bin/" ./refdaemon
  long 120m ./internal/soak -run '^TestSoak_Real$' -real 1h
}

# The shell blocks of the documents that need root or minutes as well.
documents() { long 60m ./internal/doctest -all; }

fuzz() { hack/fuzz.sh 5m; }

# Release and images, made twice, are the same byte by byte.
reproducible() { hack/verify-release.sh; }

jobs=(race explore mutate determinism queues steady chaos burst waiting drains roundtrips pods kills migrations soak soakreal documents fuzz reproducible)

main() {
  local only=$1 job begin log failed=() count=0
  mkdir -p "$logs"
  export CI=true
  for job in "${jobs[@]}"; do
    [[ $job =~ $only ]] || continue
    count=$((count + 1)) begin=$SECONDS log=$logs/$job.log
    if ("$0" job "$job") >"$log" 2>&1; then
      say "ok    $job ($(elapsed $((SECONDS - begin))))"
    else
      failed+=("$job")
      grep -aE '^\s*--- FAIL|^FAIL|^panic|^error:' "$log" || tail -n 5 "$log"
      say "FAIL  $job ($(elapsed $((SECONDS - begin)))), see $log"
    fi
  done
  [ "$count" -gt 0 ] || die "nothing matches $only; there are ${jobs[*]}"
  say "$((count - ${#failed[@]})) passed, ${#failed[@]} failed"
  [ ${#failed[@]} -eq 0 ]
}

if [ "${1:-}" = job ]; then "$2"; else main "${1:-.}"; fi
