#!/usr/bin/env bash
# Runs tests/kubernetes/test_node.py: real pods, by a real kubelet. Needs root and `deploy/setup.sh --node`, and takes
# about three minutes.
#   tests/node.sh [--images DIR] [ARGUMENT OF PYTEST ...]
# Everything runs in separate namespaces (processes, mounts, network), so processes, mounts and network vanish when the
# script ends, however it ends. The pods' control groups belong to the machine: the script removes them, but after a
# SIGKILL, empty ones and build/node-* remain. The programs are those of build/release/bin, or with --images those in
# the roots DIR/server and DIR/trainer, which `tests/run.sh --full --only image` leaves in build/image.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
fail() { printf 'node.sh: %s\n' "$*" >&2; exit 1; }

((EUID == 0)) || fail "needs root (namespaces, mounts, control groups)"
[[ -d /sys/fs/cgroup/memory ]] || fail "needs control groups of version 1: /sys/fs/cgroup/memory does not exist"
[[ $(</sys/fs/cgroup/cpuset/cpuset.mems) ]] || fail "needs memory nodes in /sys/fs/cgroup/cpuset/cpuset.mems"

mkdir -p build
free=$(df -Pm build | awk 'NR == 2 {print $4}')
((free >= 6000)) || fail "needs 6000 MB in build for the images; $free MB are free"
work=$(mktemp -d "$root/build/node-XXXXXX")
cgroup=nibble-$(basename "$work")
memory_bytes=$((3 << 30))  # of all pods together

# Control groups of the pods; without them, the kubelet would use the machine's top level.
make_cgroups() {
  local controller
  for controller in /sys/fs/cgroup/*/; do
    mkdir "$controller$cgroup"
  done
  cat /sys/fs/cgroup/cpuset/cpuset.cpus >"/sys/fs/cgroup/cpuset/$cgroup/cpuset.cpus"
  cat /sys/fs/cgroup/cpuset/cpuset.mems >"/sys/fs/cgroup/cpuset/$cgroup/cpuset.mems"
  echo "$memory_bytes" >"/sys/fs/cgroup/memory/$cgroup/memory.limit_in_bytes"
}

clean_up() {
  local folder left=0
  # The namespaces have ended, and with them all processes and mounts.
  for folder in /sys/fs/cgroup/*/"$cgroup"; do
    [[ -d $folder ]] || continue
    find "$folder" -depth -type d -exec rmdir {} \; || left=1
  done
  rm -rf --one-file-system "$work" || left=1
  ((left == 0)) || fail "could not remove everything: see the errors above"
}

# The first process of the namespaces: bash, because it also waits for processes that lost their parent.
inside() {
  local fake=$work/sysctl name value
  mount --make-rprivate /
  mkdir -p "$work"/{lib,log,home,sysctl}
  mount --bind "$work/lib" /var/lib
  mount --bind "$work/log" /var/log
  mount -t tmpfs -o mode=0755 tmpfs /run
  # The kubelet ends if the machine has other settings than these, so it sees files with these values in their place.
  while read -r name value; do
    echo "$value" >"$fake/${name//\//-}"
    mount --bind "$fake/${name//\//-}" "/proc/sys/$name"
  done <<<"vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000"
  ip link set lo up
  ip address add 10.96.0.1/32 dev lo
  # The bridge gets a fixed MAC address: otherwise it has that of one of its ports, which changes as pods come and go,
  # and pods that remember the old address reach neither the API server nor the kubelet for half a minute.
  ip link add name node0 address 02:00:00:00:00:01 type bridge
  ip address add 192.168.77.1/24 dev node0
  ip link set node0 up
  # Nothing answers there, but the kubelet and the API server look for the interface of a default route.
  ip route add default via 192.168.77.254
  HOME=$work/home NIBBLE_NODE_CGROUP=$cgroup build/deps/venv/bin/python -m pytest -q -ra --node \
    --basetemp "$work/pytest" -p no:cacheprovider "$@" tests/kubernetes/test_node.py
}

trap clean_up EXIT
make_cgroups
export -f inside
export work cgroup
# In the background, so that a signal for this script ends the namespaces at once; so does SIGKILL, through --pdeathsig.
setpriv --pdeathsig KILL unshare --net --mount --pid --ipc --uts --fork --kill-child --mount-proc \
  bash -euo pipefail -c 'inside "$@"' inside "$@" &
child=$!
# unshare waits for the first process, which the kernel ends after all others; after that nothing is in use.
trap 'pkill -KILL -P "$child" || kill -KILL "$child"; wait "$child" || exit 1' INT TERM HUP
wait "$child"
