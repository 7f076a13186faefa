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
parts=$(($(nproc) * 2)) # more than processors, so that one long part does not hold up the end
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run_part() {
  local program=$1 part=$2 log=$3/$1.$2
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part "build/release/bin/$program" --gtest_brief=1 >"$log" 2>&1 ||
    { echo "== $program, part $part of $parts: FAILED"; cat "$log"; return 1; }
}
export -f run_part
export parts
for program in "$@"; do
  for ((part = 0; part < parts; part++)); do echo "$program $part $logs"; done
done | xargs -P "$(nproc)" -L 1 bash -c 'run_part "$@"' run_part
echo "passed: $*"
