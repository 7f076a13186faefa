"""Shared by the benchmarks: a nibbled of their own, a dataset and a training job."""
import contextlib
import json
import pathlib
import platform
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from soon import soon


def cpu_name():
    return next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())


@contextlib.contextmanager
def serve(programs, state, *flags):
    """Runs nibbled with 2 threads; yields a function that runs `nibble --json ARGUMENT...` and returns its output."""
    programs, state = pathlib.Path(programs), pathlib.Path(state)
    server = subprocess.Popen([programs / "nibbled", "--state_dir", state, "--grpc_address", "127.0.0.1:0", "--http_address", "127.0.0.1:0",
                               "--threads", "2", *map(str, flags)], stderr=subprocess.DEVNULL)
    try:
        soon(lambda: server.poll() is not None or (state / "server.json").exists(), "nibbled has started", 20)
        assert server.poll() is None, "nibbled did not start"
        address = json.loads((state / "server.json").read_text())["grpc_address"]

        def nibble(*arguments):
            return subprocess.run([programs / "nibble", "--server", address, "--json", *map(str, arguments)], check=True,
                                  capture_output=True, text=True).stdout
        yield nibble
    finally:
        server.terminate()
        server.wait()


def write_prose(path):
    """Writes a dataset of one row, a text of about 400 kB, to `path`; returns `path`."""
    path.write_text(json.dumps({"text": pathlib.Path("/usr/share/common-licenses/GPL-3").read_text() * 12}) + "\n")
    return path


def train(nibble, output, steps):
    """Runs a QLoRA job of 4 x 256 tokens, rank 16, on base "base" and dataset "prose"; returns its step events."""
    events = nibble("jobs", "create", "--method", "qlora", "--base", "base", "--dataset", "prose", "--output", output, "--max-steps", steps,
                    "--micro-batch", 4, "--seq-len", 256, "--lr", "1e-4", "--rank", 16, "--alpha", 32, "--save-every", 0, "--watch")
    step_events = [event for event in map(json.loads, events.splitlines()) if event.get("type") == "step"]
    assert len(step_events) == steps and all(step["tokens"] == 1024 for step in step_events), \
        f"not {steps} steps of 4 x 256 tokens"
    assert step_events[-1]["loss"] < step_events[0]["loss"] * 1.05
    return step_events
