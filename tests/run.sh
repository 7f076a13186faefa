#!/usr/bin/env bash
# Installs what the tests need, builds everything (CUDA sources too) and passes all tests.
#   tests/run.sh          unit tests against committed goldens, end-to-end tests on a small model
#   tests/run.sh --full   also what takes long: live peers, the real model, sanitizers, large counts
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
full=false
case ${1-} in
  "") ;;
  --full) full=true ;;
  *) echo "usage: tests/run.sh [--full]" >&2; exit 2 ;;
esac
cd "$root"
say() { printf '\n== %s\n' "$*"; }

say "Set-up"
setup=(--cuda on --tests)
if $full; then setup+=(--full --peers); fi
deploy/setup.sh "${setup[@]}"

say "Release build, CUDA sources included"
cmake --preset release -DNIBBLE_CUDA=ON -DNIBBLE_BENCH=ON >build/configure.log || { tail -n 40 build/configure.log >&2; exit 1; }
cmake --build --preset release

say "Unit tests"
ctest --preset release -j 2 -LE "full|slow"

say "End-to-end tests"
python=build/deps/venv/bin/python
if $full; then
  $python -m pytest -q -ra tests/e2e
else
  $python -m pytest -q -ra tests/e2e -m "not full"
fi

if $full; then
  say "Long tests"
  ctest --preset release -L "full|slow"
  for preset in asan ubsan; do
    say "Sanitizer: $preset"
    cmake --preset "$preset" >build/configure-$preset.log
    cmake --build --preset "$preset"
    ctest --preset "$preset" -LE "full|slow"
  done
fi
