"""Soak test: runs all kinds of client work at once for NIBBLE_SOAK_MINUTES (default 30), together with attacks and
SIGKILLs of trainers. It measures memory and descriptors of one nibbled process, so SIGKILLs of the server come
afterwards. These and the warm-up before the soak each take a tenth of its time. Writes soak.json to the folder of the
logs."""
import collections
import contextlib
import os
import pathlib
import random
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import types
import unittest.mock

import pytest
from google.protobuf import message_factory

import footprint
import soak_clients
from attacks import connections
from conftest import trainers
from soak_calls import Calls, CountedApi, Life
from test_server_kills import Traffic, attempts, check_all_there, check_database, send
from wire import Api, pool
from soon import settled, soon

MINUTES = float(os.environ.get("NIBBLE_SOAK_MINUTES", 30))
FLAT = 0.05  # maximum spread() of nibbled's resident memory over the last half of the soak
WINDOWS = 20  # parts into which spread() divides its values
SPARE_FILES = 2  # descriptors that may be open in addition afterwards; test_limits.py allows as many
# Kind of misbehaving client (http_attackers.py) -> number of clients.
HTTP_ATTACKS = {"drip": 4, "silent": 20, "deaf": 5, "flood": 5}
# Each must succeed at least once: a soak in which every conversion failed shows nothing about conversions.
KINDS = {"CreateJob", "GetJob", "ListJobEvents", "PauseJob", "ResumeJob", "CancelJob", "DeleteJob", "WatchJob", "WatchLoad", "PlanJob",
         "UploadDataset", "CancelUpload", "DeleteDataset", "Generate", "GenerateStream", "Chat", "Score", "Tokenize", "ListJobs",
         "ListModels", "ListDatasets", "ListUploads", "ListOperations", "ListCheckpoints", "ConvertModel", "WaitOperation", "LoadModel",
         "UnloadModel", "VerifyModel", "UploadModel", "ImportModel", "DeleteModel", "GET /livez", "GET /readyz", "GET /metrics"}


def spread(values, windows=WINDOWS):
    """For the medians of equal parts: (largest - smallest) / smallest. Ignores spikes, shows slopes and steps."""
    size = len(values) // windows
    assert size > 0, "too few samples"
    medians = [statistics.median(values[at * size:(at + 1) * size]) for at in range(windows)]
    return (max(medians) - min(medians)) / min(medians)


def test_spread_shows_slopes_and_steps_but_not_noise_and_spikes():
    draw = random.Random(1)
    flat = [200.0 + draw.uniform(-3, 3) + (100 if at % 97 == 0 else 0) for at in range(1800)]
    assert spread(flat) < 0.01
    assert spread([value + 12 * at / 1800 for at, value in enumerate(flat)]) > FLAT  # a leak of 6%
    assert spread([value + (12 if at > 1700 else 0) for at, value in enumerate(flat)]) > FLAT


@pytest.mark.parametrize("kills_before", [0, 3])
def test_failed_operation_fails_the_soak_unless_its_server_was_killed(kills_before):
    soak = types.SimpleNamespace(life=Life(), server=types.SimpleNamespace(grpc="127.0.0.1:1"), calls=Calls())
    for _ in range(kills_before):
        soak.life.kill()
        soak.life.start()
    client = soak_clients.Client(soak, seed=1)
    operation = message_factory.GetMessageClass(pool().FindMessageTypeByName("google.longrunning.Operation"))
    failed, endless = operation(done=True), operation()
    failed.error.code = 13
    with pytest.raises(AssertionError):
        client.finish(client.api, failed)
    client.api.call = lambda *_, **__: time.sleep(0.01) or endless
    with unittest.mock.patch.object(soak_clients, "LONG_S", 0.05), pytest.raises(AssertionError, match="took more than"):
        client.finish(client.api, endless)
    soak.life.kill()
    soak.life.start()
    assert client.finish(client.api, failed) is None
    client.api.close()


class Soak:
    def __init__(self, server, model_directory):
        self.server, self.model_directory = server, model_directory
        self.calls, self.life, self.traffic = Calls(), Life(), Traffic(seed=1)
        self.stopping, self.failures = threading.Event(), []
        # For work that has only one result: request -> its first answer; conversion or import -> its first digest.
        self.answers, self.digests = {}, {}
        self.datasets, self.models = {}, {}  # name -> digest, of those acknowledged and not deleted
        self.deleted_models = set()  # names, from just before DeleteModel is called
        self.killed = 0

    @contextlib.contextmanager
    def clients(self):
        """Runs all clients and kills a trainer now and then. Afterwards stops the clients and ends all jobs."""
        threads = [kind(self, seed) for seed, kind in enumerate(soak_clients.ALL)]
        threads.append(threading.Thread(target=self.kill_trainers, daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join(timeout=300)
            hung = [thread.name for thread in threads if thread.is_alive()]
            self.stopping.clear()
        assert not hung, f"clients that do not end: {hung}"
        self.end_jobs()

    def kill_trainers(self):
        draw = random.Random(5)
        while not self.stopping.wait(draw.uniform(3, 8)):
            pids = list(attempts(self.server))
            if pids:
                send([draw.choice(pids)], signal.SIGKILL)
                self.killed += 1

    def end_jobs(self):
        api = CountedApi(self.server.grpc, self.calls, self.life)
        while self.traffic.unanswered:  # sends these requests again: without an answer, no client knows the job
            self.traffic.create(api)
        names = [name for name in self.traffic.acknowledged if name not in self.traffic.deleting]
        for name in names:
            self.traffic.cancel(api, name)
        api.close()
        api = Api(self.server.grpc)  # does not count its calls
        soon(lambda: not api.call("FineTuneService", "ListJobs", Traffic.open_jobs()).jobs, seconds=180)
        api.close()
        soon(lambda: trainers(self.server) == [])

    def attackers(self):
        """Starts all attackers. Returns a context that ends them, and the process of soak_attackers.py."""
        stack = contextlib.ExitStack()
        process = stack.enter_context(subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).with_name("soak_attackers.py"), self.server.grpc], stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        for kind, count in HTTP_ATTACKS.items():
            stack.enter_context(connections(self.server.http, kind, count, nice=0))
        return stack, process

    def kill_server(self, with_trainers):
        """Kills the server and starts it again; returns the seconds of the start."""
        self.life.kill()
        self.server.kill()
        if with_trainers:
            send(attempts(self.server), signal.SIGKILL)
        began = time.monotonic()
        self.server.start()
        self.life.start()
        return time.monotonic() - began


def settled_files(server):
    """The open files, once their number has not changed for 5 s, or after 60 s."""
    return settled(lambda: footprint.open_files(server.process.pid))


def kinds_of(files):
    """Number of descriptors by target, with N for each number in a target."""
    return collections.Counter(re.sub(r"\d+", "N", target) for target in files.values())


def check_rows(soak):
    """Compares what clients know with what the stopped server left in nibble.db."""
    traffic, left = soak.traffic, check_database(soak.server)
    known = set(traffic.acknowledged)
    lost = known - traffic.deleting - set(left)
    print(f"rows: {len(known)} jobs acknowledged, {len(traffic.deleted)} deleted, {len(left)} in nibble.db")
    assert not lost, f"jobs without a row: {lost}"
    assert set(left) <= known - traffic.deleted, "rows of jobs that no client made, or that were deleted"
    for name, (state, _) in left.items():
        assert state in ("SUCCEEDED", "FAILED", "CANCELLED"), (name, state)
    with contextlib.closing(sqlite3.connect(soak.server.state / "nibble.db")) as database:
        events = {name: (count, last, first) for name, count, last, first in
                  database.execute("SELECT job_id, COUNT(*), MAX(sequence), MIN(sequence) FROM events GROUP BY job_id")}
        ends = dict(database.execute("SELECT id, last_sequence FROM jobs"))
    for name in left:
        count, last, first = events[name]
        assert first == 1 and count == last == ends[name], f"{name}: {count} events from {first} to {last}, last_sequence {ends[name]}"
        assert len(traffic.events[name]) == count, f"{name}: a client has read {len(traffic.events[name])} events of {count}"
    return {"acknowledged": len(known), "deleted": len(traffic.deleted), "in_database": len(left),
            "events": sum(events[name][0] for name in left)}


def read_all(api, service, method, field, **fields):
    """All rows of a list, from all of its pages."""
    rows, token = [], ""
    while True:
        answer = api.call(service, method, page_size=1000, page_token=token, **fields)
        rows.extend(getattr(answer, field))
        token = answer.next_page_token
        if not token:
            return rows


def check_lists(soak):
    """Compares what clients know with what the server lists."""
    jobs = check_all_there(soak.server.grpc, soak.traffic)
    api = Api(soak.server.grpc)
    datasets = {one.name: one.sha256 for one in read_all(api, "DatasetService", "ListDatasets", "datasets")}
    models = {one.name: one for one in read_all(api, "ModelService", "ListModels", "models")}
    api.close()
    for name, digest in soak.datasets.items():
        assert datasets.get(name) == digest, f"the dataset {name} is gone or has changed"
    for name, digest in soak.models.items():
        assert name in models and models[name].digest == digest, f"the model {name} is gone or has changed"
    for job in jobs.values():
        if job.state == soak_clients.SUCCEEDED and job.output_model not in soak.deleted_models:
            assert job.output_model in models, f"{job.name} has SUCCEEDED without its model"
    assert not [name for name, one in models.items() if one.damaged]


def print_table(rows):
    print(f"{'call':18} {'ok':>7} {'refused':>8} {'cut':>5} {'unanswered':>10} {'faulty':>6} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    for row in rows:
        print(f"{row['kind']:18} {row['ok']:7} {row['refused']:8} {row['cut']:5} {row['unanswered']:10} {row['faulty']:6} "
              f"{row['p50_ms']:8.1f} {row['p99_ms']:8.1f} {row['max_ms']:8.1f}")


def over_time(samples, parts=12):
    """The last sample of each of about `parts` equal parts: minute, MiB of memory, descriptors."""
    size = max(1, len(samples) // parts)
    return [{"minute": round((sample.at - samples[0].at) / 60, 2), "rss_mib": round(sample.server.rss / 2**20, 1),
             "anon_mib": round(sample.server.anon / 2**20, 1), "files": sample.files} for sample in samples[size - 1::size]]


@pytest.mark.full
def test_a_soak_loses_nothing_leaks_nothing_and_leaves_no_call_unanswered(make_server, model_directory, text_file):
    server = make_server("--retry_backoff_scale", "0.001", "--max_retries", "1000", "--max_running_jobs", "2")
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    for target in ("int8", "ternary"):
        server.run("models", "convert", "small", "--to", target, "--name", f"small-{target}")
    for model in soak_clients.SERVED:
        server.run("models", "load", model)
    soak = Soak(server, model_directory)

    with footprint.Sampler(server, period=0.5, disk=False) as sampler:
        with sampler.phase("warm-up"), soak.clients():
            time.sleep(max(10, MINUTES * 6))
        before = settled_files(server)
        with soak.clients():
            stack, attacker = soak.attackers()
            with stack:
                with sampler.phase("soak"):
                    time.sleep(MINUTES * 60)
                assert attacker.poll() is None, "the attack ended early"
        after = settled_files(server)
        rss_after = footprint.memory(server.process.pid).rss
        table = soak.calls.table()
        restarts = []
        with sampler.phase("kills"), soak.clients():
            draw, until = random.Random(7), time.monotonic() + MINUTES * 6
            while time.monotonic() < until or len(restarts) < 3:
                time.sleep(draw.uniform(2, 6))
                restarts.append(soak.kill_server(with_trainers=draw.random() < 0.5))
            time.sleep(3)
        last = settled_files(server)
    check_lists(soak)
    assert server.stop() == 0
    assert trainers(server) == []

    samples = sampler.of("soak")
    half = [sample.server.rss for sample in samples[len(samples) // 2:]]
    print("\ncalls of the whole soak")
    print_table(soak.calls.table())
    print("\nminute, RSS MiB, anonymous MiB, descriptors")
    for row in over_time(samples):
        print(f"{row['minute']:6.2f} {row['rss_mib']:8.1f} {row['anon_mib']:8.1f} {row['files']:5}")
    print(f"last half: {min(half) / 2**20:.1f} to {max(half) / 2**20:.1f} MiB, medians of {WINDOWS} parts {spread(half):.1%} apart; "
          f"{rss_after / 2**20:.1f} MiB at the end")
    print(f"descriptors at rest: {len(before)} before, {len(after)} after, {len(last)} of the last server")
    print(f"additional descriptors: {dict(kinds_of(after) - kinds_of(before))}")
    print(f"SIGKILLs: {soak.killed} of trainers, {len(restarts)} of the server, slowest start {max(restarts):.2f} s")
    rows = check_rows(soak)
    footprint.write_json("soak.json", {
        "minutes": MINUTES, "calls_before_server_kills": table, "calls": soak.calls.table(), "over_time": over_time(samples, 60),
        "spread": spread(half), "last_half_bytes": [min(half), max(half)], "files": [len(before), len(after), len(last)],
        "trainers_killed": soak.killed, "restarts_s": restarts, "rows": rows, "examples": soak.calls.examples[:50],
        "failures": soak.failures[:20]})
    assert not soak.failures, "\n".join(soak.failures[:5])
    assert soak.calls.total("faulty") == 0 and soak.calls.total("unanswered") == 0, "\n".join(soak.calls.examples[:10])
    missing = KINDS - {row["kind"] for row in table if row["ok"]}
    assert not missing, f"never succeeded: {missing}"
    assert soak.killed >= MINUTES, "too few trainers were killed"
    assert len(after) <= len(before) + SPARE_FILES, f"descriptors were leaked: {kinds_of(after) - kinds_of(before)}"
    assert len(last) <= len(before) + SPARE_FILES, f"descriptors were leaked: {kinds_of(last) - kinds_of(before)}"
    assert spread(half) <= FLAT, "the memory of nibbled is not flat"
