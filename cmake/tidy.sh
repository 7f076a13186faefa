#!/usr/bin/env bash
# clang-tidy with a cache, for CMake's CXX_CLANG_TIDY: a source that passed is not checked again while its preprocessed
# text, its NOLINT comments, the rules, the command and the tool are the same.
# Usage: tidy.sh CLANG_TIDY [OPTION...] SOURCE -- COMPILER ARGUMENT...
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/build/deps/tidy
tool=$1
arguments=("$@")

preprocess=()
while [[ $1 != -- ]]; do source=$1; shift; done  # keeps the last argument before --
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
# -E drops comments, so the lines with NOLINT, and those after them, come from a second run, with -C. -P drops the
# numbers of lines, which change with each comment. The key must not depend on the path of the checkout.
{
  "${preprocess[@]}" -E -P -o -
  "${preprocess[@]}" -E -P -C -o - | grep -A 1 NOLINT || true
  printf '%s\n' "${arguments[@]}"
} | sed "s|$root/||g" >"$text"
rules=("$root/.clang-tidy")
# A source that CMake wrote to include four tests (NIBBLE_UNITY) is in the build folder, above which clang-tidy finds
# only the root's rules.
if [[ $source == "$root"/tests/* || $source == "$root"/build/*/tests/*/Unity/* ]]; then
  rules+=("$root/tests/.clang-tidy")
  arguments=("$tool" "--config-file=$root/tests/.clang-tidy" "${arguments[@]:1}")
fi
key=$({ cat "$text" "${rules[@]}"; "$tool" --version; } | sha256sum | cut -d ' ' -f 1)
[[ ! -e $cache/$key ]] || exit 0
"${arguments[@]}"
mkdir -p "$cache"
: >"$cache/$key"
