#!/usr/bin/env bash
# Writes the header that identifies the sources of a build, for server/build_info.cc. A header whose text
# would not change is left alone, so that nothing is recompiled. Usage: cmake/build_info.sh HEADER COMMIT CUDA
#   COMMIT  commit of a release. An empty argument stands for the commit that git reports; the header then has an empty
#           commit if there is no history
#   CUDA    version of the toolkit, or the word none
# The digest is the SHA-256 of the output of `sha256sum` for every file below client/, kernels/, proto/ and server/, in
# the order of the bytes of their names. A clone, a tarball and an image of the same sources have the same digest. Files
# that building and editing leave there (target/, __pycache__/, hidden files) do not count.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)
header=$1 commit=$2 cuda=$3

# A tarball inside another project's clone must not report that project's commit.
if [[ -z $commit && -e $root/.git ]]; then
  # Takes no lock, because a commit may be in progress.
  commit=$(GIT_OPTIONAL_LOCKS=0 git -C "$root" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null || true)
fi
digest=$(cd "$root" &&
  find client kernels proto server \( -name target -o -name __pycache__ -o -name '.*' \) -prune -o -type f -print0 |
  sort -z | xargs -0 sha256sum | sha256sum)

mkdir -p "$(dirname "$header")"
made=$header.made
trap 'rm -f "$made"' EXIT
cat >"$made" <<EOF
// Made by cmake/build_info.sh.
#pragma once
#define NIBBLE_BUILD_COMMIT "$commit"
#define NIBBLE_BUILD_CODE_DIGEST "${digest%% *}"
#define NIBBLE_BUILD_CUDA "$cuda"
EOF
cmp -s "$made" "$header" || mv "$made" "$header"
