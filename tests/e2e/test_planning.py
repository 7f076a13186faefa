"""PLANNING with much data: CreateJob does not wait for the rows, and the next server plans a job of a killed one."""
import json
import sqlite3
import time
import uuid

import pytest

from conftest import PAGE, TRAIN
from wire import Api, message

ROW = json.dumps({"text": PAGE * 16}) + "\n"
BYTES = 24 << 20  # at least a second of planning on any machine
CREATE = ["jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "large", "--max-steps", 2, *TRAIN]


@pytest.fixture
def server(make_server, model_directory, tmp_path):
    server = make_server()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    rows = tmp_path / "large.jsonl"
    with open(rows, "w") as file:
        for _ in range(BYTES // len(ROW)):
            file.write(ROW)
    server.run("datasets", "upload", rows, "--name", "large")
    rows.unlink()
    return server


def state_of(server, job):
    """The state in the database of a server that has ended."""
    return sqlite3.connect(server.state / "nibble.db").execute("SELECT state FROM jobs WHERE id = ?", (job,)).fetchone()[0]


def test_create_job_with_much_data_answers_at_once_and_the_job_survives_a_kill(server):
    made = message("CreateJobRequest", request_id=str(uuid.uuid4()))
    spec = made.spec
    spec.base_model, spec.train_dataset, spec.qlora.r, spec.data.max_seq_len, spec.run.max_steps = "small", "large", 4, 64, 2
    spec.run.micro_batch = 1
    api = Api(server.grpc)
    began = time.monotonic()
    job = api.call("FineTuneService", "CreateJob", made)
    took = time.monotonic() - began
    server.kill()
    api.close()
    print(f"CreateJob answered in {took:.3f} s with {BYTES >> 20} MiB of rows to be read")
    assert took < 10, "ten times the promised second"
    assert job.state == 10, "PLANNING"
    assert state_of(server, job.name) == "PLANNING"

    server.start()
    api = Api(server.grpc)
    assert api.call("FineTuneService", "CreateJob", made).name == job.name, "the same request returns the same job"
    api.close()
    server.run("jobs", "watch", job.name)
    events = server.lines("jobs", "watch", job.name)
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    states = [event["state"] for event in events if event["type"] == "state"]
    assert states == ["PLANNING", "QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"], states


def test_job_in_planning_is_cancelled_at_once_and_cannot_be_paused(server):
    job = server.json(*CREATE, "--no-wait")
    assert job["state"] == "PLANNING"
    paused = server.run("jobs", "pause", job["id"], check=False)
    assert paused.returncode != 0 and "ILLEGAL_STATE" in paused.stderr, paused.stderr
    began = time.monotonic()
    assert server.json("jobs", "cancel", job["id"])["state"] == "CANCELLED"
    assert time.monotonic() - began < 10
    server.run("datasets", "delete", "large")  # the job no longer holds it
    states = [event["state"] for event in server.lines("jobs", "watch", job["id"], check=False)]
    assert states == ["PLANNING", "CANCELLED"], states


def test_plan_of_much_data_can_be_cancelled_and_is_aborted_with_its_server(server):
    plan_flags = ["jobs", "plan", *CREATE[2:]]
    began = time.monotonic()
    plan = server.json(*plan_flags, "--no-wait")
    took = time.monotonic() - began
    print(f"PlanJob answered in {took:.3f} s with {BYTES >> 20} MiB of rows to be read")
    assert took < 10 and plan["state"] == "running" and plan["id"].startswith("operations/")
    server.run("models", "load", "small")  # does not wait for the plan
    assert server.json("operations", "get", plan["id"])["state"] == "running"
    server.run("operations", "cancel", plan["id"])
    ended = server.run("operations", "wait", plan["id"], check=False)
    assert ended.returncode == 8, ended.stderr
    assert time.monotonic() - began < 60

    plan = server.json(*plan_flags, "--no-wait")
    server.kill()
    server.start()
    ended = server.json("operations", "get", plan["id"])
    assert ended["state"] == "failed" and ended["error"]["code"] == "ABORTED", ended
    assert server.json(*plan_flags)["max_steps"] == 2

