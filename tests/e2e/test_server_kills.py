"""R1 of docs/faults.md: kill -9 of the server while jobs run and clients ask, again and again. What was answered is kept as a history and
checked against what the next server says."""
import os
import random
import signal
import sqlite3
import threading
import time
import uuid

import grpc
import pytest

from conftest import Server
from test_kill import trainers
from wire import Api, message

STEPS = 6
MIN_OPERATIONS = 50  # a kill without traffic says nothing


def request(number):
    made = message("CreateJobRequest", request_id=str(uuid.uuid4()))
    spec = made.spec
    spec.base_model, spec.train_dataset, spec.qlora.r, spec.qlora.alpha = "small", "page", 4, 8
    spec.data.max_seq_len, spec.optim.lr, spec.labels["number"] = 64, 5e-3, str(number)
    spec.run.max_steps, spec.run.save_every, spec.run.micro_batch = STEPS, 2, 1
    return made


class Traffic:
    """Clients that create, cancel and read, and write down what was answered."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.acknowledged = {}  # job -> its request
        self.cancelled = set()  # acknowledged cancels
        self.unanswered = []    # requests whose answer never came
        self.operations = 0

    def run(self, address, stop, max_open):
        api = Api(address)
        while not stop.is_set():
            with self.lock:
                draw, jobs = self.random.random(), list(self.acknowledged)
                name = self.random.choice(jobs) if jobs else None
            try:
                if draw < 0.05 and len(api.call("FineTuneService", "ListJobs", self.open_jobs()).jobs) < max_open or name is None:
                    self.create(api)
                elif draw < 0.07:
                    api.call("FineTuneService", "CancelJob", name=name)
                    with self.lock:
                        self.cancelled.add(name)
                elif draw < 0.5:
                    api.call("FineTuneService", "GetJob", name=name)
                else:
                    api.call("FineTuneService", "ListJobEvents", name=name)
                with self.lock:
                    self.operations += 1
            except grpc.RpcError as error:
                refused = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.CANCELLED)
                assert error.code() in refused, error
                if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                    break
        api.close()

    @staticmethod
    def open_jobs():
        made = message("ListJobsRequest")
        made.filter.states.extend([1, 2, 3, 4, 6])
        return made

    def create(self, api):
        with self.lock:
            made = self.unanswered.pop() if self.unanswered else request(self.random.randrange(10**9))
        try:
            job = api.call("FineTuneService", "CreateJob", made)
        except grpc.RpcError:
            with self.lock:
                self.unanswered.append(made)  # asked again, by the next server perhaps
            raise
        with self.lock:
            self.acknowledged[job.name] = made


def check_all_there(address, traffic):
    api = Api(address)
    found = {}
    page = message("ListJobsRequest", page_size=1000)
    while True:
        answer = api.call("FineTuneService", "ListJobs", page)
        found.update({job.name: job for job in answer.jobs})
        if not answer.next_page_token:
            break
        page.page_token = answer.next_page_token
    requests = {}
    for name, made in traffic.acknowledged.items():
        assert name in found, "an acknowledged job is gone"
        assert found[name].spec.labels["number"] == made.spec.labels["number"], "it is another"
        assert requests.setdefault(made.request_id, name) == name, "one request made two jobs"
    for name in traffic.cancelled:
        assert found[name].state in (6, 7, 8, 9), "an acknowledged cancel is forgotten"
    api.close()
    return found


def check_story(events):
    """The order of one job's events: no gap, legal states, one end, steps that go on from where they were resumed."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    legal = {0: {1}, 1: {2, 5, 8, 9}, 2: {3, 1, 8, 6}, 3: {7, 8, 1, 4, 6}, 6: {9}}
    state, step, models = 0, 0, 0
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "state":
            assert event.state.to in legal[state], (state, event.state.to)
            state = event.state.to
            if state == 3:
                assert step - event.state.resumed_step <= 2, "more than the save interval was lost"
                step = event.state.resumed_step
        elif kind == "step":
            assert event.step.step == step + 1, "a step was doubled or left out"
            step = event.step.step
        models += kind == "model"
    assert state in (7, 8, 9) and state != 8
    assert models == (1 if state == 7 else 0)
    if state == 7:
        assert step == STEPS


@pytest.mark.parametrize("seeds", [4, pytest.param(200, marks=pytest.mark.full)])
def test_R1_server_killed_again_and_again(tmp_path, model_directory, text_file, seeds):
    server = Server(tmp_path / "state", "--retry_backoff_scale", "0.001", "--max_retries", "1000", "--max_running_jobs", "2").start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    traffic = Traffic(seed=seeds)
    void = 0
    for seed in range(seeds):
        draw = random.Random(seed)
        stop, before = threading.Event(), traffic.operations
        clients = [threading.Thread(target=traffic.run, args=(server.grpc, stop, 4)) for _ in range(3)]
        for client in clients:
            client.start()
        until = time.monotonic() + draw.uniform(0.2, 2.0)
        while time.monotonic() < until or traffic.operations - before < MIN_OPERATIONS and time.monotonic() < until + 20:
            time.sleep(0.005)
        if seed % 3 == 2:  # sometimes the machine takes both
            for pid in trainers(server):
                os.kill(pid, signal.SIGKILL)
        server.kill()
        stop.set()
        for client in clients:
            client.join()
        void += traffic.operations - before < MIN_OPERATIONS
        began = time.monotonic()
        server.start()
        assert time.monotonic() - began < 5 or seeds == 4, "the restart took too long"
        check_all_there(server.grpc, traffic)
    assert void <= seeds // 10, "too many kills met no traffic"
    assert traffic.acknowledged

    api = Api(server.grpc)
    for name in traffic.acknowledged:
        server.run("jobs", "watch", name, check=False)  # exit 1 for a cancelled one
        events, page = [], message("ListJobEventsRequest", name=name, page_size=1000)
        while True:
            answer = api.call("FineTuneService", "ListJobEvents", page)
            events.extend(answer.events)
            if not answer.next_page_token:
                break
            page.page_token = answer.next_page_token
        check_story(events)
    ended = check_all_there(server.grpc, traffic)
    models = {model["name"] for model in server.json("models", "list")["models"]}
    for name in traffic.acknowledged:
        assert (ended[name].output_model in models) == (ended[name].state == 7), "a model without success, or the reverse"
    api.close()
    assert server.stop() == 0
    assert trainers(server) == []
    assert sqlite3.connect(server.state / "nibble.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
