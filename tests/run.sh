#!/usr/bin/env bash
# Installs what the tests need, builds everything (CUDA sources too) and passes all tests.
#   tests/run.sh          unit tests against committed goldens, end-to-end tests on a small model
#   tests/run.sh --full   also what takes long: live peers, the real model, the large counts, sanitizers, fuzzers, linters
# Ends with a table of what ran, how long it took and what it said; exits non-zero when anything failed.
# shellcheck disable=SC2317  # the sections are called by name
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/run.sh [--full] [--only SECTION[,SECTION...]]
  --full   what takes long too (some three hours on two cores, less with a warm ccache)
  --only   these sections alone: setup build unit e2e deployment races long ci clang asan tsan fuzz lint (from races on they belong to --full)
END
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
full=false only=""
while (($#)); do
  case $1 in
    --full) full=true ;;
    --only) only=${2:?--only wants sections}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
logs=build/test-logs
mkdir -p "$logs"
python=$root/build/deps/venv/bin/python

rows=() failed=0
# section NAME WORDS COMMAND...: runs it with its output shown and kept; the row's last column is what WORDS matched last.
section() {
  local name=$1 words=$2 begun=$SECONDS result=ok said
  shift 2
  [[ -z $only || ",$only," == *",$name,"* ]] || return 0
  printf '\n== %s\n' "$name"
  if ! "$@" 2>&1 | tee "$logs/$name.log"; then
    result=FAILED
    failed=1
  fi
  said=$(grep -E "$words" "$logs/$name.log" | tail -n 1 | tr -s ' =' ' ' || true)
  rows+=("$(printf '%-6s %-7s %5d s  %s' "$name" "$result" $((SECONDS - begun)) "$said")")
}
# need NAME ...: as section, and nothing can follow when it fails.
need() {
  section "$@"
  ((failed == 0)) || finish
}
finish() {
  printf '\n== what ran (logs in %s)\n' "$logs"
  printf '%s\n' "${rows[@]}"
  printf 'total %d s\n' "$SECONDS"
  exit "$failed"
}

# configure PRESET [ARGUMENT...]: quiet unless it fails.
configure() {
  local log=$logs/configure-$1.log
  cmake --preset "$@" >"$log" 2>&1 || { tail -n 40 "$log"; return 1; }
}

setup() {
  local options=(--cuda on --tests)
  if $full; then options+=(--full --peers); fi
  deploy/setup.sh "${options[@]}"
}
release() { configure release -DNIBBLE_CUDA=ON -DNIBBLE_TRAINER=ON -DNIBBLE_BENCH=ON && cmake --build --preset release; }
e2e() {
  if $full; then
    # Everything is installed: what is skipped all the same, hardware aside, is a failure.
    "$python" -m pytest -q -ra --no-skips --continue-on-collection-errors tests/e2e
  else
    "$python" -m pytest -q -ra tests/e2e -m "not full"
  fi
}
# Image, chart, dashboards, rules; what needs tools of --full is shown as skipped.
deployment() {
  if $full; then
    "$python" -m pytest -q -ra --full --no-skips --continue-on-collection-errors tests/deploy
  else
    # The scrape by a real Prometheus and its minutes of mixed work belong to --full, which installs it.
    "$python" -m pytest -q -ra tests/deploy -m "not full" --ignore tests/deploy/test_scrape.py
  fi
}
# The kernels beside the machine's roofs (ternary beside a peer too), then both races of the whole program. Each fails when a result
# is wrong, none when it is slow. JSON beside the logs.
races() {
  local gguf llama_cpp
  gguf=$(sed -n 's/.*NIBBLE_SMOLLM2_GGUF[^"]*"\([^"]*\)".*/\1/p' build/deps/paths.cmake)
  # shellcheck disable=SC2016  # CMake's name for the file's folder, not the shell's
  gguf=${gguf//'${CMAKE_CURRENT_LIST_DIR}'/"$root/build/deps"}
  llama_cpp=$("$python" -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib")') &&
    [[ -f $gguf && -d $llama_cpp ]] &&
    build/release/bin/kernels_int8_bench --threads 2 --json "$logs/kernels_int8.json" &&
    build/release/bin/kernels_nf4_bench --threads 2 --json "$logs/kernels_nf4.json" &&
    build/release/bin/kernels_ternary_bench --threads 2 --peer "$llama_cpp" --json "$logs/kernels_ternary.json" &&
    "$python" tests/bench/peers_decode.py "$gguf" build/peers --json "$logs/peers_decode.json" &&
    "$python" tests/bench/peers_qlora.py "$gguf" --steps 7 --turns 2 --json "$logs/peers_qlora.json"
}
# Headers stand alone, and everything builds in a folder of its own.
ci() { configure ci && cmake --build --preset ci; }
# clang: -Wthread-safety and clang-tidy on what changed since they last passed; one finding does not hide the next.
clang() { configure clang && cmake --build --preset clang -- -k 0; }
# sanitizer PRESET: the unit tests; NIBBLE_TRAINER and NIBBLE_CUDA are off in these.
sanitizer() { configure "$1" && cmake --build --preset "$1" && ctest --preset "$1" -j 2 -LE "full|slow"; }
fuzzers() { configure fuzz && cmake --build --preset fuzz && tests/fuzz/run.sh --seconds 60; }
# Protos: linted, and a client of those that landed last can still talk to them: on a branch those of main where it began, on main
# itself the ones before HEAD.
lint() {
  local before
  before=$(git merge-base HEAD main 2>/dev/null || true)
  if [[ -z $before || $before == "$(git rev-parse HEAD)" ]]; then
    before=$(git log -1 --format=%H HEAD~1 -- proto 2>/dev/null || true)
  fi
  shellcheck -x deploy/*.sh proto/*.sh tests/*.sh tests/fuzz/*.sh cmake/*.sh .ci/run && echo "shellcheck: clean" &&
    PATH=$PWD/build/deps/tools/bin:$PATH proto/lint.sh build/deps/googleapis ${before:+"$before"}
}

need setup '^setup: (done|error)' setup
need build 'Linking|no work|error' release
section unit 'tests passed|tests failed' ctest --preset release -j 2 -LE "full|slow"
section e2e 'passed|failed' e2e
section deployment 'passed|failed' deployment
if $full; then
  section races 'x the tokens' races
  section long 'tests passed|tests failed' ctest --preset release -L "full|slow"
  section ci 'Linking|Building|no work' ci
  section clang 'Linking|Building|no work' clang
  section asan 'tests passed|tests failed' sanitizer asan
  section tsan 'tests passed|tests failed' sanitizer tsan
  section fuzz 'runs|FOUND' fuzzers
  section lint 'clean|SC[0-9]' lint
fi
finish
