#!/usr/bin/env bash
# Lists the tests that CTest's last run in BUILD skipped, with their reasons. Exits non-zero if a reason does not match
# `fine`. Usage: tests/ctest_skips.sh BUILD. A run that skips nothing leaves an older list in place: remove the list
# before the run.
set -euo pipefail
log=$1/Testing/Temporary/LastTest.log list=$1/Testing/Temporary/LastTestsDisabled.log

# Missing hardware, parameters to which a test does not apply, and a test that leaves no file descriptor, which UBSan
# needs. Missing instruction sets skip no test: tests/support/isas.h.
fine='^no CUDA device: |^only TLS has certificates$|^UBSan needs a free file descriptor$'

[[ -f $log ]] || { echo "skipped: $log does not exist"; exit 1; }
[[ -f $list ]] || { echo "skipped: none"; exit 0; }
# GoogleTest writes `FILE:LINE: Skipped`, then the reason.
fine=$fine awk '
  FILENAME == ARGV[1] && /^[0-9]+\/[0-9]+ Test: / { name = $0; sub(/^[0-9]+\/[0-9]+ Test: /, "", name); next }
  FILENAME == ARGV[1] && /:[0-9]+: Skipped$/ { said = 1; next }
  FILENAME == ARGV[1] {
    if (said && $0 != "" && !(name in reason) && $0 !~ /^\[  SKIPPED \]/) reason[name] = $0
    said = 0
    next
  }
  {
    name = $0; sub(/^[0-9]+:/, "", name)
    why = name in reason ? reason[name] : "no reason given"
    print "skipped: " name ": " why
    ++skipped
    if (why !~ ENVIRON["fine"]) ++bad
  }
  END {
    if (bad) print "skipped: " bad " of " skipped " must not be skipped here"
    exit bad > 0
  }' "$log" "$list"
