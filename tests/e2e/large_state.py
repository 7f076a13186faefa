"""Builds state directories with many jobs and events by SQL: creating the rows by calls would take hours."""
import json
import os
import sqlite3
import time

from wire import Api
from soon import soon

CANCELLED = 9  # JobState
BACKOFF_S = 10 * 24 * 3600  # of queued jobs: they stay in the queue and none starts


def prepare(server, model_directory, text_file):
    """Imports a model and uploads a dataset for the jobs."""
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")


def template(server):
    """Makes one cancelled job, whose row is the template of the others; stops the server."""
    job = server.lines("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "made",
                       "--max-steps", 10000, "--micro-batch", 2, "--seq-len", 96)[0]["id"]
    server.run("jobs", "cancel", job)
    api = Api(server.grpc)
    soon(lambda: api.call("FineTuneService", "GetJob", name=job).state == CANCELLED)
    api.close()
    server.stop()
    return job


def open_database(server):
    database = sqlite3.connect(server.state / "nibble.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = OFF")  # a test's own directory: nothing to lose
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_size = -262144")
    return database


def add_jobs(database, job, prefix, count, **columns):
    """Copies the job to prefix-00000001 ..., with these columns changed (SQL expressions; `i` runs from 1 to count)."""
    columns = {"id": f"printf('{prefix}-%08d', i)", "spec": f"json_set(spec, '$.output_model', printf('{prefix}-%08d', i))",
               "last_sequence": "1", **columns}
    names = [row[1] for row in database.execute("PRAGMA table_info(jobs)") if row[1] != "number"]
    values = [columns.get(name, name) for name in names]
    database.execute(f"INSERT INTO jobs ({', '.join(names)}) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                     f"SELECT {', '.join(values)} FROM jobs, n WHERE id = ?", (count, job))


def add_queue(database, job, count):
    """Adds jobs that wait in the queue for a long backoff."""
    add_jobs(database, job, "queued", count, state="'QUEUED'", error="''", ended_us="0", started_us="0", attempt="0")
    now = int(time.time() * 1e6)
    body = json.dumps({"sequence": 1, "time": "2026-01-01T00:00:00Z", "type": "state", "attempt": 0, "state": "QUEUED",
                       "retry_in_s": BACKOFF_S})
    database.execute("INSERT INTO events (job_id, sequence, attempt, attempt_sequence, type, time_us, body) "
                     "SELECT id, 1, 0, NULL, 'state', ?, ? FROM jobs WHERE state = 'QUEUED'", (now, body))


def add_final(database, job, count, labels=()):
    """Adds finished jobs that cycle through the final states."""
    state = "CASE i % 3 WHEN 0 THEN 'SUCCEEDED' WHEN 1 THEN 'FAILED' ELSE 'CANCELLED' END"
    add_jobs(database, job, "final", count, state=state, published="1")
    for key, value, every in labels:
        add_label(database, "final-%", key, value, every)


def add_label(database, ids, key, value, every=1):
    """Labels every `every`th job whose id is LIKE `ids`."""
    database.execute("INSERT INTO job_labels (key, value, number) SELECT ?, ?, number FROM jobs WHERE id LIKE ? AND number % ? = 0",
                     (key, value, ids, every))


def add_steps(database, where, count):
    """Adds `count` step events, from sequence 2, to each job that meets the SQL condition `where`."""
    body = ("json_object('sequence', i + 1, 'time', '2026-01-01T00:00:00Z', 'type', 'step', 'attempt', 1, 'step', i, 'max_steps', 1000, "
            "'loss', 2.5, 'lr', 0.0002, 'grad_norm', 1.5, 'tokens', 1024, 'tokens_per_s', 512.5, 'step_ms', 1998, "
            "'peak_memory_bytes', 1234567890)")
    database.execute("INSERT INTO events (job_id, sequence, attempt, attempt_sequence, type, time_us, body) "
                     "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                     f"SELECT id, i + 1, 1, i, 'step', 1767225600000000 + i, {body} FROM jobs, n WHERE {where}", (count,))
    database.execute(f"UPDATE jobs SET last_sequence = ? WHERE {where}", (count + 1,))


def count_of(name, default):
    """The count in the environment variable `name` (for example NIBBLE_LARGE_EVENTS=1000000), else `default`."""
    return int(os.environ.get(name, default))

