"""A run of the quickstart: its exit code, its figures, the answers before and after, its commands, and --stop."""
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import urllib.request

import pytest

from conftest import ROOT


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


@pytest.mark.full
def test_quickstart_prints_its_figures_and_leaves_a_server(tmp_path):
    script, work, grpc, http = ROOT / "deploy/quickstart.sh", tmp_path / "quickstart", free_address(), free_address()
    run = subprocess.run([script, "--steps", "40", "--dir", work, "--grpc_address", grpc, "--http_address", http], cwd=tmp_path,
                         capture_output=True, text=True, timeout=1700)
    try:
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]

        def figure(words):
            return float(re.search(rf"^{re.escape(words)}\s+([0-9.]+(?:e-?[0-9]+)?)", run.stdout, re.M).group(1))
        before, trained, served = (figure("evaluation loss " + words) for words in ("before", "after (trained)", "after (int8)"))
        assert trained < before and abs(served - trained) < 0.1
        assert figure("adapter, server vs. trainer") <= 1e-2, "nats, over the recorded rows of WordNet"
        for words in ("training tokens/s", "peak memory of the trainer", "kernel launches per step"):
            assert figure(words) > 0
        assert re.search(r"logits equal bit for bit: True, rows compared: [1-9]", run.stdout)
        assert len(re.findall(r"^--- line \d+", run.stdout, re.M)) == 4, "held-out questions, answered before and after"
        right = [figure("held-out answers right " + words) for words in ("before", "after (trained)", "after (int8)")]
        assert right[0] <= 0.1 and right[1] >= 0.5 and right[2] >= 0.5, right
        assert re.search(r"^training loss\n +[0-9.]+ \|.*\*", run.stdout, re.M), "the curve"
        rows = [json.loads(line)["messages"] for line in (work / "data/train.jsonl").read_text().splitlines()]
        assert sum(len(message["content"].encode()) for row in rows for message in row) >= 1_000_000, "bytes of the text itself"
        held_out = [json.loads(line)["messages"][0] for line in (work / "data/eval.jsonl").read_text().splitlines()]
        assert not any(row[0] in held_out for row in rows)
        assert re.search(r"^built in \d+ s", run.stdout, re.M), "the build takes one line where there is no terminal"
        commands = [shlex.split(line) for line in run.stdout.splitlines() if line.startswith("  /") and "/nibble " in line]
        assert len(commands) == 3
        for command in commands:
            assert subprocess.run(command, capture_output=True, timeout=300).stdout.strip(), command
        address = re.search(r"browser: (http://\S+)", run.stdout).group(1)
        assert b"nibble_" in urllib.request.urlopen(address, timeout=10).read()
    finally:
        pid = int((work / "nibbled.pid").read_text())
        stopped = subprocess.run([script, "--stop", "--dir", work], capture_output=True, text=True, timeout=60)
    assert stopped.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_quickstart_ends_at_once_on_a_nearly_full_disk(tmp_path):
    free = (2 << 30) - 1
    df = tmp_path / "bin/df"
    df.parent.mkdir()
    df.write_text(f"#!/bin/sh\necho Avail\necho {free}\n")
    df.chmod(0o755)
    run = subprocess.run([ROOT / "deploy/quickstart.sh", "--dir", tmp_path / "new/quickstart"], capture_output=True, text=True,
                         timeout=60, env={"PATH": f"{df.parent}:{os.environ['PATH']}"})
    assert run.returncode == 1 and run.stdout == "", run
    assert "are free on the disk of" in run.stderr and "wanted 2.0GiB: 1 GiB for the run" in run.stderr, run.stderr
    assert not (tmp_path / "new").exists()


def curve_of(losses):
    spec = importlib.util.spec_from_file_location("quickstart_summary", ROOT / "deploy/quickstart_summary.py")
    summary = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(summary)
    return list(summary.curve(losses))


@pytest.mark.parametrize("count", (1, 2, 59, 60, 61, 1000))
def test_curve_of_a_falling_loss_falls(count):
    rows = curve_of([float(count - i) for i in range(count)])
    assert len(rows) == 10 and all(len(row) <= 72 for row in rows)
    heights = [next(y for y, row in enumerate(rows[:8]) if row[10 + x] == "*") for x in range(min(count, 60))]
    assert heights == sorted(heights) and heights[0] == 0


def test_curve_of_one_value_is_flat():
    assert all("*" not in row for row in curve_of([2.0, 2.0, 2.0])[1:])
