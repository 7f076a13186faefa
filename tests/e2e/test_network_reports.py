"""Trainers in pods report over TLS, and obey the server's commands by the same stream, also while the cluster's API server
is away."""
import json
import stat

import pytest

import pki
from conftest import BIN, TRAIN, Server
from fake_cluster import Cluster
from soon import soon
from test_kill import wait_for_step
from test_kubernetes_runner import FLAGS, TEMPLATES, trainer_of

# Runs a trainer whose view of its directory is its own: a file system that shows neither side the other's files.
PRIVATE_VIEW = """#!/bin/bash
exec unshare --mount bash -c '
directory=${1#--job_dir=}
order=$(cat "$directory/attempt.json")
mount -t tmpfs none "$directory" && mkdir "$directory/checkpoints" && printf %s "$order" > "$directory/attempt.json" || exit 99
exec TRAINER "$@"' _ "$@"
"""


@pytest.fixture
def authority(tmp_path):
    return pki.Authority(tmp_path / "pki")


@pytest.fixture
def cluster(tmp_path, authority):
    cluster = Cluster(tmp_path, authority, {"trainer": BIN / "nibble-trainer"})
    yield cluster
    cluster.stop()


@pytest.fixture
def start(tmp_path, authority, cluster, model_directory, text_file):
    """start(name of a flag=value, ...): a server that trainers of the cluster can reach over TLS."""
    servers = []

    def begin(**flags):
        (tmp_path / "templates.json").write_text(json.dumps(TEMPLATES))
        certificate, key = authority.issue("server", "DNS:localhost,IP:127.0.0.1")
        flags = {"trainer_templates": tmp_path / "templates.json", **FLAGS, "tls_cert": certificate, "tls_key": key,
                 "report_address": "127.0.0.1:0", "report_ca": authority.certificate, **flags}
        words = (word for name, value in flags.items() for word in (f"--{name}", value))
        server = Server(tmp_path / "state", *cluster.flags, *words)
        server.client_flags = ["--tls-ca", authority.certificate]
        servers.append(server)
        server.start()
        server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        server.run("datasets", "upload", text_file, "--name", "page")
        return server

    yield begin
    for server in servers:
        server.stop()


def give_private_views(cluster, folder):
    program = folder / "trainer-with-a-private-view"
    program.write_text(PRIVATE_VIEW.replace("TRAINER", str(BIN / "nibble-trainer")))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    cluster.programs["trainer"] = program


def create(server, steps=4000):
    """A job that saves only what is requested. Its method shares no file with other jobs, so it works in a private view."""
    return server.json("jobs", "create", "--method", "lora", "--base", "small", "--dataset", "page", "--output", "out", "--max-steps",
                       steps, "--save-every", 0, *TRAIN)["id"]


def attempt_of(server, job, attempt=1):
    return server.state / "jobs" / job / "attempts" / str(attempt)


def wait_for_state(server, job, state):
    soon(lambda: server.json("jobs", "get", job)["state"] == state, f"{job} is {state}", 60)


def saved_steps(server, job):
    """Steps of the checkpoint events of a job that has ended."""
    lines = server.run("--json", "jobs", "watch", job, check=False).stdout.splitlines()
    return [event["step"] for event in map(json.loads, lines) if event["type"] == "checkpoint"]


def test_events_and_commands_travel_by_the_stream_alone(start, cluster, authority, tmp_path):
    server = start()
    give_private_views(cluster, tmp_path)
    job = create(server)
    wait_for_step(server, job, 2)
    attempt = attempt_of(server, job)
    assert not (attempt / "journal.jsonl").exists() and not (attempt / "claim").exists()
    order = json.loads((attempt / "attempt.json").read_text())
    assert order["report_address"] == json.loads((server.state / "server.json").read_text())["report_address"]
    assert order["report_ca"] == authority.certificate.read_text()

    server.run("jobs", "checkpoint", job)
    wait_for_step(server, job, server.json("jobs", "get", job)["progress"]["step"] + 10)
    assert (attempt / "checkpoint.request").exists(), "this trainer cannot remove it, so the server repeats the request"
    trainer = trainer_of(cluster, job)
    server.run("jobs", "cancel", job)
    assert trainer.wait(timeout=60) == 0, "without control.json, a trainer that got only SIGTERM exits with 75"
    wait_for_state(server, job, "CANCELLED")
    assert len(saved_steps(server, job)) == 1


def test_request_by_file_and_stream_makes_one_checkpoint(start):
    server = start()
    job = create(server)
    wait_for_step(server, job, 2)
    for _ in range(3):
        server.run("jobs", "checkpoint", job)
        soon(lambda: not (attempt_of(server, job) / "checkpoint.request").exists())
        wait_for_step(server, job, server.json("jobs", "get", job)["progress"]["step"] + 3)
    server.run("jobs", "cancel", job)
    wait_for_state(server, job, "CANCELLED")
    steps = saved_steps(server, job)
    assert len(steps) == len(set(steps)) == 3


# 75 is kExitTempFail (server/jobs/attempt.h).
@pytest.mark.parametrize("command, code, outcome, state", [("pause", 75, "paused", "PAUSED"), ("cancel", 0, "cancelled", "CANCELLED")])
def test_stop_reaches_the_trainer_while_the_api_server_is_away(start, cluster, command, code, outcome, state):
    server = start()
    job = create(server)
    wait_for_step(server, job, 2)
    trainer = trainer_of(cluster, job)
    cluster.go_away()
    server.run("jobs", command, job)
    assert trainer.wait(timeout=60) == code
    assert json.loads((attempt_of(server, job) / "outcome.json").read_text())["outcome"] == outcome
    cluster.come_back()
    wait_for_state(server, job, state)


def test_trainer_that_cannot_verify_the_server_continues_by_its_journal(start, tmp_path):
    server = start(report_ca=pki.Authority(tmp_path / "foreign").certificate)
    job = create(server, steps=5)
    server.run("jobs", "watch", job)
    assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"
    assert "cannot report to the server" in (attempt_of(server, job) / "trainer.log").read_text()


def test_report_flags_are_checked(tmp_path, authority):
    def refusal(*flags):
        with pytest.raises(AssertionError) as refused:
            Server(tmp_path / "state", *flags).start()
        return str(refused.value)
    assert "--report_address: 0.0.0.0 is not a loopback address" in refusal("--report_address", "0.0.0.0:1", "--report_target", "a:1")
    assert "--report_target: wanted" in refusal("--report_address", "0.0.0.0:1")
    certificate, key = authority.issue("server", "DNS:localhost")
    tls = ["--tls_cert", certificate, "--tls_key", key, "--report_address", "127.0.0.1:0"]
    assert "--report_ca: wanted" in refusal(*tls)
    assert "--report_ca: " in refusal(*tls, "--report_ca", tmp_path / "absent")
