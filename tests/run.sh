#!/usr/bin/env bash
# Installs what the tests need, builds everything (CUDA sources too) and passes all tests.
#   tests/run.sh          unit tests against committed goldens, end-to-end tests on a small model
#   tests/run.sh --full   also what takes long: live peers, the real model, the large counts, the image, sanitizers, fuzzers, linters
# Ends with a table of what ran, how long it took and what it said; exits non-zero when anything failed.
# shellcheck disable=SC2317  # the sections are called by name
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/run.sh [--full] [--only SECTION[,SECTION...]]
  --full   what takes long too (some five hours on two cores, less with a warm ccache), and a test that is skipped for want of
           anything but hardware fails
  --only   these sections alone; image needs root and a Debian mirror
    always          setup build unit e2e deployment
    with --full     races image long ci clang asan ubsan tsan fuzz lint
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
sections=" setup build unit e2e deployment "
if $full; then sections+="races image long ci clang asan ubsan tsan fuzz lint "; fi
for name in ${only//,/ }; do
  [[ $sections == *" $name "* ]] || { echo "run.sh: no section $name here (some need --full)" >&2; usage >&2; exit 2; }
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
# cases PRESET ARGUMENT...: CTest. With --full a case that is skipped for want of anything but hardware is a failure.
cases() {
  local result=0
  rm -f "build/$1/Testing/Temporary/LastTestsDisabled.log"
  ctest --preset "$@" || result=1
  if $full; then tests/ctest_skips.sh "build/$1" || result=1; fi
  return "$result"
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
# The Dockerfile's text, chart, dashboards, rules. promtool, and so the cases of the alerts, is there in any case; what needs other tools
# of --full (helm and its like, built from source in minutes) is shown as skipped.
deployment() {
  if $full; then
    "$python" -m pytest -q -ra --full --no-skips --continue-on-collection-errors -m "not image" tests/deploy
  else
    # The scrape by a real Prometheus and its minutes of mixed work belong to --full, which installs it.
    "$python" -m pytest -q -ra tests/deploy -m "not full" --ignore tests/deploy/test_scrape.py
  fi
}
# The images by every step of the Dockerfile, each run in a bare root: nothing of this machine's build is in them. What a cache mount
# keeps (pip's, ccache's) lasts from run to run, as docker's does.
image() {
  NIBBLE_IMAGE_WORK=$root/build/image "$python" -m pytest -q -ra -s --full --no-skips -m image tests/deploy/test_image.py
}
# The kernels beside the machine's roofs (ternary beside a peer too), attention of packed rows, then both races of the whole program. Each
# fails when a result is wrong; that of attention also at ten times its bound, else none when it is slow. JSON beside the logs.
races() {
  local gguf llama_cpp
  gguf=$(sed -n 's/.*NIBBLE_SMOLLM2_GGUF[^"]*"\([^"]*\)".*/\1/p' build/deps/paths.cmake)
  # shellcheck disable=SC2016  # CMake's name for the file's folder, not the shell's
  gguf=${gguf//'${CMAKE_CURRENT_LIST_DIR}'/"$root/build/deps"}
  llama_cpp=$("$python" -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib")') &&
    [[ -f $gguf && -d $llama_cpp ]] &&
    build/release/bin/kernels_int8_bench --threads 2 --json "$logs/kernels_int8.json" &&
    build/release/bin/segment_attention_bench --threads 2 &&
    build/release/bin/kernels_nf4_bench --threads 2 --json "$logs/kernels_nf4.json" &&
    build/release/bin/kernels_ternary_bench --threads 2 --peer "$llama_cpp" --json "$logs/kernels_ternary.json" &&
    "$python" tests/bench/peers_decode.py "$gguf" build/peers --json "$logs/peers_decode.json" &&
    "$python" tests/bench/peers_qlora.py "$gguf" --steps 7 --turns 2 --json "$logs/peers_qlora.json"
}
# Headers stand alone, and everything builds in a folder of its own.
ci() { configure ci && cmake --build --preset ci; }
# clang: -Wthread-safety and clang-tidy on what changed since they last passed; one finding does not hide the next.
clang() { configure clang && cmake --build --preset clang -- -k 0; }
# sanitizer PRESET: the unit tests; NIBBLE_CUDA is off in these, and in tsan NIBBLE_TRAINER.
sanitizer() { configure "$1" && cmake --build --preset "$1" && cases "$1" -j 2 -LE "full|slow"; }
fuzzers() { configure fuzz && cmake --build --preset fuzz && tests/fuzz/run.sh --seconds 60; }
# Protos: linted, and compared with the last ten versions that landed: on a branch those of main where it began, on main its own. Ten,
# because commits that land together are looked at once, when the newest may have changed nothing of the protos, or a comment. A clone
# whose history has no version but HEAD's has nothing to compare with, and that is no success. proto/buf.yaml lists intended breaks.
lint() {
  local landed now versions version other=""
  landed=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  now=$(git rev-parse HEAD:proto/nibble)
  mapfile -t versions < <(git log -n 10 --format=%H "$landed" -- proto/nibble)
  for version in "${versions[@]}"; do
    [[ $(git rev-parse "$version:proto/nibble") == "$now" ]] || other=$version
  done
  if [[ -z $other ]]; then
    echo "lint: FAILED: there is no commit to compare the protos with; a shallow clone gets its history by: git fetch --unshallow"
    return 1
  fi
  shellcheck -x deploy/*.sh proto/*.sh tests/*.sh tests/fuzz/*.sh cmake/*.sh .ci/run && echo "shellcheck: clean" || return 1
  for version in "${versions[@]}"; do
    PATH=$PWD/build/deps/tools/bin:$PATH proto/lint.sh build/deps/googleapis "$version" ||
      { echo "lint: FAILED: compared with $version"; return 1; }
  done
}

said_by_ctest='tests passed|tests failed|must not be skipped'
need setup '^setup: (done|error)' setup
need build 'Linking|no work|error' release
section unit "$said_by_ctest" cases release -j 2 -LE "full|slow"
section e2e 'passed|failed' e2e
section deployment 'passed|failed' deployment
if $full; then
  section races 'x the tokens' races
  section image 'passed|failed' image
  section long "$said_by_ctest" cases release -L "full|slow"
  section ci 'Linking|Building|no work' ci
  section clang 'Linking|Building|no work' clang
  section asan "$said_by_ctest" sanitizer asan
  section ubsan "$said_by_ctest" sanitizer ubsan
  section tsan "$said_by_ctest" sanitizer tsan
  section fuzz 'runs|FOUND' fuzzers
  section lint 'clean|SC[0-9]|FAILED' lint
fi
finish
