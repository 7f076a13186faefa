#!/usr/bin/env bash
# Usage: proto/lint.sh GOOGLEAPIS_DIR [COMMIT]
# Lints the protos (buf.yaml; every element needs a comment). With COMMIT, also checks that a client built with the
# protos of that commit still works. A commit that lacks one of the "# Intended break:" lines of the current buf.yaml
# has the API from before that break and is not compared. Needs protoc and buf (PyPI: buf-bin==1.75.0). tests/run.sh
# always passes a commit.
set -euo pipefail
cd "$(dirname "$0")/.."
googleapis=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

image() {  # FOLDER OUT: one descriptor set, so that buf needs no registry for google's protos.
  local files
  mapfile -t files < <(cd "$1" && find nibble -name '*.proto' | sort)
  (cd "$1" && protoc -I . -I "$googleapis" --include_imports --include_source_info -o "$2" "${files[@]}")
}
googleapis=$(cd "$googleapis" && pwd)
image proto "$work/now.binpb"
buf lint "$work/now.binpb" --config proto/buf.yaml
# Checks that buf does not make: the length of lines; the comment of an optional field gives its default; the comment of
# an rpc, or that of its service for all methods, lists the errors. "The errors that every method shares are in
# common.proto" does not count as a list.
find proto/nibble -name '*.proto' -exec awk '
  function said() { return tolower(comment) ~ /default|unset|unimplemented/ }
  length > 140 { print FILENAME ":" FNR ": the line has " length " characters, wanted at most 140"; bad = 1 }
  /^ *\/\// { comment = comment $0; next }
  /^ *optional / && !said() { print FILENAME ":" FNR ": an optional field whose comment gives no default"; bad = 1 }
  /^service / { listed = comment ~ /Errors[^.:]*:/ }
  /^ *rpc / && !listed && comment !~ /Errors|UNIMPLEMENTED/ {
    sub(/\(.*/, "", $2)
    print FILENAME ":" FNR ": rpc " $2 ": neither its comment nor that of its service lists its Errors"
    bad = 1
  }
  { comment = "" }
  END { exit bad }' {} +
if [[ $# -gt 1 ]]; then
  before=$(git show "$2:proto/buf.yaml")
  while read -r break; do
    if ! grep -qxF -e "$break" <<<"$before"; then
      echo "protos: clean, not compared with $2, which is from before \"${break#\# }\""
      exit 0
    fi
  done < <(grep '^# Intended break:' proto/buf.yaml || true)
  mkdir "$work/then"
  git archive "$2" proto | tar -x -C "$work/then"
  image "$work/then/proto" "$work/then.binpb"
  buf breaking "$work/now.binpb" --against "$work/then.binpb" --config proto/buf.yaml
fi
echo "protos: clean, compared with ${2:-nothing: no commit was given}"
