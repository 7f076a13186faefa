"""Runs a root file system made by image_root.py, like a container runtime with --read-only: separate mounts, processes
and loopback, uid 65532, no capabilities, every file system read-only except the state volume. Makes volumes and Secrets
as the kubelet does for a pod."""
import datetime
import os
import pathlib
import shlex
import signal
import subprocess
from soon import soon

UID = 65532
SETUP = r'''
set -e
root=$1 volume=$2; shift 2
mount --make-rprivate /
mounts=()
while [[ $1 != -- ]]; do mounts+=("$1"); mkdir -p "$root${1#*:}"; shift; done
shift
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc -o ro,nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o mode=0755,nosuid tmpfs "$root/dev"
for device in null zero random urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mount -o remount,ro "$root/dev"
mount --bind "$volume" "$root/var/lib/nibble"
for pair in "${mounts[@]}"; do
  mount --bind "${pair%%:*}" "$root${pair#*:}"
  mount -o remount,bind,ro "$root${pair#*:}"
done
# chroot first, because it needs a capability that setpriv drops; setpriv is the one in the new root.
exec chroot "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin /usr/bin/setpriv --reuid 65532 --regid 65532 --clear-groups \
  --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all "$@"
'''


def make_pod_volume(folder):
    """An empty volume under fsGroup: owned by root, writable by the group, which also owns new files in it."""
    folder.mkdir()
    os.chown(folder, 0, UID)
    folder.chmod(0o2775)


def write_secret(folder, files):
    """Writes {key: bytes} as the kubelet does for a Secret with defaultMode 0440 under fsGroup: files of root, readable
    by the group, in a new folder; ..data links to that folder, and a link for each key to the file below ..data. A
    later call changes all files by one rename of ..data."""
    folder.mkdir(exist_ok=True)
    os.chown(folder, 0, UID)
    folder.chmod(0o3777)
    moment = datetime.datetime.now().strftime("..%Y_%m_%d_%H_%M_%S.%f")
    (folder / moment).mkdir()
    os.chown(folder / moment, 0, UID)
    (folder / moment).chmod(0o2755)
    for key, content in files.items():
        (folder / moment / key).write_bytes(content)
        os.chown(folder / moment / key, 0, UID)
        (folder / moment / key).chmod(0o440)
    (folder / "..data_tmp").symlink_to(moment)
    (folder / "..data_tmp").rename(folder / "..data")
    for key in files:
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(f"..data/{key}")


class Container:
    """`command` runs as process 1. `volume` is the state directory; if it is missing, it is created as docker does,
    owned by the container's user. `mounts` are {path inside: folder of the host}, read-only like Secrets."""

    def __init__(self, root, volume, command, log, mounts=None):
        self.root, self.volume, self.log = pathlib.Path(root), pathlib.Path(volume), pathlib.Path(log)
        if not self.volume.exists():
            self.volume.mkdir(parents=True)
            os.chown(self.volume, UID, UID)
            self.volume.chmod(0o750)
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL", "bash", "-c", SETUP,
                 "container", self.root, self.volume, *(f"{source}:{target}" for target, source in (mounts or {}).items()), "--",
                 *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.pid = self._first_process()

    def _first_process(self):
        """The host's pid of process 1 of the container. Waits until that process runs as UID, as the command does."""
        def first_child():
            assert self.process.poll() is None, self.text()
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if not children or not pathlib.Path(f"/proc/{children[0]}/status").exists():
                return None
            status = pathlib.Path(f"/proc/{children[0]}/status").read_text()
            return int(children[0]) if f"Uid:\t{UID}" in status else None
        return soon(first_child, lambda: f"process 1 has uid {UID}: {self.text()}", 20)

    def run(self, *command, check=True):
        """Runs another process in the container, like `docker exec`."""
        result = subprocess.run(["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--root", "--wd=/", "--setuid",
                                 str(UID), "--setgid", str(UID), "--", *map(str, command)], capture_output=True, text=True, timeout=300)
        said = f"{shlex.join(map(str, command))}: {result.returncode}: {result.stdout}{result.stderr}\n{self.text()}"
        assert not check or result.returncode == 0, said
        return result

    def text(self):
        return self.log.read_text(errors="replace")[-4000:]

    def status(self):
        return dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":\t" in line)

    def stop(self, sign=signal.SIGTERM, timeout=60):
        if self.process.poll() is None:
            os.kill(self.pid, sign)
        return self.process.wait(timeout=timeout)
