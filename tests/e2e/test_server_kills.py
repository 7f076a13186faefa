"""R1 of docs/faults.md: kill -9 of the server while jobs run and clients ask, again and again. What was answered is kept as a history and
checked against what the next server says."""
import concurrent.futures
import contextlib
import os
import random
import signal
import sqlite3
import threading
import time
import uuid

import grpc
import pytest

from conftest import trainers
from test_message_limits import field
from test_reliability import wait_until
from wire import Api, message

STEPS = 6
MIN_OPERATIONS = 50  # a kill without traffic says nothing: it is not counted


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
        """Until `stop`, or until the server is gone. Raises what no kill excuses: the caller has to ask for it."""
        api = Api(address)
        try:
            while not stop.is_set():
                self.operate(api, max_open)
                with self.lock:
                    self.operations += 1
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise
        finally:
            api.close()

    def operate(self, api, max_open):
        with self.lock:
            draw, jobs = self.random.random(), list(self.acknowledged)
            name = self.random.choice(jobs) if jobs else None
        if draw < 0.05 and len(api.call("FineTuneService", "ListJobs", self.open_jobs()).jobs) < max_open or name is None:
            self.create(api)
        elif draw < 0.07:
            self.cancel(api, name)
        elif draw < 0.5:
            api.call("FineTuneService", "GetJob", name=name)
        else:
            api.call("FineTuneService", "ListJobEvents", name=name)

    def cancel(self, api, name):
        try:
            api.call("FineTuneService", "CancelJob", name=name)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.FAILED_PRECONDITION:  # that is the answer for one that has ended
                raise
            return
        with self.lock:
            self.cancelled.add(name)

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


def check_artifacts(server, known):
    """The models that are listed. Those not in `known` are loaded: a model is served when it fits the hashes of its manifest."""
    names = {model["name"] for model in server.json("models", "list")["models"]}
    with grpc.insecure_channel(server.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        load, unload = (channel.unary_unary(f"/nibble.v1.ModelService/{method}") for method in ("LoadModel", "UnloadModel"))
        for name in sorted(names - known):
            load(field(1, name.encode()), timeout=60)
            unload(field(1, name.encode()), timeout=60)
    return names


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, number)


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


# A restart takes less than 5 s. The few kills are run anywhere, beside a build perhaps: there a hang is looked for, not seconds.
@pytest.mark.parametrize("kills, restart_s", [pytest.param(4, 15, id="4"), pytest.param(200, 5, id="200", marks=pytest.mark.full)])
def test_R1_server_killed_again_and_again(make_server, model_directory, text_file, kills, restart_s):
    server = make_server("--retry_backoff_scale", "0.001", "--max_retries", "1000", "--max_running_jobs", "2")
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    traffic = Traffic(seed=kills)
    counted, void, slowest, models = 0, 0, 0.0, check_artifacts(server, set())
    while counted < kills:
        draw = random.Random(counted + 1000 * void)
        # The server alone; the server, and its trainers stand still until the next is there; the machine takes both.
        fault = ("server", "slow", "both")[counted % 3]
        stop, before, frozen = threading.Event(), traffic.operations, []
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            clients = [pool.submit(traffic.run, server.grpc, stop, 4) for _ in range(3)]
            try:
                until = time.monotonic() + draw.uniform(0.2, 2.0)
                while time.monotonic() < until or traffic.operations - before < MIN_OPERATIONS and time.monotonic() < until + 20:
                    time.sleep(0.005)
                if fault == "slow":
                    wait_until(lambda: trainers(server))
                if fault == "both":
                    send(trainers(server), signal.SIGKILL)
                server.kill()
                if fault == "slow":
                    frozen = trainers(server)
                    send(frozen, signal.SIGSTOP)
            finally:
                stop.set()
        began = time.monotonic()
        try:
            server.start()
        finally:
            send(frozen, signal.SIGCONT)
        took = time.monotonic() - began
        for client in clients:
            client.result()  # or what it raised
        assert took < restart_s, "the restart took too long"
        slowest = max(slowest, took)
        check_all_there(server.grpc, traffic)
        models |= check_artifacts(server, models)
        if traffic.operations - before >= MIN_OPERATIONS:
            counted += 1
        else:
            void += 1
            assert void <= max(2, kills // 10), "too many kills met no traffic"
    adopted = len(server.logged("trainer adopted"))
    print(f"{counted} kills, {void} void, {len(traffic.acknowledged)} jobs, {adopted} trainers adopted, slowest restart {slowest:.2f} s")
    assert traffic.acknowledged
    assert adopted > 0, "no trainer outlived its server"

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
    models = check_artifacts(server, set())
    for name in traffic.acknowledged:
        assert (ended[name].output_model in models) == (ended[name].state == 7), "a model without success, or the reverse"
    api.close()
    assert server.stop() == 0
    assert trainers(server) == []
    assert sqlite3.connect(server.state / "nibble.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
