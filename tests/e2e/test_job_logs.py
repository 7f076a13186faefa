"""The logs of trainers (`nibble jobs logs`, WatchJobLogs): of attempts that were retried or paused, and who may read them."""
import json
import signal
import subprocess

import grpc
import pytest

from conftest import BIN, TRAIN, Server
from soon import soon
from test_limits import reason_of
from test_reliability import prepare
from test_security import new_token
from wire import Api

CREATE = ["jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", *TRAIN]


def log_of(server, job, attempt):
    return server.state / "jobs" / job / "attempts" / str(attempt) / "trainer.log"


def write(server, job, attempt, line):
    """Adds a line to a trainer's log, as the trainer does."""
    with open(log_of(server, job, attempt), "ab") as log:
        log.write(line)


def running(server, job, attempt):
    got = server.json("jobs", "get", job)
    return got["state"] == "RUNNING" and got["attempt"] == attempt


@pytest.fixture
def follow(tmp_path):
    """follow(server, job, ...): a program that follows the log of a job into the file `out`."""
    programs = []

    def begin(server, *arguments):
        out = tmp_path / f"followed-{len(programs)}"
        command = [BIN / "nibble", "--server", server.grpc, *server.client_flags, "jobs", "logs", "-f", *map(str, arguments)]
        with open(out, "wb") as opened:
            program = subprocess.Popen(command, stdout=opened, stderr=subprocess.PIPE, text=True, env={})
        program.out = out
        programs.append(program)
        return program

    yield begin
    for program in programs:
        program.kill()
        program.communicate()


def test_followed_log_has_both_attempts_of_a_job_that_fails(make_server, follow, model_directory, text_file):
    server = prepare(make_server("--max_retries", 1, "--retry_backoff_scale", "0.01"), model_directory, text_file)
    server.stop()
    server.environment = {"NIBBLE_FAILPOINT": "checkpoints/step-00000001:1:before"}  # of every attempt
    server.start()
    job = server.json(*CREATE, "--max-steps", 4, "--save-every", 1)["id"]
    soon(lambda: server.json("jobs", "get", job)["attempt"] >= 1)
    program = follow(server, job, "--attempt", 1)
    assert program.wait(timeout=120) == 0
    assert server.json("jobs", "get", job)["state"] == "FAILED"
    first, second = (log_of(server, job, attempt).read_bytes() for attempt in (1, 2))
    assert b"this trainer will fail on purpose" in first and b"this trainer will fail on purpose" in second
    assert program.out.read_bytes() == first + second
    assert server.run("jobs", "logs", job).stdout.encode() == second
    assert server.run("jobs", "logs", job, "--attempt", 1).stdout.encode() == first
    parts = server.lines("jobs", "logs", job, "--attempt", 1, "--follow")
    for attempt, log in ((1, first), (2, second)):
        assert "".join(part["text"] for part in parts if part["attempt"] == attempt).encode() == log
    missing = server.run("jobs", "logs", job, "--attempt", 3, check=False)
    assert missing.returncode == 3 and "NOT_FOUND (ATTEMPT)" in missing.stderr and "the last one is 2" in missing.stderr
    absent = server.run("jobs", "logs", "job-nothing", check=False)
    assert absent.returncode == 3 and "NOT_FOUND (JOB)" in absent.stderr


def test_lines_of_grpc_are_json_lines_like_the_trainers_own(make_server, tmp_path, model_directory, text_file):
    verbose = tmp_path / "verbose-trainer"
    verbose.write_text(f"#!/bin/sh\nGRPC_VERBOSITY=debug exec '{BIN / 'nibble-trainer'}' \"$@\"\n")
    verbose.chmod(0o755)
    server = prepare(make_server("--trainer", verbose), model_directory, text_file)
    job = server.json(*CREATE, "--max-steps", 1)["id"]
    server.run("jobs", "watch", job)
    lines = [json.loads(line) for line in server.run("jobs", "logs", job).stdout.splitlines()]
    of_grpc = [line for line in lines if line["message"] == "grpc"]
    assert any(line["level"] == "info" and line["file"].endswith(".cc") for line in of_grpc), lines


def test_followed_log_survives_a_restart_and_ends_with_a_pause(make_server, follow, model_directory, text_file):
    server = prepare(make_server(), model_directory, text_file)
    job = server.json(*CREATE, "--max-steps", 5000)["id"]
    program = follow(server, job)
    soon(lambda: running(server, job, 1))
    write(server, job, 1, b"one\ntwo \x1b[31m\n")
    soon(lambda: program.out.read_bytes().endswith(b"one\ntwo \x1b[31m\n"))
    assert server.run("jobs", "logs", job, "--tail", 2).stdout == "one\ntwo \x1b[31m\n"
    server.stop()  # the trainer ends with a checkpoint, and the job continues with attempt 2
    server.start()
    soon(lambda: running(server, job, 2), seconds=120)
    write(server, job, 2, b"after the restart\n")
    soon(lambda: program.out.read_bytes().endswith(b"after the restart\n"))
    assert program.poll() is None
    server.run("jobs", "pause", job)
    assert program.wait(timeout=60) == 0, "a paused job ends it"
    assert program.out.read_bytes() == log_of(server, job, 1).read_bytes() + log_of(server, job, 2).read_bytes()
    server.run("jobs", "resume", job)
    resumed = follow(server, job)
    soon(lambda: running(server, job, 3))
    write(server, job, 3, b"resumed\n")
    soon(lambda: resumed.out.read_bytes().endswith(b"resumed\n"))
    server.run("jobs", "cancel", job)
    assert resumed.wait(timeout=60) == 0


@pytest.fixture
def tenants(tmp_path, model_directory, text_file):
    """A server that allows one watch, and the APIs of the tenants red and blue. Its command line acts as red."""
    tokens = {name: new_token(tmp_path, name, "train", "--tenant", name) for name in ("red", "blue")}
    server = Server(tmp_path / "state", "--token_file", tmp_path / "tokens", "--max_watches", 1)
    server.client_flags = ["--token-file", tokens["red"]]
    prepare(server.start(), model_directory, text_file)
    apis = [Api(server.grpc, tokens[name].read_text().strip()) for name in ("red", "blue")]
    yield server, *apis
    for api in apis:
        api.close()
    server.stop()


def refusal(call):
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code(), reason_of(refused.value)


def test_log_of_another_tenants_job_looks_absent(tenants):
    server, red, blue = tenants
    job = server.json(*CREATE, "--max-steps", 5000)["id"]
    soon(lambda: running(server, job, 1))
    assert refusal(lambda: list(blue.stream("FineTuneService", "WatchJobLogs", name=job))) == (grpc.StatusCode.NOT_FOUND, "JOB")
    assert [chunk.attempt for chunk in red.stream("FineTuneService", "WatchJobLogs", name=job)][0] == 1
    server.run("jobs", "cancel", job)


def test_caller_that_goes_away_frees_its_watch(tenants):
    server, red, _ = tenants
    job = server.json(*CREATE, "--max-steps", 5000)["id"]
    soon(lambda: running(server, job, 1))
    write(server, job, 1, b"text\n")
    watch = red.stream("FineTuneService", "WatchJobLogs", name=job, follow=True, tail_lines=1)
    assert [(chunk.attempt, chunk.data) for chunk in (next(watch), next(watch))] == [(1, b""), (1, b"text\n")]
    _, reason = refusal(lambda: next(red.stream("FineTuneService", "WatchJobLogs", name=job)))
    assert reason == "STREAMS_FULL"
    watch.cancel()
    soon(lambda: server.run("jobs", "logs", job, check=False).returncode == 0, "the watch is free again")
    server.run("jobs", "cancel", job)


def test_interrupted_reader_ends_and_its_job_continues(shared):
    job = shared.json(*CREATE, "--max-steps", 5000)["id"]
    reader = subprocess.Popen([BIN / "nibble", "--server", shared.grpc, "jobs", "logs", "-f", job], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    soon(lambda: running(shared, job, 1))
    write(shared, job, 1, b"text\n")
    soon(lambda: "text" in reader.stdout.readline())
    reader.send_signal(signal.SIGINT)
    _, err = reader.communicate(timeout=30)
    assert reader.returncode == -signal.SIGINT and f"job {job} continues on the server" in err
    assert running(shared, job, 1)
    shared.run("jobs", "cancel", job)
