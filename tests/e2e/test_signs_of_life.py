"""T4 of docs/faults.md: a trainer shows life and checks for SIGTERM during all long work."""
import json
import os
import signal

import pytest

import small_model
from conftest import TRAIN, trainers
from test_checkpoint_faults import is_stopped
from test_kill import SETTINGS
from test_reliability import prepare
from soon import soon

STEPS = 6


def start(make_server, model_directory, text_file, failpoint):
    """Starts a server whose trainers get this failpoint, PART:N:ACTION (server/base/failpoint_files.h)."""
    server = make_server("--retry_backoff_scale", "0.0001")
    server.stop()
    server.environment = {"NIBBLE_FAILPOINT": failpoint}
    server.start()
    return prepare(server, model_directory, text_file)


def create(server, method, output):
    return server.json("jobs", "create", "--method", method, "--base", "small", "--dataset", "page", "--output", output,
                       "--max-steps", STEPS, "--save-every", 50, *SETTINGS[method])["id"]


def terminate_where_it_stands(server, job, command=None):
    """Waits until the first attempt has stopped itself, asks it to end, and continues it. Returns its directory,
    journal and outcome."""
    soon(lambda: [pid for pid in trainers(server) if is_stopped(pid)])
    (pid,) = trainers(server)
    if command is None:
        os.kill(pid, signal.SIGTERM)
    else:
        server.run("jobs", command, job)
    os.kill(pid, signal.SIGCONT)
    soon(lambda: pid not in trainers(server))
    directory = server.state / "jobs" / job / "attempts/1"
    journal = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    return directory, journal, json.loads((directory / "outcome.json").read_text())


def undisturbed(server, method):
    server.stop()
    server.environment = {}
    server.start()
    server.run("jobs", "watch", create(server, method, "calm"))
    return server.json("models", "get", "calm")["digest"]


@pytest.mark.parametrize("method", ["qlora", "bitnet_qat"])
def test_T4_sigterm_while_publishing_loses_no_step(make_server, model_directory, text_file, method):
    server = start(make_server, model_directory, text_file, "attempts/1/output.tmp.:1:stop")
    job = create(server, method, "out")
    directory, journal, outcome = terminate_where_it_stands(server, job)
    assert outcome["outcome"] == "paused" and outcome["exit_code"] == 75
    assert [line["step"] for line in journal if line["type"] == "checkpoint"] == [STEPS]
    server.run("jobs", "watch", job)
    got, events = server.json("jobs", "get", job), server.lines("jobs", "watch", job)
    assert got["state"] == "SUCCEEDED" and got["attempt"] == 2 and got["retries"] == 0
    assert [e["step"] for e in events if e["type"] == "step"] == list(range(1, STEPS + 1)), "no step runs twice"
    assert not list(directory.glob("*.tmp.*"))
    digest = server.json("models", "get", "out")["digest"]
    assert digest == undisturbed(server, method)


def test_T4_sigterm_while_loading_ends_the_attempt_at_once(make_server, model_directory, text_file):
    server = start(make_server, model_directory, text_file, "attempts/1/base.nf4.tmp.:3:stop")
    job = create(server, "qlora", "out")
    _, journal, outcome = terminate_where_it_stands(server, job)
    assert outcome["outcome"] == "paused" and outcome["exit_code"] == 75
    assert not [line for line in journal if line["type"] in ("state", "step", "checkpoint")], "the load was not finished first"
    server.run("jobs", "watch", job)
    got = server.json("jobs", "get", job)
    assert got["state"] == "SUCCEEDED" and got["attempt"] == 2 and got["retries"] == 0
    digest = server.json("models", "get", "out")["digest"]
    assert digest == undisturbed(server, "qlora")


def test_T4_cancel_while_loading_ends_the_attempt_at_once(make_server, model_directory, text_file):
    server = start(make_server, model_directory, text_file, "attempts/1/base.nf4.tmp.:3:stop")
    job = create(server, "qlora", "out")
    directory, journal, outcome = terminate_where_it_stands(server, job, "cancel")
    assert outcome["outcome"] == "cancelled"
    assert not [line for line in journal if line["type"] == "state"]
    soon(lambda: server.json("jobs", "get", job)["state"] == "CANCELLED")
    assert not list(directory.glob("*.tmp.*")), "the unfinished base is gone"


@pytest.mark.full
def test_T4_slow_micro_batch_is_not_taken_for_a_hang(make_server, tmp_path, text_file):
    """Reproduces the fault: a healthy trainer whose micro-batch takes more than twice the timeout."""
    timeout = 6
    directory = small_model.write(tmp_path / "slow", hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
                                  num_key_value_heads=16, head_dim=64)
    server = make_server("--no_progress_timeout_s", timeout, "--no_progress_grace_s", 1, "--max_retries", 0)
    prepare(server, directory, text_file)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"run": {"activation_checkpointing": True}}))
    flags = [*TRAIN[TRAIN.index("--lr"):], "--micro-batch", 12, "--seq-len", 1024, "--spec", spec]
    job = server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 1, *flags)["id"]
    server.run("jobs", "watch", job, timeout=1800)
    got, events = server.json("jobs", "get", job), server.lines("jobs", "watch", job)
    assert got["state"] == "SUCCEEDED" and got["attempt"] == 1
    (step,) = [e for e in events if e["type"] == "step"]
    assert step["step_ms"] > 2000 * timeout, "the micro-batch was not slow"
