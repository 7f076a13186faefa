"""Faults of docs/faults.md against the real programs. Tests of a row have its id in their names."""
import concurrent.futures
import contextlib
import datetime
import errno
import itertools
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import time

import grpc
import pytest

import small_model
from conftest import BIN, TRAIN, Server, trainers
from test_kill import SAVE, SETTINGS, STEPS, VARIANTS, check, check_resumes, create, wait_for_step
from wire import Api, message
from soon import soon

HEALTH = "/grpc.health.v1.Health/Check"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # answers of HEALTH, in protobuf's encoding
AT_ONCE_S = 1


def curve(server, job):
    """The reported curve: (loss, learning rate, gradient norm) by step, and the evaluation loss by step."""
    events = server.lines("jobs", "watch", job)
    steps = {e["step"]: (e["loss"], e["lr"], e["grad_norm"]) for e in events if e["type"] == "step"}
    evals = {e["step"]: e["eval_loss"] for e in events if e["type"] == "eval"}
    return steps, evals


def prepare(server, model_directory, text_file):
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    return server


@pytest.fixture(scope="module")
def calm(tmp_path_factory, model_directory, text_file):
    """A server and an undisturbed job, with which other jobs are compared."""
    server = Server(tmp_path_factory.mktemp("calm") / "state", "--retry_backoff_scale", "0.01").start()
    prepare(server, model_directory, text_file)
    job = create(server, "calm")
    server.run("jobs", "watch", job)
    yield server, server.json("models", "get", "calm")["digest"], curve(server, job)
    server.stop()


@pytest.fixture(scope="module", params=["qlora", "bitnet_qat", "full", "int8_mixed", "int8_qt", "lora", *VARIANTS])
def calm_of_each_method(calm, request):
    """As calm, for each method and variant: a resume continues an adapter on an unchanged base, master weights that are
    ternarized again, all weights, or int8 weights."""
    server, digest, undisturbed = calm
    if request.param == "lora_on_int8":
        server.run("models", "convert", "small", "--to", "int8", "--name", "small-int8")
    if request.param != "qlora":
        output = f"calm-{request.param}"
        job = create(server, output, method=request.param)
        server.run("jobs", "watch", job)
        digest, undisturbed = server.json("models", "get", output)["digest"], curve(server, job)
        assert undisturbed != calm[2] and len(undisturbed[0]) == STEPS
    return request.param, server, digest, undisturbed


def test_R23_second_server_on_one_directory_is_refused(calm):
    server = calm[0]
    second = subprocess.run([BIN / "nibbled", "--state_dir", server.state, "--grpc_address", "127.0.0.1:0", "--http_address",
                             "127.0.0.1:0"], env={}, capture_output=True, text=True, timeout=30)
    assert second.returncode != 0
    assert str(server.process.pid) in second.stderr
    assert server.json("models", "list")["models"]


def test_R4_sigterm_to_the_trainer_checkpoints_and_counts_as_no_retry(calm_of_each_method):
    method, server, digest, undisturbed = calm_of_each_method
    output = f"preempted-{method}"
    job = create(server, output, method=method)
    wait_for_step(server, job, SAVE + 2)
    began = time.monotonic()
    (pid,) = trainers(server)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGTERM)  # R5: a second one before the checkpoint begins changes nothing
    soon(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    assert time.monotonic() - began <= 25
    server.run("jobs", "watch", job)
    got = server.json("jobs", "get", job)
    assert got["state"] == "SUCCEEDED" and got["attempt"] == 2 and got["retries"] == 0
    states = [e for e in server.lines("jobs", "watch", job) if e["type"] == "state"]
    assert [e["state"] for e in states] == ["PLANNING", "QUEUED", "PREPARING", "RUNNING", "QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
    steps = [e["step"] for e in server.lines("jobs", "watch", job) if e["type"] == "step"]
    assert steps == list(range(1, STEPS + 1)), "each step ran once"
    assert curve(server, job) == undisturbed, "the curve is the same, bit for bit"
    assert server.json("models", "get", output)["digest"] == digest


def life_of(server, output):
    """Times, in seconds, at which the trainer of an undisturbed job began, wrote each line of its journal, and ended."""
    [job] = [job["id"] for job in server.json("jobs", "list")["jobs"] if job["output_model"] == output]
    attempt = server.state / "jobs" / job / "attempts/1"
    lines = (attempt / "journal.jsonl").read_text().splitlines()
    written = (datetime.datetime.fromisoformat(json.loads(line)["time"]).timestamp() for line in lines)
    times = [(attempt / "attempt.json").stat().st_mtime, *written, (attempt / "outcome.json").stat().st_mtime]
    # The kernel stamps a file with the time of its last timer tick, up to 10 ms ago, so an outcome that follows the last
    # line at once seems to be older than that line.
    return list(itertools.accumulate(times, max))


def kill_trainer(server, attempt, lines, pause_s):
    """Kills the trainer `pause_s` after it has written so many lines to the attempt's journal. Returns False if it had
    already written its outcome."""
    journal, outcome = attempt / "journal.jsonl", attempt / "outcome.json"

    def reached():
        written = journal.read_bytes().count(b"\n") if journal.exists() else 0
        return outcome.exists() or (attempt / "attempt.json").exists() and written >= lines and trainers(server)
    soon(reached, f"{lines} lines of {journal}", 120, every=0.005)
    time.sleep(pause_s)
    for pid in trainers(server):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)
    return not outcome.exists()


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.full)])
def test_R2_job_of_a_trainer_killed_at_random_moments_has_the_same_result(calm_of_each_method, kills):
    """A moment is a number of lines of the journal, so that also the short parts of a run are met, and a share of the
    time until the next line. The first kills of jobs are spread over the whole run of a trainer, from its start to its
    end; the second come at any moment of a trainer that resumes."""
    method, server, digest, undisturbed = calm_of_each_method
    life = life_of(server, "calm" if method == "qlora" else f"calm-{method}")
    draw = random.Random(f"{method} {kills}")
    first = draw.sample(range(len(life) - 1), len(life) - 1)
    killed, moments = 0, []
    while killed < kills:
        output = f"killed-{method}-{kills}-{len(moments)}"
        job = create(server, output, method=method)
        moments.append([first[len(moments) % len(first)]])
        moments[-1].append(draw.randrange(len(life) - 1 - moments[-1][0]))
        assert len(moments) <= kills, f"too few trainers lived until they were killed: {moments}"
        for attempt, lines in enumerate(moments[-1], start=1):
            pause_s = draw.random() * (life[lines + 1] - life[lines])
            if not kill_trainer(server, server.state / "jobs" / job / "attempts" / str(attempt), lines, pause_s):
                break
        server.run("jobs", "watch", job)
        events = server.lines("jobs", "watch", job)
        assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
        got = server.json("jobs", "get", job)
        assert got["state"] == "SUCCEEDED" and got["attempt"] == got["retries"] + 1, moments[-1]
        failures = [e for e in events if e["type"] == "state" and e["state"] == "QUEUED" and e.get("reason")]
        assert [e["reason"] for e in failures] == ["TRAINER_SIGNAL"] * got["retries"]
        killed += got["retries"]
        check_resumes(events)
        assert curve(server, job) == undisturbed, moments[-1]
        assert server.json("models", "get", output)["digest"] == digest, moments[-1]
    print(f"{method}: {killed} kills of {len(moments)} jobs; lines of {len(life) - 2} before each: {moments}")


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("needs root, to mount a small file system")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk, leave):
    """Writes a file that leaves `leave` bytes free."""
    free = os.statvfs(disk)
    size = free.f_bavail * free.f_frsize - leave
    with open(disk / "filler", "ab", buffering=0) as filler:
        while size > 0:
            try:
                size -= filler.write(b"\0" * min(size, 1 << 20))
            except OSError as error:  # others wrote meanwhile, so there is less to fill
                if error.errno != errno.ENOSPC:
                    raise
                break
    return disk / "filler"


def test_R8_R9_full_disk_refuses_new_data_serves_existing_models_and_recovers(small_disk, model_directory, text_file,
                                                                              make_server):
    server = make_server("--retry_backoff_scale", "0.01", "--min_free_bytes", 8 << 20, "--max_retries", 1000,
                         state=small_disk / "state")
    prepare(server, model_directory, text_file)
    # Low, not full: the watermark trips first (R9).
    filler = fill(small_disk, 7 << 20)
    for refused in (["jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "x", *TRAIN],
                    ["datasets", "upload", text_file, "--name", "page2"],
                    ["models", "import", model_directory, "--name", "small2"],
                    ["models", "convert", "small", "--to", "int8", "--name", "small-int8"]):
        result = server.run(*refused, check=False)
        assert result.returncode != 0 and "DISK_FULL" in result.stderr, result.stderr
    assert server.json("models", "list")["models"][0]["name"] == "small"
    filler.unlink()

    # Full in the middle of a job: neither the trainer nor the database can write.
    job = create(server, "out")
    other = create(server, "waiting")
    wait_for_step(server, job, SAVE + 1)
    (pid,) = trainers(server)
    os.kill(pid, signal.SIGSTOP)  # or it might finish before the disk is full
    filler = fill(small_disk, 0)
    os.kill(pid, signal.SIGCONT)
    soon(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    assert server.process.poll() is None
    assert server.json("jobs", "get", job)["id"] == job
    assert server.json("models", "get", "small")["name"] == "small"
    assert server.json("score", "small", "--text", "The keeper")["token_ids"]
    cancelled = server.run("jobs", "cancel", other, check=False)  # done or refused, nothing in between
    assert cancelled.returncode == 0 or "DISK_FULL" in cancelled.stderr, cancelled.stderr
    filler.unlink()

    # With room again, everything continues without a restart.
    server.run("jobs", "cancel", other)
    server.run("jobs", "watch", job)
    events = server.lines("jobs", "watch", job)
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
    assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"
    reasons = [e.get("reason") for e in events if e["type"] == "state" and e["state"] == "QUEUED"][1:]  # the first is its creation
    assert reasons and set(reasons) == {"DISK_FULL"}, reasons
    assert server.json("jobs", "get", other)["state"] == "CANCELLED"
    assert server.stop() == 0
    assert sqlite3.connect(server.state / "nibble.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_R8_cancels_on_a_full_disk_take_effect_and_last(small_disk, model_directory, text_file, make_server):
    server = make_server("--min_free_bytes", 8 << 20, "--cancel_grace_s", 1, state=small_disk / "state")
    prepare(server, model_directory, text_file)
    reserve = server.state / "reserve"
    whole = reserve.stat().st_size
    assert whole >= 1 << 20 and reserve.stat().st_blocks * 512 >= whole
    running, waiting, paused, dropped = (create(server, name) for name in ("running", "waiting", "paused", "dropped"))
    for job in (paused, dropped):
        server.run("jobs", "pause", job)
    # Old request ids: the next server removes them, which is a write.
    database = sqlite3.connect(server.state / "nibble.db", timeout=10)
    with database:
        assert database.execute("UPDATE idempotency SET created_us = 1").rowcount == 4
    database.close()
    wait_for_step(server, running, 2)
    (pid,) = trainers(server)
    os.kill(pid, signal.SIGSTOP)  # or it would end on its own, because it cannot write either
    filler = fill(small_disk, 0)
    refused = server.run("jobs", "resume", paused, check=False)
    assert refused.returncode != 0 and "DISK_FULL" in refused.stderr, "the database has no room"
    assert server.json("jobs", "get", paused)["state"] == "PAUSED", "the refusal changes nothing"

    assert server.json("jobs", "cancel", waiting)["state"] == "CANCELLED"
    fill(small_disk, 0)
    assert server.json("jobs", "cancel", running)["state"] == "CANCELLING"
    soon(lambda: server.json("jobs", "get", running)["state"] == "CANCELLED")
    assert not trainers(server)
    fill(small_disk, 0)
    server.run("jobs", "delete", waiting)
    assert reserve.stat().st_size < whole

    # The next server starts without a byte of room, reads and cancels.
    server.kill()
    (server.state / "server.json").unlink()  # as Server.start would, but before the disk is filled up
    fill(small_disk, 0)
    left, began = reserve.stat().st_size, time.monotonic()
    server.start()
    # R1 allows 5 s for a restart. This test may run beside a build, so it looks for a hang, not for seconds.
    assert time.monotonic() - began < 15  # R1
    assert 0 < left - reserve.stat().st_size <= 256 << 10, "most of the reserve is for cancels"
    fill(small_disk, 0)
    states = {job["id"]: job["state"] for job in server.json("jobs", "list")["jobs"]}
    assert states == {running: "CANCELLED", paused: "PAUSED", dropped: "PAUSED"}
    assert server.json("models", "get", "small")["name"] == "small"
    assert server.json("score", "small", "--text", "The keeper")["token_ids"]
    assert server.json("jobs", "cancel", dropped)["state"] == "CANCELLED"

    server.kill()
    filler.unlink()
    server.start()
    states = {job["id"]: job["state"] for job in server.json("jobs", "list")["jobs"]}
    assert states == {running: "CANCELLED", paused: "PAUSED", dropped: "CANCELLED"}
    database = sqlite3.connect(server.state / "nibble.db", timeout=10)
    assert database.execute("SELECT COUNT(*) FROM idempotency").fetchone() == (0,), "the old ids have been removed"
    database.close()
    *events, _ = server.lines("jobs", "watch", running, check=False)  # exit 8: it was cancelled
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
    soon(lambda: reserve.stat().st_size == whole)
    server.run("jobs", "resume", paused)
    server.run("jobs", "watch", paused)
    assert server.json("jobs", "get", paused)["state"] == "SUCCEEDED"
    assert server.stop() == 0
    assert sqlite3.connect(server.state / "nibble.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_R16_frozen_trainer_is_ended_and_the_job_resumes(calm, make_server, model_directory, text_file):
    timeout = 20  # a trainer that is only slow (beside a build) may be silent for seconds
    server, digest = make_server("--retry_backoff_scale", 0.01, "--no_progress_timeout_s", timeout, "--no_progress_grace_s", 1), calm[1]
    prepare(server, model_directory, text_file)
    job = create(server, "frozen")
    wait_for_step(server, job, SAVE + 1)
    (pid,) = trainers(server)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    soon(lambda: server.json("jobs", "get", job)["attempt"] == 2)
    assert time.monotonic() - began <= timeout + 30
    check(server, job, digest, "frozen")
    assert any(e.get("reason") == "NO_PROGRESS" for e in server.lines("jobs", "watch", job))


def children(pid):
    """Maps the children of a process to the letters of their states."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if int(parent) == pid:
            found[int(stat.parent.name)] = state
    return found


LEFT = 10  # processes left running, and as many that end
CARELESS = """#!{python}
# Before it trains, it leaves orphaned processes outside its group and without the lock of its attempt.
import os, sys, time
def leave(*command):
    child = os.fork()
    if child == 0:
        os.setsid()
        os.closerange(3, 4096)
        if os.fork() == 0:
            os.execv(command[0], command)
        os._exit(0)
    os.waitpid(child, 0)
for _ in range({left}):
    leave("/bin/sleep", "1000")
    leave("/bin/true")
while not os.path.exists("{go}"):
    time.sleep(0.02)
os.execv("{trainer}", ["{trainer}", *sys.argv[1:]])
"""


def test_R17_as_the_first_process_of_a_container_nibbled_ends_and_reaps_orphans(tmp_path, model_directory, text_file):
    first = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0 or subprocess.run([*first, "/bin/true"], capture_output=True).returncode:
        pytest.skip("needs root, to make a namespace of processes")
    go, careless = tmp_path / "go", tmp_path / "careless"
    careless.write_text(CARELESS.format(python=sys.executable, left=LEFT, go=go, trainer=BIN / "nibble-trainer"))
    careless.chmod(0o755)
    server = Server(tmp_path / "state", "--trainer", careless)
    server.program = [*first, *server.program]
    try:
        prepare(server.start(), model_directory, text_file)
        assert json.loads((server.state / "server.json").read_text())["pid"] == 1
        (nibbled,) = children(server.process.pid)
        # Before any job has run, leaves an orphan from outside the container, as `kubectl exec` may.
        leave = ["/usr/bin/nsenter", "--target", str(nibbled), "--pid", "/bin/sh", "-c", "/bin/sleep 1000 &"]
        subprocess.run(leave, check=True, timeout=30, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (orphan,) = children(nibbled)
        os.kill(orphan, signal.SIGKILL)
        soon(lambda: children(nibbled) == {})
        job = create(server, "out")

        def planted():
            # Only nibbled can reap the orphans that have ended, and it must do so before the trainer ends.
            states = list(children(nibbled).values())
            return len(states) == LEFT + 1 and "Z" not in states

        soon(planted)
        go.touch()
        server.run("jobs", "watch", job)
        assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"
        assert children(nibbled) == {}
        os.kill(nibbled, signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
    finally:
        server.kill()


CANCEL_GRACE_S = 5  # the default of --cancel_grace_s
END_S = 2  # to notice the end of the trainer and to record it


@pytest.mark.parametrize("deaf", [False, True])
def test_a_cancel_takes_effect_within_its_bound(make_server, model_directory, text_file, deaf):
    # A trainer that listens has time to finish its micro-batch, however slow the machine.
    grace = CANCEL_GRACE_S if deaf else 60
    server = prepare(make_server(*([] if deaf else ["--cancel_grace_s", grace])), model_directory, text_file)
    job = server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 5000, *TRAIN)["id"]
    wait_for_step(server, job, 2)
    (pid,) = trainers(server)
    if deaf:
        os.kill(pid, signal.SIGSTOP)
    server.run("jobs", "cancel", job)
    soon(lambda: server.json("jobs", "get", job)["state"] == "CANCELLED")
    times = {e["state"]: datetime.datetime.fromisoformat(e["time"]) for e in server.lines("jobs", "watch", job, check=False)
             if e.get("type") == "state"}
    # Both times are from the server's clock, so the polling of this test does not count.
    assert (times["CANCELLED"] - times["CANCELLING"]).total_seconds() <= grace + END_S
    left_outcome = (server.state / "jobs" / job / "attempts/1/outcome.json").exists()
    assert left_outcome != deaf, "a trainer that listens ends at its next micro-batch, a deaf one is killed"
    assert not pathlib.Path(f"/proc/{pid}").exists()


def requests_running(server):
    return sum(value for name, value in server.metrics().items() if name.startswith("nibble_requests_running"))


def says_draining(error):
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return error.code() == grpc.StatusCode.UNAVAILABLE and b"DRAINING" in details


def follow(api, job, seen):
    """Appends the events after those in `seen` until the stream ends. Returns None or the error that ended the
    stream."""
    after = seen[-1].sequence if seen else 0
    try:
        for event in api.stream("FineTuneService", "WatchJob", timeout=300, name=job, after_sequence=after):
            if event.sequence > 0:  # the snapshot has none
                seen.append(event)
    except grpc.RpcError as error:
        return error
    return None


def test_R3_sigterm_under_load_finishes_running_requests(make_server, model_directory, text_file, tmp_path):
    server = make_server()
    prepare(server, model_directory, text_file)
    # So deep that its answers take seconds, in which seven clients start and three calls are refused.
    server.run("models", "import", small_model.write(tmp_path / "deep", num_hidden_layers=24), "--name", "deep", "--dtype", "f32")
    server.run("models", "load", "deep")
    job = create(server, "later")
    wait_for_step(server, job, 2)
    (pid,) = trainers(server)
    # Stopped until the SIGTERM, so that it is then in the middle of its job however long the clients take to start.
    os.kill(pid, signal.SIGSTOP)
    api, seen = Api(server.grpc), []
    health = api.channel.unary_unary(HEALTH)
    models = api.channel.unary_unary("/nibble.v1.ModelService/ListModels")
    assert health(b"") == SERVING and models(b"")
    long = {"model": "deep", "text": "The boat", "stopping": {"max_tokens": 700, "ignore_eos": True}}
    short = {"model": "deep", "text": "The boat", "stopping": {"max_tokens": 1}}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        watch = pool.submit(follow, api, job, seen)
        soon(lambda: seen)
        stream = pool.submit(lambda: list(api.stream("InferenceService", "GenerateStream", timeout=120, request=long)))
        answers = [pool.submit(server.json, "generate", "deep", "--prompt", f"The boat {i}", "--max-tokens", 700, "--ignore-eos")
                   for i in range(6)]
        soon(lambda: requests_running(server) == 7)
        os.kill(pid, signal.SIGCONT)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        soon(lambda: health(b"", timeout=AT_ONCE_S) == NOT_SERVING, seconds=AT_ONCE_S)
        assert time.monotonic() - began <= AT_ONCE_S
        for refused in (lambda: api.call("FineTuneService", "CreateJob", timeout=5),
                        lambda: api.call("InferenceService", "Generate", timeout=5, **short),
                        lambda: list(api.stream("InferenceService", "GenerateStream", timeout=5, request=short))):
            with pytest.raises(grpc.RpcError) as raised:
                refused()
            assert says_draining(raised.value), raised.value
        for answer in answers:
            assert len(answer.result()["token_ids"]) == 700
        replies = stream.result()
        assert sum(len(reply.delta.token_ids) for reply in replies) == 700
        assert [reply.WhichOneof("event") for reply in replies if reply.WhichOneof("event") != "delta"] == ["start", "finish", "usage"]
        ended = watch.result()
    assert server.process.wait(timeout=30) == 0
    assert time.monotonic() - began <= 30
    assert trainers(server) == []
    # The server ends a watch when the job has a checkpoint. The error shows that the job has not ended, and the client
    # resumes the watch on the next server.
    assert ended is not None and says_draining(ended), ended
    api.close()
    server.start()
    assert follow(Api(server.grpc), job, seen) is None
    assert [event.sequence for event in seen] == list(range(1, len(seen) + 1))
    assert [event.step.step for event in seen if event.WhichOneof("event") == "step"] == list(range(1, STEPS + 1))
    got = server.json("jobs", "get", job)
    assert got["state"] == "SUCCEEDED" and got["attempt"] == 2 and got["retries"] == 0


def test_requested_checkpoint_is_published_and_served_while_the_job_runs(calm):
    server, digest, _ = calm
    job = server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "published",
                      "--max-steps", 400, "--save-every", 0, *TRAIN)["id"]
    wait_for_step(server, job, 3)
    assert server.json("jobs", "checkpoints", job)["checkpoints"] == []
    server.run("jobs", "checkpoint", job)
    soon(lambda: server.json("jobs", "checkpoints", job)["checkpoints"])
    (checkpoint,) = server.json("jobs", "checkpoints", job)["checkpoints"]
    assert checkpoint["name"] == f"{job}/{checkpoint['step']}" and checkpoint["servable"] and checkpoint["resumable"]
    model = server.json("jobs", "publish", checkpoint["name"], "--name", "so-far")
    assert model["format"] == "lora" and model["digest"] != digest
    again = server.json("jobs", "publish", checkpoint["name"], "--name", "again")
    assert again["digest"] == model["digest"]
    # A client that lost the answer asks again and gets the existing model (docs/faults.md, C8).
    assert server.json("jobs", "publish", checkpoint["name"], "--name", "again")["etag"] == again["etag"]
    taken = server.run("jobs", "publish", checkpoint["name"], "--name", "small", check=False)
    assert taken.returncode != 0 and "NAME_TAKEN" in taken.stderr, "the name of another model"
    answer = server.json("generate", "so-far", "--prompt", "The keeper", "--max-tokens", 5)
    assert 1 <= len(answer["token_ids"]) <= 5
    assert server.json("jobs", "get", job)["state"] == "RUNNING", "the job must still run"
    cancelled = server.json("jobs", "cancel", job, "--keep-checkpoint")
    assert cancelled["state"] == "CANCELLING"
    soon(lambda: server.json("jobs", "get", job)["state"] == "CANCELLED")
    kept = server.json("jobs", "checkpoints", job)["checkpoints"]
    assert kept[0]["step"] > checkpoint["step"], "the trainer wrote a checkpoint before it stopped"
    server.run("jobs", "delete", job)
    assert not (server.state / "jobs" / job).exists()
    assert server.json("models", "get", "so-far")["name"] == "so-far", "the published model stays"


@pytest.mark.parametrize("method, optimizer", [("qlora", "adamw"), ("full", "adamw_8bit"), ("lora", "adamw")])
def test_published_checkpoint_equals_the_model_of_a_shorter_job(calm, tmp_path, method, optimizer):
    """With a learning rate that does not depend on the length of the job, step 10 of 20 equals the end of a job of 10
    steps."""
    server, _, _ = calm
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"optim": {"schedule": "constant", "warmup_steps": 2, "optimizer": optimizer}}))
    common = ["jobs", "create", "--method", method, "--base", "small", "--dataset", "page", "--save-every", 10, "--spec", spec,
              *SETTINGS[method]]
    ten, twenty, published = (f"{method}-{name}" for name in ("ten", "twenty", "ten-of-twenty"))
    jobs = [server.json(*common, "--output", output, "--max-steps", steps)["id"] for output, steps in ((ten, 10), (twenty, 20))]
    for job in jobs:
        server.run("jobs", "watch", job)
    digest = server.json("jobs", "publish", f"{jobs[1]}/10", "--name", published)["digest"]
    assert digest == server.json("models", "get", ten)["digest"]
    assert digest != server.json("models", "get", twenty)["digest"]
    for name in (ten, published):
        server.run("models", "convert", name, "--to", "int8", "--name", f"{name}-int8")
    int8 = [server.json("models", "get", f"{name}-int8") for name in (ten, published)]
    assert int8[0]["digest"] == int8[1]["digest"] and [model["head_format"] for model in int8] == ["bf16", "bf16"]


def test_R3_drain_by_rpc_cuts_requests_at_its_deadline(make_server, model_directory, text_file):
    server = prepare(make_server("--retry_backoff_scale", "0.01"), model_directory, text_file)
    server.run("models", "load", "small")
    job = create(server, "later")
    wait_for_step(server, job, 2)
    api = Api(server.grpc)
    long = message("GenerateRequest", model="small", text="The boat")
    long.stopping.max_tokens, long.stopping.ignore_eos, long.sampling.n = 900, True, 16
    stream = api.stream("InferenceService", "GenerateStream", timeout=120, request=long)
    next(stream)  # it runs, and cannot end unread: 14,400 deltas exceed queue and window
    assert requests_running(server) >= 1
    drain = message("DrainRequest")
    drain.deadline.nanos = 50_000_000
    api.call("ServerService", "Drain", drain)
    with pytest.raises(grpc.RpcError) as cut:
        for _ in stream:
            pass
    assert cut.value.code() == grpc.StatusCode.CANCELLED, "the drain cuts the stream"
    soon(lambda: not trainers(server))
    load = api.call("ServerService", "GetLoad")
    assert load.draining and not load.ready
    with pytest.raises(grpc.RpcError) as refused:
        api.call("FineTuneService", "GetJob", name=job)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server.process.poll() is None, "a drained server runs until SIGTERM"
    assert server.stop() == 0
    server.start()
    server.run("jobs", "watch", job)
    got = server.json("jobs", "get", job)
    assert got["state"] == "SUCCEEDED" and got["retries"] == 0
