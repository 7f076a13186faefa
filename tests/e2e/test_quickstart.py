"""A short run of the quickstart: its exit code, its figures, the commands that it prints, and --stop."""
import json
import os
import re
import shlex
import socket
import subprocess
import urllib.request

import pytest

from conftest import ROOT

pytestmark = pytest.mark.full


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


def test_quickstart_prints_its_figures_and_leaves_a_server(tmp_path):
    script, work, grpc, http = ROOT / "deploy/quickstart.sh", tmp_path / "quickstart", free_address(), free_address()
    run = subprocess.run([script, "--steps", "6", "--dir", work, "--grpc_address", grpc, "--http_address", http], cwd=tmp_path,
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
        assert len(re.findall(r"^  Define: ", run.stdout, re.M)) == 6, "three questions, before and after"
        answers = [message["content"] for path in (work / "data").glob("*.jsonl") for line in path.read_text().splitlines()
                   for message in json.loads(line)["messages"] if message["role"] == "assistant"]
        assert sum(len(answer.encode()) for answer in answers) >= 1_000_000, "bytes of the text itself, without JSON"
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
