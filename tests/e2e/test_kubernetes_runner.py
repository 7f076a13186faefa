"""Trainers as Jobs of a cluster: evictions, lost nodes and lost servers end in the bits of the local runner. The cluster
is tests/support/fake_cluster.py."""
import json
import os
import signal
import subprocess
import time

import pytest

import pki
from conftest import BIN, Server
from fake_cluster import Cluster
from soon import soon
from test_kill import check, create, wait_for_own_step, wait_for_step

SAVE = 5
TEMPLATES = {"cpu": {"spec": {"template": {"spec": {"containers": [{"name": "trainer", "image": "nibble-trainer:test"}]}}}}}
FLAGS = {"retry_backoff_scale": 0.01, "lost_node_timeout_s": 1, "kubernetes_server_name": "here", "start_timeout_s": 2,
         "no_progress_timeout_s": 20, "max_running_jobs": 4}


def undisturbed_digest(folder, model_directory, text_file, *flags):
    """The digest of the local runner's model."""
    server = Server(folder / "state", *flags).start()
    try:
        server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        server.run("datasets", "upload", text_file, "--name", "page")
        server.run("jobs", "watch", create(server, "calm"))
        return server.json("models", "get", "calm")["digest"]
    finally:
        server.stop()


@pytest.fixture(scope="module")
def calm(tmp_path_factory, model_directory, text_file):
    return undisturbed_digest(tmp_path_factory.mktemp("local"), model_directory, text_file)


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path, pki.Authority(tmp_path / "pki"), {"trainer": BIN / "nibble-trainer"})
    yield cluster
    cluster.stop()


@pytest.fixture
def start(tmp_path, cluster, model_directory, text_file):
    """start(templates, name of a flag=value, ...): a server whose trainers run on the cluster, with the model and data of
    the tests."""
    servers = []

    def begin(templates=TEMPLATES, **flags):
        (tmp_path / "templates.json").write_text(json.dumps(templates))
        flags = {"trainer_templates": tmp_path / "templates.json", **FLAGS, **flags}
        words = (word for name, value in flags.items() for word in (f"--{name}", value))
        server = Server(tmp_path / "state", *cluster.flags, *words).start()
        servers.append(server)
        server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        server.run("datasets", "upload", text_file, "--name", "page")
        return server

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture
def on_cluster(start, cluster):
    return start(), cluster


def begin(server):
    """Begins a job; returns it once it is beyond its first checkpoint."""
    job = create(server, "out")
    wait_for_step(server, job, SAVE + 2)
    return job


def pod_of(cluster, job, attempt=1):
    (pod,) = [pod for pod in cluster.pods() if pod["metadata"]["labels"]["nibble.dev/job"] == job and
              pod["metadata"]["labels"]["nibble.dev/attempt"] == str(attempt)]
    return pod["metadata"]["name"]


def trainer_of(cluster, job):
    (pod,) = [pod for pod in cluster.pods() if pod["metadata"]["labels"]["nibble.dev/job"] == job]
    return cluster.processes[pod["metadata"]["uid"]]


def watch_into(file, server, job):
    """Starts a watch of the job that writes its events to the file."""
    with open(file, "w") as out:
        return subprocess.Popen([BIN / "nibble", "--server", server.grpc, "--json", "jobs", "watch", job], stdout=out, env={})


def reasons(server, job):
    return [event["reason"] for event in server.lines("jobs", "watch", job) if event.get("reason")]


def test_job_has_the_bits_of_the_local_runner_and_is_removed(on_cluster, calm):
    server, cluster = on_cluster
    job = create(server, "out")
    check(server, job, calm, "out", attempts=1)
    assert cluster.created() == [f"nibble-{job}-1"]
    soon(lambda: cluster.jobs() == [])
    attempt = server.state / "jobs" / job / "attempts/1"
    assert (attempt / "claim").read_text()
    assert json.loads((attempt / "attempt.json").read_text())["report_address"] == "", "without --report_address, only the journal"
    info = server.json("server", "info")
    assert info["runner"] == "kubernetes" and info["kubernetes_queue"] == ""
    assert info["kubernetes_namespace"] == cluster.flags[cluster.flags.index("--kubernetes_namespace") + 1]
    assert f"kubernetes, namespace {info['kubernetes_namespace']}\n" in server.run("server", "info").stdout


def test_eviction_resumes_with_the_same_bits_and_no_counted_retry(on_cluster, calm):  # R30
    server, cluster = on_cluster
    job = begin(server)
    cluster.evict(pod_of(cluster, job))
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0
    assert cluster.created() == [f"nibble-{job}-1", f"nibble-{job}-2"]


def test_killed_server_leaves_the_trainer_and_the_next_one_adopts_it(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    server.kill()
    began = time.monotonic()
    server.start()
    soon(lambda: server.logged("trainer adopted"))
    assert time.monotonic() - began < 10
    check(server, job, calm, "out", attempts=1)
    assert cluster.created() == [f"nibble-{job}-1"]


def test_stopped_server_leaves_the_trainer(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    assert server.stop() == 0
    assert trainer_of(cluster, job).wait(timeout=120) == 0, "it trains on and publishes without a server"
    server.start()
    check(server, job, calm, "out", attempts=1)


def test_lost_node_is_fenced_and_its_trainer_ends(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    zombie = trainer_of(cluster, job)
    os.kill(zombie.pid, signal.SIGSTOP)  # it must not finish before it is given up
    cluster.lose_node(pod_of(cluster, job))
    attempts = server.state / "jobs" / job / "attempts"
    soon(lambda: (attempts / "1.lost").is_dir() and (attempts / "1").is_file())
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.wait(timeout=30)
    assert not (attempts / "1.lost/outcome.json").exists() and (attempts / "1").is_file()
    with open(attempts / "1.lost/trainer.log", "a") as log:
        log.write("of the lost attempt\n")
    assert server.run("jobs", "logs", job, "--attempt", 1).stdout.endswith("of the lost attempt\n")
    check(server, job, calm, "out")
    assert "NODE_LOST" in reasons(server, job)


def test_cancel_ends_the_trainer_and_removes_its_job(on_cluster):
    server, cluster = on_cluster
    job = create(server, "out")
    wait_for_own_step(server, job, 1)
    process = trainer_of(cluster, job)
    server.run("jobs", "cancel", job)
    soon(lambda: server.json("jobs", "get", job)["state"] == "CANCELLED")
    process.wait(timeout=10)
    soon(lambda: cluster.jobs() == [])


def test_paused_job_resumes_with_the_same_bits(on_cluster, calm):
    server, cluster = on_cluster
    job = begin(server)
    server.run("jobs", "pause", job)
    soon(lambda: server.json("jobs", "get", job)["state"] == "PAUSED")
    server.run("jobs", "resume", job)
    check(server, job, calm, "out")


def test_api_server_that_is_away_stops_nothing(on_cluster, calm):  # R29
    server, cluster = on_cluster
    job = create(server, "out")
    wait_for_own_step(server, job, 1)
    trainer = trainer_of(cluster, job)
    cluster.go_away()
    wait_for_step(server, job, SAVE + 2)
    worst = 0
    for _ in range(20):
        began = time.monotonic()
        server.json("jobs", "get", job)
        worst = max(worst, time.monotonic() - began)
    assert worst < 5
    trainer.wait(timeout=120)
    assert server.json("jobs", "get", job)["state"] == "RUNNING", "its end is not known yet"
    cluster.come_back()
    check(server, job, calm, "out", attempts=1)


def test_preempted_job_is_queued_again_as_a_new_suspended_job(start, cluster, calm, tmp_path):
    server = start(kubernetes_queue="team")
    job = create(server, "out")
    watched = tmp_path / "events"
    watch = watch_into(watched, server, job)
    soon(lambda: '"WAITING_FOR_RESOURCES"' in watched.read_text())
    assert "waits in the queue team" in watched.read_text()
    assert server.json("server", "info")["kubernetes_queue"] == "team"
    cluster.set_suspend(f"nibble-{job}-1", False)
    wait_for_step(server, job, SAVE + 2)
    cluster.set_suspend(f"nibble-{job}-1", True)
    soon(lambda: cluster.jobs() == [f"nibble-{job}-2"])
    assert server.json("jobs", "get", job)["state"] in ("PREPARING", "QUEUED")
    cluster.set_suspend(f"nibble-{job}-2", False)
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0
    assert watch.wait(timeout=30) == 0


def test_job_admitted_again_while_no_server_ran_is_preempted(start, cluster, calm):  # R30
    server = start(kubernetes_queue="team")
    job = create(server, "out")
    first, second = f"nibble-{job}-1", f"nibble-{job}-2"
    soon(lambda: cluster.jobs() == [first])
    cluster.set_suspend(first, False)
    wait_for_step(server, job, SAVE + 2)
    trainer = trainer_of(cluster, job)
    trainer.send_signal(signal.SIGSTOP)  # it must not finish before its pod is deleted
    server.kill()
    cluster.set_suspend(first, True)
    soon(lambda: ["deletionTimestamp" in pod["metadata"] for pod in cluster.pods()] == [True])
    trainer.send_signal(signal.SIGCONT)
    soon(lambda: cluster.pods() == [])
    cluster.set_suspend(first, False)
    soon(lambda: [pod["status"]["phase"] for pod in cluster.pods()] == ["Failed"], "the new pod found the attempt claimed")
    server.start()
    soon(lambda: cluster.jobs() == [second])
    cluster.set_suspend(second, False)
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0
    (event,) = [event for event in server.lines("jobs", "watch", job) if event.get("reason") == "PREEMPTED"]
    assert "Kueue admitted the Job again" in event["message"]


@pytest.mark.parametrize("down", [False, True], ids=["seen", "while_no_server_ran"])
def test_pod_that_outlives_its_job_saves_its_state_and_resumes(on_cluster, calm, down):  # R30
    server, cluster = on_cluster
    job = begin(server)
    trainer = trainer_of(cluster, job)
    trainer.send_signal(signal.SIGSTOP)  # it must not finish before its pod is deleted
    if down:
        server.kill()
    cluster.delete_job(f"nibble-{job}-1", {"propagationPolicy": "Orphan"})
    if down:
        server.start()
    soon(lambda: ["deletionTimestamp" in pod["metadata"] for pod in cluster.pods()] == [True])
    trainer.send_signal(signal.SIGCONT)
    assert trainer.wait(timeout=60) == 75, "it saves within its grace period"  # kExitTempFail (server/jobs/attempt.h)
    check(server, job, calm, "out")
    assert server.json("jobs", "get", job).get("retries", 0) == 0
    assert cluster.created() == [f"nibble-{job}-1", f"nibble-{job}-2"]
    assert "TRAINER_DELETED" in reasons(server, job)


def test_flags_of_the_runner_are_checked(tmp_path):
    def refusal(*flags):
        with pytest.raises(AssertionError) as refused:
            Server(tmp_path / "state", "--runner", "kubernetes", *flags).start()
        return str(refused.value)
    assert "--trainer_templates: wanted a file" in refusal()
    (tmp_path / "bad.json").write_text('{"cpu": {}}')
    cluster = ["--kubernetes_url", "https://127.0.0.1:1", "--kubernetes_server_name", "here", "--kubernetes_namespace", "ml",
               "--trainer_templates", tmp_path / "bad.json"]
    assert "no container named" in refusal(*cluster)
    assert "--kubernetes_server_name: wanted" in refusal(*cluster[:2], *cluster[4:])
    assert "--trainer: not with --runner kubernetes" in refusal(*cluster, "--trainer", BIN / "nibble-trainer")
    assert "https://" in refusal("--kubernetes_url", "http://127.0.0.1:1", *cluster[2:])
