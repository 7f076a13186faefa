"""SIGKILLs of nibbled around its requests to a real API server and around its records, while jobs run on the cluster: each
attempt has one Job, and each job one end. Of three trainers, two are played by the test and one is real."""
import contextlib
import datetime
import random
import sqlite3
import time

import grpc
import pytest

from api_proxy import ApiProxy, Trap
from played_trainer import Players
from soon import soon
from test_kubernetes_runner import start  # noqa: F401 (fixture)
from test_server_kills import check_story, left_database, read_events, request
from wire import Api

SUCCEEDED, FAILED, CANCELLED = 7, 8, 9  # numbers of JobState
# The method and stage of a Trap. Others: "order", as soon as the attempt's directory exists; "any", at any time.
POINTS = (("POST", "asked"), ("POST", "late"), ("POST", "answered"), ("SHOWN", "asked"), ("SHOWN", "told"), ("DELETE", "asked"),
          ("DELETE", "late"), ("DELETE", "answered"), ("order", ""), ("any", ""))
RECORD_S = 0.2  # within this time, the server records a Job that a watch has shown
ADOPTION_S = 10


def open_attempts(database):
    """(job, attempt): handle of each attempt whose end is not recorded."""
    rows = database.execute("SELECT j.id, j.attempt, a.handle FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.attempt = j.attempt "
                            "WHERE j.state IN ('PREPARING', 'RUNNING', 'PAUSING', 'CANCELLING')")
    return {(job, attempt): handle for job, attempt, handle in rows}


class Killer:
    """Creates jobs and kills the server."""

    def __init__(self, server, proxy, cluster):
        self.server, self.proxy, self.cluster = server, proxy, cluster
        self.jobs = {}  # job: whether its cancel was acknowledged
        self.unordered = set()  # jobs with an attempt that had no order (attempt.json) yet when the server was killed
        self.adopted, self.slowest = 0, 0.0
        self.recorded = {True: 0, False: 0}  # open attempts at a kill, by whether their Job was recorded

    def create(self, made):
        """Returns the job of a request, which may have been sent before."""
        with contextlib.closing(Api(self.server.grpc)) as api:
            job = api.call("FineTuneService", "CreateJob", made).name
        self.jobs.setdefault(job, False)
        return job

    def cancel(self, job):
        with contextlib.closing(Api(self.server.grpc)) as api:
            try:
                api.call("FineTuneService", "CancelJob", name=job)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE), error
                return
        self.jobs[job] = True

    def cancel_at(self, point, made, end):
        """Cancels a new job as soon as its pod exists. Returns the trap of its Job's deletion."""
        job = self.create(made)
        trap = self.proxy.trap = Trap(*point, end, name=job)
        soon(lambda: [pod for pod in self.cluster.pods() if pod["metadata"]["labels"]["nibble.dev/job"] == job])
        self.cancel(job)
        return trap

    def kill_at(self, point, number):
        """One kill, in the life of at least one new job."""
        draw, made = random.Random(number), request(number)
        begun = set(self.server.state.glob("jobs/*/attempts/1"))

        def end():
            if point == ("SHOWN", "told"):
                time.sleep(draw.uniform(0, RECORD_S))
            self.server.kill()
        if point[0] == "DELETE" and draw.random() < 0.5:
            trap = self.cancel_at(point, made, end)
        else:
            trap = self.proxy.trap = Trap(*point, end)
            with contextlib.suppress(grpc.RpcError):  # the server may die before it answers
                self.create(made)
        if point == ("order", ""):
            soon(lambda: set(self.server.state.glob("jobs/*/attempts/1")) > begun, every=0.0005)
            end()
        elif point == ("any", ""):
            time.sleep(draw.uniform(0, 1.5))
            end()
        else:
            assert trap.sprung.wait(60), f"no {point}"
        self.server.process.wait()
        self.restart()
        self.create(made)  # its answer may have been lost

    def restart(self):
        """Starts the next server; waits until it has adopted what the dead one left."""
        with left_database(self.server) as database:
            left = open_attempts(database)
        for handle in left.values():
            self.recorded[handle != ""] += 1
        ordered = {key for key in left if (self.server.state / "jobs" / key[0] / "attempts" / str(key[1]) / "attempt.json").exists()}
        self.unordered |= {job for job, _ in set(left) - ordered}
        before = len(self.server.logged("trainer adopted"))
        self.server.start()
        soon(lambda: ordered <= {(entry["job"], entry["attempt"]) for entry in self.server.logged("trainer adopted")[before:]})
        with contextlib.closing(sqlite3.connect(f"file:{self.server.state}/nibble.db?mode=ro", uri=True)) as database:
            soon(lambda: all(open_attempts(database).get(key, "ended") for key in ordered), "the Job of each attempt is known")
        # From the first line of the log: a busy machine takes its time to begin a process.
        began = datetime.datetime.fromisoformat(self.server.logged("trainers run as Kubernetes Jobs")[-1]["time"])
        self.slowest = max(self.slowest, time.time() - began.timestamp())
        self.adopted += len(ordered)


def check_end(killer, cluster, digest):
    server = killer.server
    counts = {SUCCEEDED: 0, CANCELLED: 0}
    with contextlib.closing(Api(server.grpc)) as api:
        for job, cancelled in killer.jobs.items():
            got = soon(lambda: (one := api.call("FineTuneService", "GetJob", name=job)).state in (SUCCEEDED, FAILED, CANCELLED) and one,
                       job, 120)
            assert got.state == CANCELLED or got.state == SUCCEEDED and not cancelled, got
            assert got.retries == 0 and got.attempt == 1 + (job in killer.unordered), got
            events = read_events(api, job)
            check_story(events)
            counts[got.state] += 1
            if got.state == SUCCEEDED:
                assert server.json("models", "get", got.output_model)["digest"] == digest
    created = cluster.created()
    assert sorted(created) == sorted(set(created)), "an attempt had two Jobs"
    assert {name.rpartition("-")[0].removeprefix("nibble-") for name in created} == set(killer.jobs)
    soon(lambda: cluster.jobs() == [] and cluster.pods() == [])
    return counts


@pytest.mark.parametrize("kills", [pytest.param(10, id="10"), pytest.param(200, id="200", marks=pytest.mark.full)])
def test_server_killed_around_its_requests_and_records_creates_one_job_per_attempt(start, plane, cluster, recording, tmp_path, kills):
    proxy = ApiProxy(tmp_path, plane.authority, plane.port)
    cluster.flags[cluster.flags.index("--kubernetes_url") + 1] = proxy.url
    draw = random.Random(kills)
    Players(cluster, recording, lasts=lambda number: draw.uniform(0.1, 2), real=lambda number: number % 3 == 2)
    try:
        killer = Killer(start(lost_node_timeout_s=60), proxy, cluster)
        for number in range(kills):
            killer.kill_at(POINTS[number % len(POINTS)], number)
        counts = check_end(killer, cluster, recording.digest)
        refused = [name for verb, resource, code, name in cluster.requests() if (verb, resource, code) == ("create", "jobs", 409)]
        print(f"{kills} kills, {len(killer.jobs)} jobs: {counts[SUCCEEDED]} SUCCEEDED, {counts[CANCELLED]} CANCELLED; "
              f"{killer.adopted} trainers adopted, their Jobs known {killer.slowest:.2f} s after a start at most; "
              f"{killer.recorded[True]} open attempts had a recorded Job at the kill, {killer.recorded[False]} had not, "
              f"{len(killer.unordered)} had no order; {len(refused)} POSTs were refused as a second one")
        assert killer.slowest < ADOPTION_S
        assert counts[SUCCEEDED] and counts[CANCELLED] and refused and all(killer.recorded.values())
    finally:
        proxy.stop()
