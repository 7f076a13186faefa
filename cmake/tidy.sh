#!/usr/bin/env bash
# clang-tidy with a cache, for CMake's CXX_CLANG_TIDY: a source that passed is not checked again while its preprocessed
# text, the rules and the tool are the same. Usage: tidy.sh CLANG_TIDY [OPTION...] SOURCE -- COMPILER ARGUMENT...
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/build/deps/tidy
tool=$1
arguments=("$@")

preprocess=()
while [[ $1 != -- ]]; do source=$1; shift; done
shift
while (($#)); do
  case $1 in
    -o | -MT | -MF) shift ;;
    -c | -MD) ;;
    *) preprocess+=("$1") ;;
  esac
  shift
done
text=$(mktemp)
trap 'rm -f "$text"' EXIT
# The key must not depend on the path of the checkout.
"${preprocess[@]}" -E -o - | sed "s|$root/||g" >"$text"
key() { { cat "$text" "$@"; "$tool" --version; } | sha256sum | cut -d ' ' -f 1; }
passed=$(key "$root/.clang-tidy")
[[ ! -e $cache/$passed ]] || exit 0
if [[ $source == "$root"/tests/* ]]; then  # tests have fewer rules; a source that passed all rules also passed these
  passed=$(key "$root/.clang-tidy" "$root/tests/.clang-tidy")
  [[ ! -e $cache/$passed ]] || exit 0
fi
"${arguments[@]}"
mkdir -p "$cache"
: >"$cache/$passed"
