#!/usr/bin/env bash
# Runs unit test programs of build/release, divided among all processors: the quick check after a change.
#   tests/unit.sh PROGRAM...       for example: tests/unit.sh rpc_test services_test
# Prints the output of parts that fail. ctest, which runs every test in a process of its own, takes longer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($#)) || { echo "usage: tests/unit.sh PROGRAM..." >&2; exit 2; }
for program in "$@"; do
  [[ -x build/release/bin/$program ]] || { echo "unit.sh: build/release/bin/$program does not exist" >&2; exit 2; }
done
at_once=$(($(nproc) * 2)) # many tests wait more than they compute: for a disk, a deadline, a timer
parts=$((at_once * 2))    # more than run at once, so that one long part does not hold up the end
# Half of the time would be waits for the disk, so the files of tests are in memory if programs may run there and 1 GiB
# is free (df counts in KiB: 1 << 20).
memory=/dev/shm
if [[ -w $memory && $(findmnt -no OPTIONS -T "$memory" || echo noexec) != *noexec* ]] &&
  (($(df --output=avail "$memory" | tail -1) > 1 << 20)); then
  TMPDIR=$memory
fi
TMPDIR=$(mktemp -d -p "${TMPDIR:-/tmp}")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
logs=$TMPDIR/logs
mkdir "$logs"
export OMP_WAIT_POLICY=passive # as nibbled sets it: idle OpenMP threads would spin, and half of the time is theirs
run_part() {
  local program=$1 part=$2 log=$3/$1.$2
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part "build/release/bin/$program" --gtest_brief=1 >"$log" 2>&1 ||
    { echo "== $program, part $part of $parts: FAILED"; cat "$log"; return 1; }
}
export -f run_part
export parts
for program in "$@"; do
  for ((part = 0; part < parts; part++)); do echo "$program $part $logs"; done
done | xargs -P "$at_once" -L 1 bash -c 'run_part "$@"' run_part
echo "passed: $*"
