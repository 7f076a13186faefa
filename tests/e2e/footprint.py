"""Resources used by nibbled and its trainers: resident memory, open files, bytes on disk.

Reads /proc, which needs root or the user of the processes."""
import contextlib
import dataclasses
import json
import os
import pathlib
import threading
import time

from conftest import ROOT

LOGS = pathlib.Path(os.environ.get("NIBBLE_TEST_LOGS", ROOT / "build/test-logs"))


@dataclasses.dataclass(frozen=True)
class Memory:
    """In bytes. `file`: pages of mapped files, which the kernel may take back; they count in `rss`."""
    rss: int = 0
    anon: int = 0
    file: int = 0
    peak: int = 0

    def __add__(self, other):
        return Memory(*(getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(self)))


def memory(pid):
    """Memory of a process; all zero when the process has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return Memory()
    found = dict(line.split(":", 1) for line in status.splitlines() if line.endswith(" kB"))
    return Memory(*(int(found.get(key, "0").split()[0]) * 1024 for key in ("VmRSS", "RssAnon", "RssFile", "VmHWM")))


def trainer_pids(state):
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = pathlib.Path(entry.path, "cmdline").read_bytes()
                if b"nibble-trainer" in arguments.split(b"\0")[0] and os.fsencode(state) in arguments:
                    found.append(int(entry.name))
    return found


def open_files(pid):
    """Maps each open descriptor to the target of its link in /proc."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def disk_bytes(folder):
    """Allocated bytes of all files and folders below `folder`; a file with several links counts once."""
    inodes = {}
    folders = [folder]
    while folders:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folders.pop()):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    inodes[status.st_ino] = status.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return sum(inodes.values())


@dataclasses.dataclass(frozen=True)
class Sample:
    at: float  # monotonic
    phase: str
    server: Memory
    trainers: Memory
    files: int
    disk: int


class Sampler:
    """Samples every `period` seconds while entered; `with sampler.phase(NAME)` labels the samples taken meanwhile."""

    def __init__(self, server, period=0.25, disk=True):
        self.server, self.period, self.disk = server, period, disk
        self.samples, self.seconds, self.current = [], {}, ""
        self.failure = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        try:
            while not self.stop.wait(self.period):
                self.samples.append(self.take())
        except Exception as error:  # __exit__ reports it
            self.failure = error

    def take(self):
        pid = self.server.process.pid
        try:
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except FileNotFoundError:  # the server was killed
            files = 0
        return Sample(time.monotonic(), self.current, memory(pid), sum(map(memory, trainer_pids(self.server.state)), Memory()), files,
                      disk_bytes(self.server.state) if self.disk else 0)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        assert self.failure is None, f"sampling failed: {self.failure!r}"

    @contextlib.contextmanager
    def phase(self, name):
        began, self.current = time.monotonic(), name
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began
            self.samples.append(self.take())  # at least one sample, however short the phase
            self.current = ""
            print(f"{name}: {self.seconds[name]:.1f} s", flush=True)

    def of(self, phase):
        return [sample for sample in self.samples if sample.phase == phase]


def write_json(name, value):
    """Writes to the folder NIBBLE_TEST_LOGS, by default that of the logs of tests/run.sh."""
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / name).write_text(json.dumps(value, indent=1) + "\n")
    print(f"wrote {LOGS / name}")
