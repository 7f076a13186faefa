"""The grace periods of a cancel, a pause and a cancel that keeps a checkpoint, measured with real trainers in pods."""
import signal
import subprocess
import time

import pytest

from pod_process import PodProcess
from soon import soon
from test_kill import TRAIN, wait_for_step
from test_kubernetes_runner import TEMPLATES, start  # noqa: F401 (fixture)
from test_runner import templates

CANCEL_S, PAUSE_S = 4, 7
POD_S = PAUSE_S + 10  # grace of a pod whose template does not set one
DEATH_S = 1  # grace of a pod that nibbled kills: with 0 the API server would drop the pod before its processes end
SLACK_S = 5  # for a busy machine, after the moment at which something should happen
STEPS, SAVE = 5000, 1000  # a trainer that is not stopped trains for minutes
COMMANDS = {"cancel": (["cancel"], CANCEL_S, "CANCELLED"), "pause": (["pause"], PAUSE_S, "PAUSED"),
            "keep": (["cancel", "--keep-checkpoint"], PAUSE_S, "CANCELLED")}


class TimedProcess(PodProcess):
    """Records each stop with its time and grace, and the time of its end."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.stops, self.ended = [], None

    def stop(self, grace):
        if self.process.poll() is None:  # the last event of the pod arrives after its process has ended
            self.stops.append((time.monotonic(), grace))
        super().stop(grace)

    def exit_code(self):
        code = super().exit_code()
        self.ended = time.monotonic()
        return code

    def ended_within(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def create(server, *more):
    return server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", STEPS,
                       "--save-every", SAVE, *TRAIN, *more)["id"]


class Stopped:
    """A job whose trainer is in the middle of its training, and the times of its end."""

    def __init__(self, server, cluster, ignoring):
        self.server, self.cluster = server, cluster
        self.job = create(server)
        wait_for_step(server, self.job, 2)
        (self.pod,) = cluster.pods()
        self.trainer = cluster.kubelet.running[self.pod["metadata"]["uid"]]
        if ignoring:
            self.trainer.send(signal.SIGSTOP)

    def run(self, command, state):
        self.began = time.monotonic()
        self.server.run("jobs", command[0], self.job, *command[1:])
        soon(lambda: self.trainer.ended, "the end of the trainer")
        soon(lambda: self.server.json("jobs", "get", self.job)["state"] == state)
        self.settled = time.monotonic()
        soon(lambda: self.cluster.jobs() == [] and self.cluster.pods() == [])
        term, graces = self.trainer.stops[0][0], [grace for _, grace in self.trainer.stops]
        print(f"nibble jobs {' '.join(command)}: SIGTERM {term - self.began:.2f} s after the call, "
              f"end of the trainer {self.trainer.ended - self.began:.2f} s (exit {self.trainer.process.returncode}), "
              f"{state} {self.settled - self.began:.2f} s; graces of the pod: {graces}")
        return self.trainer.ended - self.began


@pytest.fixture
def begin(start, cluster):
    def make(ignoring, **pod):
        cluster.kubelet.run = TimedProcess
        server = start(templates(pod=pod), cancel_grace_s=CANCEL_S, pause_grace_s=PAUSE_S, lost_node_timeout_s=60,
                       no_progress_timeout_s=600)
        return Stopped(server, cluster, ignoring)
    return make


@pytest.mark.parametrize("command", COMMANDS)
def test_trainer_that_obeys_ends_within_its_grace(begin, command):
    words, grace, state = COMMANDS[command]
    stopped = begin(ignoring=False)
    assert stopped.pod["spec"]["terminationGracePeriodSeconds"] == POD_S
    took = stopped.run(words, state)
    assert took < grace and stopped.trainer.process.returncode >= 0, "no signal ended it"
    assert [grace for _, grace in stopped.trainer.stops] == [POD_S]
    check_checkpoint(stopped, command)


def check_checkpoint(stopped, command):
    server, job = stopped.server, stopped.job
    checkpoints = server.json("jobs", "checkpoints", job)["checkpoints"]
    if command == "cancel":
        assert checkpoints == [], "a plain cancel writes none"
        return
    (checkpoint,) = checkpoints
    step = checkpoint["step"]
    assert 2 <= step < SAVE, "written because of the command"
    server.run("jobs", "publish", f"{job}/{step}", "--name", "kept")
    assert server.json("models", "get", "kept")["digest"]
    if command == "pause":
        server.run("jobs", "resume", job)
    else:
        job = create(server, "--resume-from", f"{job}/{step}")
    wait_for_step(server, job, step + 1)
    server.run("jobs", "cancel", job)
    events = server.lines("jobs", "watch", job, check=False)  # exit 8: it was cancelled
    assert [event["resumed_step"] for event in events if event.get("state") == "RUNNING"][-1] == step


@pytest.mark.parametrize("command", COMMANDS)
def test_trainer_that_ignores_its_stop_is_killed_at_the_end_of_its_grace(begin, command):
    words, grace, state = COMMANDS[command]
    stopped = begin(ignoring=True)
    took = stopped.run(words, state)
    assert grace <= took < grace + DEATH_S + SLACK_S
    assert stopped.trainer.process.returncode == -signal.SIGKILL
    assert [grace for _, grace in stopped.trainer.stops] == [POD_S, DEATH_S]
    assert stopped.server.json("jobs", "get", stopped.job).get("retries", 0) == 0


def test_grace_of_the_template_ends_a_trainer_earlier(begin):
    stopped = begin(ignoring=True, terminationGracePeriodSeconds=2)
    took = stopped.run(["pause"], "PAUSED")
    assert 2 <= took < PAUSE_S and [grace for _, grace in stopped.trainer.stops] == [2]


def test_trainer_has_its_grace_from_the_arrival_of_its_stop(begin):  # R29
    """The API server is away when the job is paused, for longer than the grace."""
    stopped = begin(ignoring=True)
    stopped.cluster.go_away()
    stopped.server.run("jobs", "pause", stopped.job)
    assert not stopped.trainer.ended_within(PAUSE_S + 2)
    stopped.cluster.come_back()
    soon(lambda: stopped.trainer.stops)
    assert not stopped.trainer.ended_within(PAUSE_S - 3), "it has more than the second of a killed pod"
    stopped.trainer.send(signal.SIGCONT)
    soon(lambda: stopped.server.json("jobs", "get", stopped.job)["state"] == "PAUSED")
    assert stopped.trainer.process.returncode == 75
    assert len(stopped.server.json("jobs", "checkpoints", stopped.job)["checkpoints"]) == 1
