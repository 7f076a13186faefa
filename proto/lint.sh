#!/usr/bin/env bash
# Lints the protos (that every element has a comment: buf.yaml); with a second argument, also compares them with that commit's:
# a client that was built with them must still work. A commit without one of the "# Intended break:" lines of today's buf.yaml has the
# contract from before that break and is not compared. Usage: proto/lint.sh GOOGLEAPIS_DIR [COMMIT]. Needs protoc and buf (PyPI:
# buf-bin==1.75.0). tests/run.sh always names a commit.
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
# What buf does not look at: the length of a line, that the comment of a field that may be left out says what it is then, and that of
# an rpc how it fails. A service may list the errors of all its methods; that those of common.proto are shared is no such list.
find proto/nibble -name '*.proto' -exec awk '
  function said() { return tolower(comment) ~ /default|unset|unimplemented/ }
  length > 140 { print FILENAME ":" FNR ": a line of " length " characters, wanted at most 140"; bad = 1 }
  /^ *\/\// { comment = comment $0; next }
  /^ *optional / && !said() { print FILENAME ":" FNR ": an optional field whose comment names no default"; bad = 1 }
  /^service / { listed = comment ~ /Errors[^.:]*:/ }
  /^ *rpc / && !listed && comment !~ /Errors|UNIMPLEMENTED/ {
    sub(/\(.*/, "", $2)
    print FILENAME ":" FNR ": rpc " $2 ": neither its comment nor that of its service names its Errors"
    bad = 1
  }
  { comment = "" }
  END { exit bad }' {} +
if [[ $# -gt 1 ]]; then
  before=$(git show "$2:proto/buf.yaml")
  while read -r break; do
    if ! grep -qxF -e "$break" <<<"$before"; then
      echo "protos: clean, not compared with $2: it is from before \"${break#\# }\""
      exit 0
    fi
  done < <(grep '^# Intended break:' proto/buf.yaml || true)
  mkdir "$work/then"
  git archive "$2" proto | tar -x -C "$work/then"
  image "$work/then/proto" "$work/then.binpb"
  buf breaking "$work/now.binpb" --against "$work/then.binpb" --config proto/buf.yaml
fi
echo "protos: clean, compared with ${2:-nothing: no commit was named}"
