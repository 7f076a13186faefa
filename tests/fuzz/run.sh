#!/usr/bin/env bash
# Searches for new inputs: runs each fuzz target for a while, two at a time, from the committed corpus, with the limits
# of docs/faults.md.
#   tests/fuzz/run.sh [--seconds N] [--runs N] [TARGET ...]     default: 60 s per target, all targets
#   tests/fuzz/run.sh --runs 10000000                           ten million inputs per target, without a time limit
# The first limit reached ends a target. Prints the number of inputs of each target.
# Needs a build of the preset `clang`. Findings go to build/clang/findings; copy each to
# tests/fuzz/corpus/TARGET/found-... with the fix, so that every build replays it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds="" runs="" targets=()
while (($#)); do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --runs) runs=${2:?--runs needs a number}; shift ;;
    -*) echo "fuzz: unknown argument '$1'" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
for number in "${seconds:-1}" "${runs:-1}"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] ||
    { echo "fuzz: --seconds and --runs take a number from 1, not '$number'" >&2; exit 2; }
done
# libFuzzer's values for no limit: 0 seconds, -1 runs.
if [[ -n $runs ]]; then seconds=${seconds:-0}; fi
seconds=${seconds:-60} runs=${runs:--1}
if ((${#targets[@]} == 0)); then
  targets=(safetensors manifest json jsonl tokenizer job_spec gguf chat_template packed_weights metric_labels names multipart infer_request
    http_request openai_json constraint)
fi
work=$root/build/clang
mkdir -p "$work/findings" "$work/logs"

# fuzz TARGET: new inputs go to build/clang/corpus, so that the next run continues from there.
fuzz() {
  local target=$1 log=$work/logs/$1.log
  mkdir -p "$work/corpus/$target"
  local options=(-max_total_time="$seconds" -runs="$runs" -timeout=5 -rss_limit_mb=512 -malloc_limit_mb=256
    -max_len=65536 -print_final_stats=1 -artifact_prefix="$work/findings/$target-")
  if "$work/bin/${target}_fuzz" "${options[@]}" "$work/corpus/$target" "$root/tests/fuzz/corpus/$target" \
    >"$log" 2>&1; then
    printf '%-14s %9s runs, nothing found\n' "$target" "$(awk '/number_of_executed_units/ {print $2}' "$log")"
  else
    printf '%-14s FOUND: %s\n' "$target" "$(grep -m 1 -E 'SUMMARY|does not hold|ERROR' "$log" || echo "see $log")"
    return 1
  fi
}
export -f fuzz
export root work seconds runs
# By default AddressSanitizer keeps 256 MiB of freed memory, which would fill the memory limit.
export ASAN_OPTIONS=quarantine_size_mb=16

# shellcheck disable=SC2016  # the inner shell expands it
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'fuzz "$1"' _ {}
