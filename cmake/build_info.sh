#!/usr/bin/env bash
# Writes the header that says what a build is made of (server/build_info.cc). One that would say the same is left alone, so that
# nothing is compiled again. Usage: cmake/build_info.sh HEADER COMMIT CUDA
#   COMMIT  told by who builds a release; "": what git says of a clone, nothing where there is no history
#   CUDA    version of the toolkit, or none
# The digest is the SHA-256 of what `sha256sum` prints for every file below client/, kernels/, proto/ and server/, in the order of
# their names' bytes: a clone, a tarball and an image of the same sources have the same. What building and editing leave there
# (target/, __pycache__/, hidden files) is no source.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)
header=$1 commit=$2 cuda=$3

# A tarball that lies inside of another project's clone is not that project.
if [[ -z $commit && -e $root/.git ]]; then
  # Takes no lock: somebody may be committing.
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
