#!/usr/bin/env bash
# Installs what the tests need, builds the programs (CUDA sources too) and runs the tests.
#   tests/run.sh          unit tests against committed goldens, end-to-end tests on a small model
#   tests/run.sh --full   also slow sections: live peers, real model, large counts, images, a control plane of
#                         Kubernetes, sanitizers, fuzzers, linters
# Ends with a table of the sections that ran, with time and result of each; exits non-zero if anything failed.
# shellcheck disable=SC2317  # the sections are called by name
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/run.sh [--full] [--only SECTION[,SECTION...]]
  --full   also run the slow sections (about four hours on two cores, less with a warm ccache), and fail if a test is
           skipped for any reason other than missing hardware; needs root
  --only   run only these sections; image needs a Debian mirror
    always          setup build unit e2e deployment
    with --full     races image kubernetes long ci clang asan tsan fuzz lint
END
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
full=false only=""
while (($#)); do
  case $1 in
    --full) full=true ;;
    --only) only=${2:?--only needs sections}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
sections=" setup build unit e2e deployment "
if $full; then sections+="races image kubernetes long ci clang asan tsan fuzz lint "; fi
for name in ${only//,/ }; do
  [[ $sections == *" $name "* ]] || { echo "run.sh: no section $name here (some need --full)" >&2; usage >&2; exit 2; }
done
logs=build/test-logs
mkdir -p "$logs"
python=$root/build/deps/venv/bin/python

rows=() failed=0
# section NAME WORDS COMMAND...: runs COMMAND, shows and logs its output. The row's last column is the last line that
# matches WORDS.
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
# need NAME ...: like section, but ends the run if it fails.
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

# configure PRESET [ARGUMENT...]: prints nothing unless it fails.
configure() {
  local log=$logs/configure-$1.log
  cmake --preset "$@" >"$log" 2>&1 || { tail -n 40 "$log"; return 1; }
}

setup() {
  local options=(--cuda on --tests)
  if $full; then options+=(--full --peers --kubernetes); fi
  deploy/setup.sh "${options[@]}"
}
# cases FOLDER ARGUMENT...: runs CTest in this folder of build/. With --full it fails if a test is skipped for any reason
# but missing hardware.
cases() {
  local result=0
  rm -f "build/$1/Testing/Temporary/LastTestsDisabled.log"
  ctest --test-dir "build/$1" --output-on-failure "${@:2}" || result=1
  if $full; then tests/ctest_skips.sh "build/$1" || result=1; fi
  return "$result"
}
# Without --full, builds only the programs that the other sections run, and CUDA sources for one architecture.
release() {
  local options=(-DNIBBLE_BENCH=OFF -DCMAKE_CUDA_ARCHITECTURES=90-real)
  if $full; then options=(-DNIBBLE_BENCH=ON -UCMAKE_CUDA_ARCHITECTURES); fi
  configure release -DNIBBLE_CUDA=ON -DNIBBLE_TRAINER=ON "${options[@]}" && cmake --build --preset release
}
e2e() {
  local options=(-q -ra) result=0
  # With --full, everything is installed, so a test may be skipped only for missing hardware.
  if $full; then options+=(--no-skips --continue-on-collection-errors); fi
  # Three files at a time on two cores, because most tests wait for a server or a trainer about half of their time.
  "$python" -m pytest "${options[@]}" -n 3 --dist loadfile tests/e2e -m "not full" || result=1
  # Many of the others need all cores, or measure.
  if $full; then "$python" -m pytest "${options[@]}" tests/e2e -m full || result=1; fi
  return "$result"
}
# The Dockerfile's text, chart, dashboards and rules. The tests of the alerts need promtool, which the setup installs if
# apt-get can fetch it. Tests without their tool (such as helm, which --full builds in minutes) are shown as skipped.
deployment() {
  if $full; then
    "$python" -m pytest -q -ra --full --no-skips --continue-on-collection-errors -m "not image" tests/deploy
  else
    # The scrape by a real Prometheus takes minutes of mixed work and belongs to --full, which installs Prometheus.
    "$python" -m pytest -q -ra tests/deploy -m "not full" --ignore tests/deploy/test_scrape.py
  fi
}
# Builds the images by every step of the Dockerfile and runs each in a bare root: they contain nothing of this machine's
# build. The cache mounts (pip's, ccache's) are kept from run to run, as docker's are.
image() {
  NIBBLE_IMAGE_WORK=$root/build/image "$python" -m pytest -q -ra -s --full --no-skips -m image \
    tests/deploy/test_image.py
}
# Trainers as Jobs of a real control plane, which the setup builds.
kubernetes() {
  "$python" -m pytest -q -ra --no-skips --continue-on-collection-errors -m "full or not full" tests/kubernetes
}
# Benchmarks: the kernels beside the machine's roofs (ternary also beside llama.cpp), attention of packed rows, then the
# whole program beside llama.cpp, PEFT and torchao. Each fails if a result is wrong. Only attention also fails if it is
# slow, at ten times its bound. JSON goes beside the logs.
races() {
  local gguf llama_cpp
  gguf=$(sed -n 's/.*NIBBLE_SMOLLM2_GGUF[^"]*"\([^"]*\)".*/\1/p' build/deps/paths.cmake)
  # shellcheck disable=SC2016  # CMake's name for the file's folder, not the shell's
  gguf=${gguf//'${CMAKE_CURRENT_LIST_DIR}'/"$root/build/deps"}
  llama_cpp=$("$python" -c 'import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib")') &&
    [[ -f $gguf && -d $llama_cpp ]] &&
    build/release/bin/kernels_int8_bench --threads 2 --json "$logs/kernels_int8.json" &&
    build/release/bin/segment_attention_bench --threads 2 &&
    build/release/bin/kernels_nf4_bench --threads 2 --json "$logs/kernels_nf4.json" &&
    build/release/bin/kernels_ternary_bench --threads 2 --peer "$llama_cpp" --json "$logs/kernels_ternary.json" &&
    "$python" tests/bench/peers_decode.py "$gguf" build/peers --json "$logs/peers_decode.json" &&
    "$python" tests/bench/peers_qlora.py "$gguf" --steps 7 --turns 2 --json "$logs/peers_qlora.json" &&
    "$python" tests/bench/peers_qlora_compiled.py --steps 7 --turns 2 --json "$logs/peers_qlora_compiled.json"
}
# Compiles each header, and each file of the trainer and of its libraries, alone and without precompiled headers.
ci() { configure ci && cmake --build --preset ci; }
# clang: one build for three sections, with -Wthread-safety, ASan, UBSan and the fuzz programs, and with clang-tidy on
# files that changed since they last passed. After a finding it builds the rest, which asan and fuzz then run.
clang() { configure clang && cmake --build --preset clang -- -k 0; }
# The trainer's tests are built by gcc (preset asan), whose OpenMP is libtorch's.
asan() {
  local result=0
  clang || result=1
  cases clang -j 2 -LE "full|slow" || result=1
  configure asan && cmake --build --preset asan && cases asan/tests/server/trainer -j 2 -LE "full|slow" || result=1
  return "$result"
}
fuzzers() {
  local result=0
  clang || result=1
  tests/fuzz/run.sh --seconds 60 || result=1
  return "$result"
}
# Without CUDA sources and without the trainer.
tsan() { configure tsan && cmake --build --preset tsan && cases tsan -j 2 -LE "full|slow"; }
# Checks the format of the sources and runs shellcheck. Lints the protos and compares them with the last ten versions
# that landed: on a branch, the versions that main had where the branch began; on main, its own versions. Ten, because
# commits that land together are checked only once, and the newest of them may not have changed the protos, or only a
# comment. Commits of a merged branch were never a version of main. If the clone's history has no version other than
# HEAD's, the lint fails. proto/buf.yaml lists intended breaks.
lint() {
  local landed now versions version other=""
  landed=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  now=$(git rev-parse HEAD:proto/nibble)
  mapfile -t versions < <(git log -n 10 --first-parent --format=%H "$landed" -- proto/nibble)
  for version in "${versions[@]}"; do
    [[ $(git rev-parse "$version:proto/nibble") == "$now" ]] || other=$version
  done
  if [[ -z $other ]]; then
    echo "lint: FAILED: no commit to compare the protos with; get a shallow clone's history with: git fetch --unshallow"
    return 1
  fi
  tests/format.sh || return 1
  shellcheck -x deploy/*.sh proto/*.sh tests/*.sh tests/fuzz/*.sh cmake/*.sh .ci/run || return 1
  echo "shellcheck: clean"
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
  section kubernetes 'passed|failed' kubernetes
  section long "$said_by_ctest" cases release -L "full|slow"
  section ci 'Linking|Building|no work' ci
  section clang 'Linking|Building|no work' clang
  section asan "$said_by_ctest" asan
  section tsan "$said_by_ctest" tsan
  section fuzz 'runs|FOUND' fuzzers
  section lint 'clean|SC[0-9]|FAILED' lint
fi
finish
