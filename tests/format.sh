#!/usr/bin/env bash
# Checks that the C++ and CUDA sources look as clang-format writes them (.clang-format), or with --fix rewrites them.
#   tests/format.sh [--fix] [FILE...]    without files: all sources that git tracks
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tool=build/deps/venv/bin/clang-format
[[ -x $tool ]] || { echo "format: $tool does not exist; install it with: deploy/setup.sh --tests" >&2; exit 2; }
fix=false
if [[ ${1-} == --fix ]]; then
  fix=true
  shift
fi
if (($#)); then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
fi
if $fix; then
  printf '%s\0' "${files[@]}" | xargs -0 "$tool" -i
elif printf '%s\0' "${files[@]}" | xargs -0 "$tool" --dry-run -Werror; then
  echo "format: clean, ${#files[@]} files"
else
  echo "format: FAILED; mend it with: tests/format.sh --fix" >&2
  exit 1
fi
