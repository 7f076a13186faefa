#!/usr/bin/env bash
# Looks for new inputs: each fuzz target for a while, two at a time, from the committed corpus, with the limits of docs/faults.md.
#   tests/fuzz/run.sh [--seconds N] [TARGET ...]     60 s each and all targets, unless told otherwise
# Needs the preset `fuzz` built. What is found lies in build/fuzz/findings; copy it to tests/fuzz/corpus/TARGET/found-... with
# the fix, so that every build replays it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=60
if [[ ${1-} == --seconds ]]; then seconds=${2:?--seconds wants a number}; shift 2; fi
targets=("$@")
if ((${#targets[@]} == 0)); then targets=(safetensors manifest json jsonl tokenizer job_spec gguf chat_template); fi
work=$root/build/fuzz
mkdir -p "$work/findings" "$work/logs"

# fuzz TARGET: new inputs go to build/fuzz/corpus, so that the next run goes on from there.
fuzz() {
  local target=$1 log=$work/logs/$1.log
  mkdir -p "$work/corpus/$target"
  local options=(-max_total_time="$seconds" -timeout=5 -rss_limit_mb=512 -malloc_limit_mb=256 -max_len=65536 -print_final_stats=1
    -artifact_prefix="$work/findings/$target-")
  if "$work/bin/${target}_fuzz" "${options[@]}" "$work/corpus/$target" "$root/tests/fuzz/corpus/$target" >"$log" 2>&1; then
    printf '%-14s %9s runs, nothing found\n' "$target" "$(awk '/number_of_executed_units/ {print $2}' "$log")"
  else
    printf '%-14s FOUND: %s\n' "$target" "$(grep -m 1 -E 'SUMMARY|does not hold|ERROR' "$log" || echo "see $log")"
    return 1
  fi
}
export -f fuzz
export root work seconds

# shellcheck disable=SC2016  # the inner shell expands it
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'fuzz "$1"' _ {}
