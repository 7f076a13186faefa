"""A cancel at about the moment at which the trainer's pod completes, again and again: each job has one end, and the cluster
keeps nothing. Trainers are played by the test."""
import concurrent.futures
import contextlib
import random
import threading
import time

import grpc
import pytest

from played_trainer import Players
from soon import soon
from test_kubernetes_runner import start  # noqa: F401 (fixture)
from test_server_kills import check_story, read_events, request
from wire import Api

SUCCEEDED, FAILED, CANCELLED = 7, 8, 9  # numbers of JobState
WORKERS = 8
STEP_S, JITTER_S = 0.02, 0.15


class Racer:
    """Cancels jobs around the moment at which both ends are equally likely: after each success the next cancel is a little
    earlier, after each cancelled job a little later."""

    def __init__(self, server, players, seed):
        self.server, self.players, self.random = server, players, random.Random(seed)
        self.lock, self.delay = threading.Lock(), 0.2  # from the end of the training to the cancel
        self.jobs = {}  # job: (its end, whether the cancel was accepted)

    def race(self, number):
        with contextlib.closing(Api(self.server.grpc)) as api:
            job = api.call("FineTuneService", "CreateJob", request(number)).name
            played = soon(lambda: self.players.of(job), f"the pod of {job}", every=0.02)
            with self.lock:
                delay = self.delay + self.random.uniform(-JITTER_S, JITTER_S)
            finish = threading.Timer(max(0, -delay), played.finish)
            finish.start()
            time.sleep(max(0, delay))
            accepted = self.cancel(api, job)
            finish.join()
            end = soon(lambda: (got := api.call("FineTuneService", "GetJob", name=job)).state in (SUCCEEDED, FAILED, CANCELLED) and got,
                       f"the end of {job}", 120, every=0.1)
            assert end.state != FAILED and end.retries == 0 and end.attempt == 1, end
            check_story(read_events(api, job))
        with self.lock:
            self.delay += STEP_S if end.state == CANCELLED else -STEP_S
            self.jobs[job] = end, accepted

    @staticmethod
    def cancel(api, job):
        try:
            api.call("FineTuneService", "CancelJob", name=job)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error  # the job has ended
            return False
        return True


@pytest.mark.parametrize("races", [pytest.param(40, id="40"), pytest.param(1000, id="1000", marks=pytest.mark.full)])
def test_cancel_that_races_the_completion_of_a_pod_ends_once(start, cluster, recording, races):
    players = Players(cluster, recording)
    server = start(max_running_jobs=WORKERS, lost_node_timeout_s=60)
    racer = Racer(server, players, seed=races)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for done in [pool.submit(racer.race, number) for number in range(races)]:
            done.result()  # raises its error
    ends = [(end.state, accepted) for end, accepted in racer.jobs.values()]
    cancelled, refused = ends.count((CANCELLED, True)), ends.count((SUCCEEDED, False))
    succeeded = ends.count((SUCCEEDED, True)) + refused
    print(f"{races} races in {time.monotonic() - began:.0f} s: {cancelled} CANCELLED, {succeeded} SUCCEEDED, of which {refused} "
          f"refused the cancel; both are equally likely {racer.delay:.2f} s after the end of the training")
    assert cancelled + succeeded == len(racer.jobs) == races
    assert cancelled and succeeded
    soon(lambda: cluster.jobs() == [] and cluster.pods() == [], "the cluster is empty")
    assert sorted(cluster.created()) == sorted(f"nibble-{job}-1" for job in racer.jobs)
    models = {model["name"] for model in server.json("models", "list")["models"]} - {"small"}
    published = {end.output_model for end, _ in racer.jobs.values() if end.state == SUCCEEDED}
    assert models == published, "a model without success, or the reverse"
