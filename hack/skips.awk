# SPDX-License-Identifier: Apache-2.0
# Reads hack/skips.txt, then what gotestsum prints, and passes that on, with skipped parts of a test that have the same reason below
# one line, and the number of tests that passed. Fails if the list does not allow a skipped test, or if no test ran.

NR == FNR {
  if (/^[ \t]*(#|$)/) next
  if (!/^[^ \t#]+[ \t]+[^ \t#]+[ \t]+[^ \t#][^#]*#[ \t]*[^ \t]/) {
    print FILENAME ":" FNR ": want PACKAGE TEST PART-OF-ITS-REASON # WHY"
    failed = 1
    next
  }
  reason = $0
  sub(/[ \t]*#.*/, "", reason)
  sub(/^[^ \t]+[ \t]+[^ \t]+[ \t]+/, "", reason)
  allowed[++lines] = $1 SUBSEP $2 SUBSEP reason
  next
}

/^=== (Skipped|Failed|Errors)$/ || /^DONE / { skipped(); section = $2 }
section == "Failed" && /^=== FAIL: / && NF == 5 { broken++ } # of four fields is a package
/^DONE / {
  none = $2 == 0
  sub(/ tests/, " tests, " ($2 - count - broken) " passed")
  for (i = 1; i <= unlisted; i++) print refused[i]
}
section != "Skipped" { print; fflush(); next }
/^=== SKIP: / { skipped(); package = $3; test = $4; reason = ""; next }
test != "" && NF > 0 { sub(/^[ \t]*([^ \t]+\.go:[0-9]+: )?/, ""); reason = reason (reason == "" ? "" : " ") $0 }

END {
  if (none) print "FAILED   no test ran"
  exit failed || unlisted > 0 || none
}

# skipped takes the skipped test that was read last.
function skipped(  i, may, of) {
  if (test == "") return
  count++
  if (reason == "") reason = "no reason given"
  of = package " " substr(test "/", 1, index(test "/", "/") - 1) ": " reason
  if (of != last) print "SKIPPED  " of
  last = of
  if (test ~ /\//) print "         - " substr(test, index(test, "/") + 1)
  for (i = 1; i <= lines; i++) {
    split(allowed[i], may, SUBSEP)
    if (package == may[1] && (test == may[2] || index(test, may[2] "/") == 1) && index(reason, may[3]) > 0) break
  }
  if (i > lines) refused[++unlisted] = "FAILED   " package " " test " was skipped, which hack/skips.txt does not allow: " reason
  test = ""
}
