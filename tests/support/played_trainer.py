"""Trainers that a test plays within its own process, for tests that need hundreds of pods: they write what a real trainer
wrote in a run of the same spec."""
import itertools
import json
import os
import pathlib
import shutil
import signal
import threading

from pod_process import PodProcess

CLAIMED = 73  # kExitClaimed in server/jobs/attempt.h


class Recording:
    """The result of a trainer: its attempt's directory, and its model with the model's digest."""

    def __init__(self, folder, attempt, model, digest):
        self.digest = digest
        self.model = pathlib.Path(folder) / "recording"
        shutil.copytree(model, self.model)
        lines = (pathlib.Path(attempt) / "journal.jsonl").read_text().splitlines(True)
        running = next(number for number, line in enumerate(lines) if json.loads(line)["type"] == "state")
        self.beginning, self.rest = "".join(lines[:running + 1]), "".join(lines[running + 1:])
        self.outcome = json.loads((pathlib.Path(attempt) / "outcome.json").read_text())


class PlayedTrainer:
    """Has the interface of PodProcess. Claims its attempt, trains until `finish` is called, and ends at once on SIGTERM.
    Thread-safe."""

    def __init__(self, recording, spec, uid):
        (self.container,) = spec["containers"]
        self.grace = spec.get("terminationGracePeriodSeconds", 30)
        (argument,) = self.container["args"]
        self.directory = pathlib.Path(argument.removeprefix("--job_dir="))
        self.job = self.directory.parents[1].name  # jobs/ID/attempts/N
        self.recording, self.lock, self.ended, self.code = recording, threading.Lock(), threading.Event(), None
        try:
            with open(self.directory / "claim", "x") as claim:
                claim.write(uid)
            self.write("journal.jsonl", recording.beginning)
        except FileExistsError:
            self.end(CLAIMED)

    def write(self, name, text):
        with open(self.directory / name, "a") as out:
            out.write(text)

    def end(self, code):
        with self.lock:
            if self.code is None:
                self.code = code
                self.ended.set()

    def finish(self):
        """Ends the training: writes the model, the rest of the journal and the outcome."""
        with self.lock:
            if self.code is not None:
                return
            output = self.directory / "output"
            shutil.copytree(self.recording.model, output)
            self.write("journal.jsonl", self.recording.rest)
            self.write("outcome.tmp", json.dumps({**self.recording.outcome, "output_directory": str(output)}))
            os.rename(self.directory / "outcome.tmp", self.directory / "outcome.json")
            self.code = 0
            self.ended.set()

    def stop(self, grace):
        self.end(128 + signal.SIGTERM)

    def kill(self):
        self.end(128 + signal.SIGKILL)

    def exit_code(self):
        """Waits for the end."""
        self.ended.wait()
        return self.code


class Players:
    """Plays the trainers of a cluster's pods. `lasts`(number of the pod): seconds from the start of a pod to the end of its
    training; None: until the test calls finish(). `real`(number): a real trainer runs instead."""

    def __init__(self, cluster, recording, lasts=lambda number: None, real=lambda number: False):
        self.recording, self.lasts, self.real = recording, lasts, real
        self.lock, self.numbers, self.pods = threading.Lock(), itertools.count(), {}  # pods: of each job the newest
        cluster.kubelet.run = self.begin

    def begin(self, programs, spec, uid, log):
        number = next(self.numbers)
        if self.real(number):
            return PodProcess(programs, spec, uid, log)
        played, lasts = PlayedTrainer(self.recording, spec, uid), self.lasts(number)
        with self.lock:
            self.pods[played.job] = played
        if lasts is not None:
            timer = threading.Timer(lasts, played.finish)
            timer.daemon = True
            timer.start()
        return played

    def of(self, job):
        """The played trainer of a job; None if no pod of the job has begun."""
        with self.lock:
            return self.pods.get(job)
