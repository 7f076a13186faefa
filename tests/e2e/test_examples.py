"""Runs the programs of client/examples against a real server."""
import json
import re
import subprocess

import pytest

from conftest import BIN


def run(name, *arguments, exit_code=0):
    command = [BIN / f"example_{name}", *map(str, arguments)]
    result = subprocess.run(command, env={}, capture_output=True, text=True, timeout=300)
    assert result.returncode == exit_code, result.stdout + result.stderr
    return result


def test_rows_are_uploaded_and_previewed(shared, tmp_path):
    rows = [{"prompt": f"Is {word} wet? ", "completion": "yes"} for word in ("rain", "the sea", "dew")]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("upload_and_preview", shared.grpc, path, "examples", "small")
    first, *shown = result.stdout.splitlines()
    assert first == "examples: 3 rows" and f"of {path.stat().st_size} bytes" in result.stderr
    assert [line.split(":")[0] for line in shown] == ["row 1", "row 2"]
    trained = re.findall(r"\[(.+?)\]", shown[0])
    assert trained[:3] == ["y", "e", "s"], "the small model has a token for each byte"
    assert len(trained) <= 4, "only the completion and the end of the text are trained"


def test_job_is_created_and_watched(shared):
    result = run("train_and_watch", shared.grpc, "small", "page", "example-tuned")
    lines = result.stdout.splitlines()
    losses = [float(re.search(r"loss (\S+)", line).group(1)) for line in lines if line.startswith("step ")]
    assert len(losses) == 10 and losses[-1] < losses[0]
    assert lines[-2:] == ["model example-tuned", "JOB_STATE_SUCCEEDED"]
    refused = run("train_and_watch", shared.grpc, "small", "no-such-data", "unused", exit_code=1)
    assert "NOT_FOUND" in refused.stderr and "no-such-data" in refused.stderr


def test_text_is_streamed(shared):
    result = run("generate_stream", shared.grpc, "small-int8", "The keeper of the light")
    wanted = shared.json("generate", "small-int8", "--prompt", "The keeper of the light", "--max-tokens", 16)
    assert result.stdout == wanted["text"] + "\n"
    assert f"{wanted['usage']['completion_tokens']} tokens" in result.stderr


@pytest.mark.parametrize("name", ["upload_and_preview", "train_and_watch", "generate_stream"])
def test_usage_is_printed(name):
    assert run(name, exit_code=2).stderr.startswith(f"usage: example_{name} HOST:PORT ")
