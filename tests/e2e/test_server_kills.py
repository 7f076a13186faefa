"""R1 of docs/faults.md: SIGKILLs of the server, again and again, while jobs run and clients call. The answers are kept
as a history and checked against those of the next server."""
import concurrent.futures
import contextlib
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
import uuid

import grpc
import pytest

from conftest import trainers
from test_message_limits import field
from wire import Api, message, wait_for
from soon import soon

# Numbers of JobState: 1 QUEUED, 2 PREPARING, 3 RUNNING, 4 PAUSING, 5 PAUSED, 6 CANCELLING, 7 SUCCEEDED, 8 FAILED,
# 9 CANCELLED, 10 PLANNING.
STEPS = 6
MIN_OPERATIONS = 50  # a kill without traffic shows nothing and is not counted
# SIGKILL of the server alone; of the server, while its trainers are stopped until the next server runs; of server and
# trainers together; of the server, and then of its trainers while there is no server.
FAULTS = ("server", "slow", "both", "orphans")


def request(number):
    made = message("CreateJobRequest", request_id=str(uuid.uuid4()))
    spec = made.spec
    spec.base_model, spec.train_dataset, spec.qlora.r, spec.qlora.alpha = "small", "page", 4, 8
    spec.data.max_seq_len, spec.optim.lr, spec.labels["number"] = 64, 5e-3, str(number)
    spec.run.max_steps, spec.run.save_every, spec.run.micro_batch = STEPS, 2, 1
    return made


def read_events(api, name):
    events, page = [], message("ListJobEventsRequest", name=name, page_size=1000)
    while True:
        answer = api.call("FineTuneService", "ListJobEvents", page)
        events.extend(answer.events)
        if not answer.next_page_token:
            return events
        page.page_token = answer.next_page_token


def rank(job):
    """Numbers that never decrease: 0 for open, 1 for CANCELLING, 2 for final; attempt; retries."""
    return 2 if job.state in (7, 8, 9) else int(job.state == 6), job.attempt, job.retries


def identity(job):
    spec = type(job.spec).FromString(job.spec.SerializeToString())
    spec.ClearField("runtime")  # set by each attempt
    return job.uid, spec, job.digests, job.create_time, job.output_model


def check_later(before, after):
    """Checks two answers about one job; the second was requested after the first had arrived."""
    assert identity(after) == identity(before), "the answer is about another job"
    assert all(old <= new for old, new in zip(rank(before), rank(after))), (before, after)
    if rank(before)[0] == 2:
        assert after == before, "a final job has changed"


class Traffic:
    """Clients that create, pause, resume, cancel, delete and read jobs, and check each answer against those that had
    arrived when it was requested."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.acknowledged = {}  # job -> its request
        self.jobs = {}          # job -> its latest answer
        self.events = {}        # job -> its events, as far as they were read
        self.cancelled = set()  # acknowledged cancels
        self.resumes = {}       # job -> number of its ResumeJob calls that began, plus those that ended
        self.resuming = []      # jobs of ResumeJob calls in progress, one entry per call
        self.paused = set()     # acknowledged pauses without a later ResumeJob call
        self.deleting = set()   # jobs for which DeleteJob was called
        self.deleted = set()    # acknowledged deletions
        self.unanswered = []    # requests without an answer
        self.operations = 0

    def run(self, address, stop, max_open):
        """Runs until `stop`, or until the server is gone. Raises errors that a kill does not explain; the caller gets
        them from the future's result()."""
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

    def operate(self, api, max_open, max_kept=None):
        """Calls a random method for a random job. With more than `max_kept` jobs, also deletes the oldest one if it has
        ended."""
        with self.lock:
            draw, jobs = self.random.random(), [name for name in self.acknowledged if name not in self.deleting]
            name = self.random.choice(jobs) if jobs else None
        if max_kept is not None and len(jobs) > max_kept:
            self.unless_deleted(jobs[0], lambda: self.delete_if_ended(api, jobs[0]))
        self.unless_deleted(name, lambda: self.operate_on(api, max_open, draw, name))

    def unless_deleted(self, name, work):
        try:
            work()
        except grpc.RpcError as error:  # another client has deleted it meanwhile
            if error.code() != grpc.StatusCode.NOT_FOUND or name not in self.deleting:
                raise

    def delete_if_ended(self, api, name):
        self.ask(api, "GetJob", name)
        self.delete(api, name)

    def operate_on(self, api, max_open, draw, name):
        if draw < 0.05 and len(api.call("FineTuneService", "ListJobs", self.open_jobs()).jobs) < max_open or name is None:
            self.create(api)
        elif draw < 0.07:
            self.cancel(api, name)
        elif draw < 0.1:
            self.pause(api, name)
        elif draw < 0.15:
            self.resume(api, name)
        elif draw < 0.16:
            self.delete(api, name)
        elif draw < 0.5:
            self.ask(api, "GetJob", name)
        else:
            self.read(api, name)

    def ask(self, api, method, name):
        with self.lock:
            before = self.jobs[name]
        answer = api.call("FineTuneService", method, name=name)
        self.heard(before, answer)
        return answer

    def ask_if_legal(self, api, method, name):
        """Returns None if the state of the job does not allow the call."""
        try:
            return self.ask(api, method, name)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return None

    def heard(self, before, job):
        """Takes an answer; `before` is the latest one that was known when this one was requested."""
        check_later(before, job)
        with self.lock:
            if rank(job) >= rank(self.jobs[job.name]):  # answers may overtake each other
                self.jobs[job.name] = job

    def read(self, api, name):
        with self.lock:
            before = self.events.get(name, [])
        events = read_events(api, name)
        assert events[:len(before)] == before, "an event that was read is gone or has changed"
        with self.lock:
            if len(events) > len(self.events.get(name, [])):
                self.events[name] = events
        return events

    def cancel(self, api, name):
        if self.ask_if_legal(api, "CancelJob", name) is not None:
            with self.lock:
                self.cancelled.add(name)

    def pause(self, api, name):
        with self.lock:
            resumes = self.resumes.get(name, 0)
        answer = self.ask_if_legal(api, "PauseJob", name)
        if answer is None:
            return
        with self.lock:
            if self.resumes.get(name, 0) != resumes or name in self.resuming:
                return  # a resume may have followed the pause
            self.paused.add(name)
        # The job may have ended or been cancelled instead. RUNNING (3) is allowed here: check_paused checks the events.
        assert answer.state not in (1, 2), answer.state

    def resume(self, api, name):
        with self.lock:
            self.count_resume(name)
            self.resuming.append(name)
        try:
            self.ask_if_legal(api, "ResumeJob", name)
        finally:
            with self.lock:
                self.count_resume(name)
                self.resuming.remove(name)

    def count_resume(self, name):
        self.resumes[name] = self.resumes.get(name, 0) + 1
        self.paused.discard(name)

    def delete(self, api, name):
        with self.lock:
            if rank(self.jobs[name])[0] < 2:
                return
            self.deleting.add(name)
        api.call("FineTuneService", "DeleteJob", name=name)
        with self.lock:
            self.deleted.add(name)

    @staticmethod
    def open_jobs():
        made = message("ListJobsRequest")
        made.filter.states.extend([10, 1, 2, 3, 4, 6])
        return made

    def create(self, api):
        with self.lock:
            made = self.unanswered.pop() if self.unanswered else request(self.random.randrange(10**9))
        try:
            job = api.call("FineTuneService", "CreateJob", made)
        except grpc.RpcError:
            with self.lock:
                self.unanswered.append(made)  # sent again, perhaps to the next server
            raise
        assert job.spec.labels["number"] == made.spec.labels["number"], "the answer is about another job"
        assert job.digests.config
        with self.lock:
            self.jobs[job.name] = job
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
        assert name not in traffic.deleted or name not in found, "a deleted job is there again"
        if name in traffic.deleting and name not in found:
            continue
        assert name in found, "an acknowledged job is gone"
        traffic.heard(traffic.jobs[name], found[name])
        traffic.read(api, name)
        assert requests.setdefault(made.request_id, name) == name, "one request made two jobs"
    for name in traffic.cancelled & set(found):
        assert found[name].state in (6, 7, 8, 9), "an acknowledged cancel was lost"
    for name in traffic.paused & set(found):
        check_paused(traffic.read(api, name))
    api.close()
    return found


def check_paused(events):
    """Checks a job whose pause was acknowledged and that was not resumed. Its state is not enough: a job that has
    SUCCEEDED instead is shown as RUNNING until its model is there, and one whose pause was lost may have SUCCEEDED by
    now."""
    states = [event.state.to for event in events if event.WhichOneof("event") == "state"]
    last = max((index for index, state in enumerate(states) if state in (4, 5)), default=None)
    assert last is not None, "an acknowledged pause was lost"
    assert not {1, 2, 3} & set(states[last:]), "an acknowledged pause was lost"


def check_artifacts(server, known):
    """Returns the listed models and loads those not in `known`: a model loads only if it fits the hashes of its
    manifest."""
    names = {model["name"] for model in server.json("models", "list")["models"]}
    with contextlib.closing(Api(server.grpc)) as api:
        for name in sorted(names - known):
            wait_for(api, api.call("ModelService", "LoadModel", name=name), 60)
            api.call("ModelService", "UnloadModel", name=name)
    return names


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.kill(pid, number)


def attempts(server):
    """Maps the pid of each live trainer to the directory of its attempt."""
    found = {}
    for pid in trainers(server):
        with contextlib.suppress(OSError):  # it has ended
            arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--job_dir" in arguments:
                found[pid] = pathlib.Path(arguments[arguments.index("--job_dir") + 1])
    return found


def attempt_of(directory):
    """Job and number of an attempt: jobs/ID/attempts/N"""
    return directory.parents[1].name, int(directory.name)


def has_outcome(directory):
    return (directory / "outcome.json").exists()


def stands_still(pid):
    """Whether the process is stopped; None if it has ended."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if state in "ZX" else state == "T"


def check_one_writer(server):
    """No job has two trainers at one moment."""
    def doubled(found):
        jobs = [attempt_of(directory)[0] for directory in found.values()]
        return len(set(jobs)) < len(jobs)

    found = attempts(server)
    if doubled(found):
        # The first may have ended and the second begun during the search. A trainer that is found twice lived in
        # between.
        found = dict(found.items() & attempts(server).items())
    assert not doubled(found), f"two writers: {found}"


@contextlib.contextmanager
def left_database(server):
    """A checked copy of what a dead server left, so that the next server finds its database untouched."""
    with tempfile.TemporaryDirectory() as folder:
        for file in ("nibble.db", "nibble.db-wal"):
            if (server.state / file).exists():
                shutil.copy(server.state / file, folder)
        with contextlib.closing(sqlite3.connect(pathlib.Path(folder) / "nibble.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            yield database


def check_database(server):
    """Checks what a dead server left; returns job -> (state, attempt)."""
    with left_database(server) as database:
        twice = "SELECT job_id FROM attempts WHERE state = 'SUCCEEDED' GROUP BY job_id HAVING COUNT(*) > 1"
        assert database.execute(twice).fetchall() == []
        jobs = {name: (state, attempt) for name, state, attempt in database.execute("SELECT id, state, attempt FROM jobs")}
    for directory in attempts(server).values():
        name, attempt = attempt_of(directory)
        assert jobs[name][0] in ("PREPARING", "RUNNING", "PAUSING", "CANCELLING") and jobs[name][1] == attempt, (directory, jobs[name])
    return jobs


def check_lost(address, unfinished):
    """Checks that the server, soon after its start, reports each attempt whose trainer was killed as lost, once."""
    api = Api(address)

    def times_reported(name, attempt):
        reasons = [event.state.reason.reason for event in read_events(api, name) if event.attempt == attempt]
        return reasons.count("ATTEMPT_LOST")

    for name, attempt in unfinished:
        soon(lambda name=name, attempt=attempt: times_reported(name, attempt) > 0)
        assert times_reported(name, attempt) == 1, (name, attempt)
    api.close()


def check_story(events):
    """Checks the events of one job: no gap, legal states, one end, steps that continue from where they were resumed."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    legal = {0: {10}, 10: {1, 8, 9}, 1: {2, 5, 8, 9}, 2: {3, 1, 8, 6}, 3: {7, 8, 1, 4, 6}, 4: {5, 7, 8, 6}, 5: {1, 9}, 6: {9}}
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
            assert event.step.step == step + 1, "a step was repeated or left out"
            step = event.step.step
        models += kind == "model"
    assert state in (7, 9), "no job fails for good"
    assert models == (1 if state == 7 else 0)
    if state == 7:
        assert step == STEPS


def failed(clients):
    """Whether a client has raised an error, so that there is no point in waiting."""
    return any(client.done() and client.exception() is not None for client in clients)


def kill_in_traffic(server, traffic, fault, draw):
    """Kills the server at a random moment of three clients' traffic, and its trainers as the fault says. Returns the
    clients' futures, and the directories of the trainers that were stopped and of those that were killed, by pid."""
    stop, before, frozen, killed = threading.Event(), traffic.operations, {}, {}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(traffic.run, server.grpc, stop, 4) for _ in range(3)]
        try:
            until = time.monotonic() + draw.uniform(0.2, 2.0)
            while time.monotonic() < until or traffic.operations - before < MIN_OPERATIONS and time.monotonic() < until + 20:
                check_one_writer(server)
                time.sleep(0.05)
            if fault in ("slow", "orphans"):
                soon(lambda: failed(clients) or not all(has_outcome(directory) for directory in attempts(server).values()))
            if fault == "both":
                killed = attempts(server)
                send(killed, signal.SIGKILL)
            server.kill()
            if fault == "slow":
                frozen = attempts(server)
                send(frozen, signal.SIGSTOP)
            if fault == "orphans":
                killed = attempts(server)
                send(killed, signal.SIGKILL)
        finally:
            stop.set()
    return clients, frozen, killed


def end_all_jobs(server, traffic):
    """Lets every job end, and checks what is left of each."""
    api = Api(server.grpc)
    while traffic.unanswered:  # or an unknown job could exist
        traffic.create(api)
    left = check_all_there(server.grpc, traffic)
    traffic.paused.clear()
    for name in left:
        soon(lambda name=name: traffic.ask(api, "GetJob", name).state != 4, seconds=120)  # --pause_grace_s is 60
        traffic.ask_if_legal(api, "ResumeJob", name)
    for name in reversed(left):  # the oldest is the next to run
        server.run("jobs", "watch", name, check=False)  # exit 8 for a cancelled one
        check_story(traffic.read(api, name))
    ended = check_all_there(server.grpc, traffic)
    assert {path.name for path in (server.state / "jobs").iterdir()} <= set(ended), "a deleted job has files"
    models = check_artifacts(server, set())
    for name in ended:
        assert (ended[name].output_model in models) == (ended[name].state == 7), "a model without success, or the reverse"
    api.close()


# R1 allows 5 s for a restart. The run with four kills may share the machine with a build, so its limit of 15 s only
# detects a hang.
@pytest.mark.parametrize("kills, restart_s", [pytest.param(4, 15, id="4"), pytest.param(200, 5, id="200", marks=pytest.mark.full)])
def test_R1_repeated_kills_of_the_server_lose_nothing(make_server, model_directory, text_file, kills, restart_s):
    server = make_server("--retry_backoff_scale", "0.001", "--max_retries", "1000", "--max_running_jobs", "2")
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    traffic = Traffic(seed=kills)
    counted, void, adopted, lost, slowest, models = 0, 0, 0, 0, 0.0, check_artifacts(server, set())
    while counted < kills:
        draw = random.Random(counted + 1000 * void)
        fault, before = FAULTS[counted % len(FAULTS)], traffic.operations
        clients, frozen, killed = kill_in_traffic(server, traffic, fault, draw)
        try:
            soon(lambda: all(stands_still(pid) is not False for pid in frozen))
            soon(lambda: all(stands_still(pid) is None for pid in killed))
            left = check_database(server)
            # The other attempts had been settled before the server died, or were finished, or are being cancelled.
            unfinished = [attempt_of(directory) for directory in killed.values() if not has_outcome(directory)]
            unfinished = [(name, attempt) for name, attempt in unfinished
                          if left.get(name) in (("PREPARING", attempt), ("RUNNING", attempt))]
            began = time.monotonic()
            server.start()
            took = time.monotonic() - began
            check_one_writer(server)
            entries = server.logged("trainer adopted")[adopted:]
            adopted += len(entries)
            standing = {(pid, *attempt_of(directory)) for pid, directory in frozen.items() if stands_still(pid)}
            adopted_trainers = {(int(entry["trainer"].split("/")[0]), entry["job"], entry["attempt"]) for entry in entries}
            assert standing <= adopted_trainers, "a live trainer was not adopted"
        finally:
            send(frozen, signal.SIGCONT)
        for client in clients:
            client.result()  # raises what the client raised
        assert took < restart_s, "the restart took too long"
        slowest = max(slowest, took)
        check_one_writer(server)
        check_all_there(server.grpc, traffic)
        check_lost(server.grpc, unfinished)
        check_one_writer(server)
        models |= check_artifacts(server, models)
        check_one_writer(server)
        lost += len(unfinished)
        met = {"slow": standing, "orphans": unfinished}.get(fault, True)  # the trainers that this fault needs
        if traffic.operations - before >= MIN_OPERATIONS and met:
            counted += 1
        else:
            void += 1
            assert void <= max(2, kills // 10), "too many kills met no traffic or no trainer"
    print(f"{counted} kills, {void} void, {len(traffic.acknowledged)} jobs, {len(traffic.resumes)} resumed, "
          f"{len(traffic.deleted)} deleted, {adopted} trainers adopted, {lost} lost, slowest restart {slowest:.2f} s")
    assert traffic.acknowledged and traffic.resumes
    assert adopted > 0, "no trainer outlived its server"
    assert lost > 0, "no trainer was lost"
    end_all_jobs(server, traffic)
    assert server.stop() == 0
    assert trainers(server) == []
    assert sqlite3.connect(server.state / "nibble.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
