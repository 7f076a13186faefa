#!/usr/bin/env bash
# clang-tidy with a memory, for CMake's CXX_CLANG_TIDY: a source that passed is not looked at again while its preprocessed
# text, the rules and the tool are the same. Called as: tidy.sh CLANG_TIDY [OPTION...] SOURCE -- COMPILER ARGUMENT...
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
memory=$root/build/deps/tidy
tool=$1
arguments=("$@")

preprocess=()
while [[ $1 != -- ]]; do shift; done
shift
while (($#)); do
  case $1 in
    -o | -MT | -MF) shift ;;
    -c | -MD) ;;
    *) preprocess+=("$1") ;;
  esac
  shift
done
# Where the checkout lies makes no difference.
key=$({ "${preprocess[@]}" -E -o - | sed "s|$root/||g"; cat "$root/.clang-tidy"; "$tool" --version; } | sha256sum | cut -d ' ' -f 1)
[[ ! -e $memory/$key ]] || exit 0
"${arguments[@]}"
mkdir -p "$memory"
: >"$memory/$key"
