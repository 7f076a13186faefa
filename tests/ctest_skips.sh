#!/usr/bin/env bash
# Lists what CTest's last run in BUILD skipped, each with the reason that it gave; exits non-zero when a reason is none of `fine`.
# Usage: tests/ctest_skips.sh BUILD. CTest leaves an older list where a run skipped nothing: remove the list before the run.
set -euo pipefail
log=$1/Testing/Temporary/LastTest.log list=$1/Testing/Temporary/LastTestsDisabled.log

# The hardware's share, and parameters that a case does not apply to. Instruction sets skip nothing: tests/support/isas.h.
fine='^no CUDA device: |^certificates are TLS'"'"'s$'

[[ -f $log ]] || { echo "skipped: $log is not there"; exit 1; }
[[ -f $list ]] || { echo "skipped: none"; exit 0; }
# GoogleTest writes `FILE:LINE: Skipped`, then the reason.
fine=$fine awk '
  FILENAME == ARGV[1] && /^[0-9]+\/[0-9]+ Test: / { name = $0; sub(/^[0-9]+\/[0-9]+ Test: /, "", name); next }
  FILENAME == ARGV[1] && /:[0-9]+: Skipped$/ { said = 1; next }
  FILENAME == ARGV[1] { if (said && $0 != "" && !(name in reason) && $0 !~ /^\[  SKIPPED \]/) reason[name] = $0; said = 0; next }
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
