"""SIGKILL of the trainer and of the server in the middle of a job: nothing acknowledged is lost, and the resulting bits
are the same."""
import json
import os
import signal
import subprocess

import pytest

from conftest import BIN, TRAIN, Server, trainers
from soon import soon

STEPS, SAVE = 40, 5
WITHOUT_ADAPTER = [*TRAIN[:TRAIN.index("--rank")], "--seed", 3]
SETTINGS = {"qlora": TRAIN, "lora": TRAIN, **dict.fromkeys(("bitnet_qat", "full", "int8_mixed", "int8_qt"), WITHOUT_ADAPTER)}

# Variants of methods: method, base and fields of the method.
VARIANTS = {"merge_aware": ("qlora", "small", {"merge_aware_int8": True}), "lora_on_int8": ("lora", "small-int8", {}),
            "int8_qt_float": ("int8_qt", "small", {"compute": "INT8_QT_COMPUTE_FLOAT"})}


def create(server, output, *more, method="qlora"):
    """Creates a job of a method, or of a variant."""
    method, base, fields = VARIANTS.get(method, (method, "small", {}))
    if fields:
        spec = server.state.parent / f"{output}.json"
        spec.write_text(json.dumps({method: fields}))
        more = ("--spec", spec, *more)
    return server.json("jobs", "create", "--method", method, "--base", base, "--dataset", "page", "--output", output,
                       "--max-steps", STEPS, "--save-every", SAVE, *SETTINGS[method], *more)["id"]


def wait_for_step(server, job, step):
    def reached():
        got = server.json("jobs", "get", job)
        assert got["state"] not in ("SUCCEEDED", "FAILED"), f"the job was {got['state']} before it could be disturbed"
        return got["progress"]["step"] >= step
    soon(reached, f"step {step} of {job}", 120)


def wait_for_own_step(server, job, attempt, step=1):
    """Waits for a step of one attempt in its journal, which has the step before the server does."""
    journal = server.state / "jobs" / job / "attempts" / str(attempt) / "journal.jsonl"

    def reached():
        lines = [json.loads(line) for line in journal.read_text().splitlines(True) if line.endswith("\n")] if journal.exists() else []
        return any(line["type"] == "step" and line["step"] >= step for line in lines)
    soon(reached)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model_directory, text_file):
    server = Server(tmp_path_factory.mktemp("kill") / "state", "--retry_backoff_scale", "0.01").start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    job = create(server, "calm")
    server.run("jobs", "watch", job)
    yield server, server.json("models", "get", "calm")["digest"]
    server.stop()


def check_resumes(events):
    """Later attempts lost at most one save interval of the reported steps. Returns the steps from which they resumed, by
    attempt; an attempt that ended before its first step may be absent."""
    resumed = {event["attempt"]: event.get("resumed_step", 0) for event in events
               if event["type"] == "state" and event["state"] == "RUNNING" and event["attempt"] > 1}
    steps = [(event["attempt"], event["step"]) for event in events if event["type"] == "step"]
    for attempt, start in resumed.items():
        assert 0 <= start <= STEPS, resumed
        last = max((step for of, step in steps if of < attempt), default=0)
        assert 0 <= last - start <= SAVE, f"attempt {attempt}: step {last} was reported, but it resumed from {start}"
        own = [step for of, step in steps if of == attempt]
        assert own == list(range(start + 1, start + 1 + len(own))), f"attempt {attempt} resumed from {start}"
    return resumed


def check(server, job, digest, output, attempts=2):
    server.run("jobs", "watch", job)
    events = server.lines("jobs", "watch", job)
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    got = server.json("jobs", "get", job)
    assert got["state"] == "SUCCEEDED" and got["attempt"] == attempts
    steps = [event["step"] for event in events if event["type"] == "step"]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))
    assert len(steps) <= STEPS + SAVE * (attempts - 1)
    resumed = check_resumes(events)
    assert sorted(resumed) == list(range(2, attempts + 1)) and all(start >= SAVE for start in resumed.values())
    assert server.json("models", "get", output)["digest"] == digest


def test_job_of_a_killed_trainer_has_the_same_result(undisturbed):
    server, digest = undisturbed
    job = create(server, "trainer-killed")
    wait_for_step(server, job, SAVE + 2)
    for pid in trainers(server):
        os.kill(pid, signal.SIGKILL)
    check(server, job, digest, "trainer-killed")


def test_random_draws_continue_after_the_trainer_is_killed(undisturbed, tmp_path):
    """Dropout masks are random: those after a resume must be those of an undisturbed run."""
    server, digest = undisturbed
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"qlora": {"dropout": 0.2}}))
    server.run("jobs", "watch", create(server, "dropout-calm", "--spec", spec))
    calm = server.json("models", "get", "dropout-calm")["digest"]
    assert calm != digest
    job = create(server, "dropout-killed", "--spec", spec)
    wait_for_step(server, job, SAVE + 2)
    for pid in trainers(server):
        os.kill(pid, signal.SIGKILL)
    check(server, job, calm, "dropout-killed")


def test_next_server_adopts_the_trainer_of_a_killed_server(undisturbed):
    server, digest = undisturbed
    job = create(server, "server-killed")
    wait_for_step(server, job, SAVE + 2)
    (pid,) = trainers(server)
    server.kill()
    # The trainer is stopped while there is no server, so that the next server finds it in the middle of its job however
    # long it takes to start. This comes after the kill, because the kernel sends SIGHUP to a stopped process group that
    # loses its parent.
    os.kill(pid, signal.SIGSTOP)
    try:
        server.start()
        assert trainers(server) == [pid], "the trainer outlives its server and stays the only one"
        got = server.json("jobs", "get", job)
        assert got["state"] == "RUNNING" and got["attempt"] == 1 and got["progress"]["step"] < STEPS
        adopted = [(entry["attempt"], int(entry["trainer"].split("/")[0])) for entry in server.logged("trainer adopted")
                   if entry["job"] == job]
        assert adopted == [(1, pid)]
    finally:
        os.kill(pid, signal.SIGCONT)
    # One attempt ran every step once.
    check(server, job, digest, "server-killed", attempts=1)


def test_watch_of_a_new_job_continues_after_the_server_restarts(undisturbed, tmp_path):
    server, digest = undisturbed
    out = tmp_path / "events"
    command = [BIN / "nibble", "--server", server.grpc, "--json", "jobs", "create", "--method", "qlora", "--base", "small",
               "--dataset", "page", "--output", "watched", "--max-steps", STEPS, "--save-every", SAVE, *TRAIN, "--watch"]
    with open(out, "wb") as opened:
        program = subprocess.Popen([str(word) for word in command], stdout=opened, stderr=subprocess.PIPE, text=True, env={})

    def events():
        return [json.loads(line) for line in out.read_text().splitlines(True) if line.endswith("\n")]
    try:
        soon(lambda: any(event["type"] == "step" and event["step"] > SAVE for event in events()), seconds=120)
        server.stop()
        assert program.poll() is None, "the watch outlives its server"
        server.start()
        _, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode == 0 and "connection lost" in errors, errors
    seen = events()
    assert [event["sequence"] for event in seen] == list(range(1, len(seen) + 1)), "every event, once"
    assert seen[-1]["type"] == "state" and seen[-1]["state"] == "SUCCEEDED"
    assert server.json("models", "get", "watched")["digest"] == digest


def test_job_of_a_killed_server_and_trainer_has_the_same_result(undisturbed):
    server, digest = undisturbed
    job = create(server, "both-killed")
    wait_for_step(server, job, SAVE + 2)
    (pid,) = trainers(server)
    server.kill()
    os.kill(pid, signal.SIGKILL)
    server.start()
    check(server, job, digest, "both-killed")
    assert not [entry for entry in server.logged("trainer adopted") if entry["job"] == job]


def test_sigterm_leaves_no_trainer_and_the_job_resumes_later(undisturbed):
    server, digest = undisturbed
    job = create(server, "stopped")
    wait_for_step(server, job, SAVE + 2)
    assert server.stop() == 0
    assert trainers(server) == []
    server.start()
    check(server, job, digest, "stopped")


@pytest.mark.parametrize("allowed", [None, False])
def test_resume_with_other_threads_warns_or_fails(tmp_path, model_directory, text_file, allowed):
    server = Server(tmp_path / "state", "--threads", 2).start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"run": {} if allowed is None else {"allow_inexact_resume": allowed}}))
    job = server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", STEPS,
                      "--save-every", SAVE, "--spec", spec, *TRAIN)["id"]
    wait_for_step(server, job, SAVE + 1)
    assert server.stop() == 0
    server.flags[server.flags.index("--threads") + 1] = "1"
    server.start()
    try:
        server.run("jobs", "watch", job, check=False)
        got = server.json("jobs", "get", job)
        warned = [event for event in server.lines("jobs", "watch", job, check=False) if event.get("reason") == "RESUMED_ELSEWHERE"]
        if allowed is None:
            assert got["state"] == "SUCCEEDED" and len(warned) == 1 and "threads was 2, is 1" in warned[0]["message"]
        else:
            assert got["state"] == "FAILED" and got["error"]["reason"] == "RESUMED_ELSEWHERE", got
            assert "threads was 2, is 1" in got["error"]["message"]
    finally:
        server.stop()
