"""Times a start, a page of every list and a scrape with 100,000 jobs, 10 million events and 1,000 models
(docs/benchmarks.md)."""
import json
import os
import shutil
import statistics
import time
import urllib.request

import pytest

import large_state
from wire import Api, message

pytestmark = pytest.mark.full

JOBS = large_state.count_of("NIBBLE_LARGE_JOBS", 100_000)
EVENTS = large_state.count_of("NIBBLE_LARGE_EVENTS", 10_000_000)
MODELS = large_state.count_of("NIBBLE_LARGE_MODELS", 1_000)
QUEUED = 900
EVALUATED = 100  # jobs with checkpoints on the disk: a list reports the best checkpoint of each
# Target times. The test allows ten times as much (TIMES), because the machine may be busy.
START_S, PAGE_S, SCRAPE_S = 5, 0.050, 0.100
TIMES = 10


def times_of(call, times=20):
    """Median and maximum; the first call may read what later calls find in memory."""
    took = []
    for _ in range(times):
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)
    return statistics.median(took), max(took)


def in_ms(seconds):
    return " / ".join(f"{one * 1e3:.1f}" for one in seconds) + " ms"


def evaluate(server):
    """Creates a job that keeps three checkpoints, with evaluations."""
    spec = server.state.parent / "spec.json"
    spec.write_text(json.dumps({"run": {"keep_last": 3}}))
    job = server.lines("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--eval-dataset", "page", "--output",
                       "evaluated", "--max-steps", 3, "--save-every", 1, "--eval-every", 1, "--micro-batch", 2, "--seq-len", 96,
                       "--spec", spec)[0]["id"]
    server.run("jobs", "watch", job)
    assert len(server.json("jobs", "checkpoints", job)["checkpoints"]) == 3
    return job


def fill(server, job, evaluated):
    database = large_state.open_database(server)
    large_state.add_jobs(database, evaluated, "evaluated", EVALUATED)
    large_state.add_label(database, "evaluated-%", "evaluated", "yes")
    for i in range(EVALUATED):
        shutil.copytree(server.state / "jobs" / evaluated, server.state / "jobs" / f"evaluated-{i + 1:08}", copy_function=os.link)
    large_state.add_final(database, job, JOBS - QUEUED - EVALUATED, labels=[("team", "a", 2), ("rare", "yes", 9973)])
    large_state.add_queue(database, job, QUEUED)
    # One log has a tenth of the events. The logs of the other final jobs share the rest equally.
    large_state.add_steps(database, "id = 'final-00000001'", EVENTS // 10)
    large_state.add_steps(database, "id > 'final-00000001' AND id LIKE 'final-%'", EVENTS * 9 // 10 // (JOBS - QUEUED - EVALUATED))
    database.close()
    small = server.state / "models" / "small"
    for i in range(MODELS - 1):
        shutil.copytree(small, server.state / "models" / f"copy-{i:04}", copy_function=os.link)


def test_C11_a_large_state_starts_and_answers_in_time(make_server, model_directory, text_file):
    server = make_server("--max_jobs_per_principal", 0)
    large_state.prepare(server, model_directory, text_file)
    evaluated = evaluate(server)
    job = large_state.template(server)
    began = time.monotonic()
    fill(server, job, evaluated)
    print(f"{JOBS} jobs, {EVENTS} events, {MODELS} models: written in {time.monotonic() - began:.0f} s")

    began = time.monotonic()
    server.start()
    start = time.monotonic() - began
    api = Api(server.grpc)

    def lists(**fields):
        return lambda: api.call("FineTuneService", "ListJobs", message("ListJobsRequest", **fields))

    def of(**fields):
        return message("JobFilter", **fields)

    middle = str(JOBS // 2)
    pages = {
        "ListJobs, the largest page": lists(page_size=1000),
        "ListModels, the largest page": lambda: api.call("ModelService", "ListModels", page_size=1000),
        "ListJobs": lists(),
        "ListJobs in the middle": lists(page_token=middle),
        "ListJobs QUEUED": lists(filter=of(states=[1])),
        "ListJobs SUCCEEDED or FAILED": lists(filter=of(states=[7, 8])),
        "ListJobs RUNNING (none)": lists(filter=of(states=[3])),
        "ListJobs of a base": lists(filter=of(base_model="small")),
        "ListJobs of no base": lists(filter=of(base_model="none")),
        "ListJobs of a label": lists(filter=of(labels={"team": "a"})),
        "ListJobs of a rare label": lists(filter=of(labels={"rare": "yes"})),
        "ListJobs of two labels": lists(filter=of(labels={"team": "a", "rare": "yes"})),
        f"ListJobs of {EVALUATED} with checkpoints": lists(filter=of(labels={"evaluated": "yes"})),
        "ListModels": lambda: api.call("ModelService", "ListModels"),
        "ListJobEvents, long log": lambda: api.call("FineTuneService", "ListJobEvents", name="final-00000001"),
        "ListJobEvents, its end": lambda: api.call("FineTuneService", "ListJobEvents", name="final-00000001",
                                                   after_sequence=EVENTS // 10 - 50),
        "ListCheckpoints": lambda: api.call("FineTuneService", "ListCheckpoints", name="final-00000001"),
        "ListDatasets": lambda: api.call("DatasetService", "ListDatasets"),
        "GetJob, queued": lambda: api.call("FineTuneService", "GetJob", name="queued-00000500"),
    }
    took = {name: times_of(call) for name, call in pages.items()}

    def scrape():
        with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=30) as answer:
            answer.read()

    scraped, models = times_of(scrape), times_of(lambda: server.run("models", "list"), 3)
    print(f"start {start:.2f} s; median and maximum: scrape {in_ms(scraped)}, `models list` {in_ms(models)} with program start")
    for name, seconds in took.items():
        print(f"{name}: {in_ms(seconds)}")
    assert api.call("FineTuneService", "ListJobs", message("ListJobsRequest", page_size=1)).next_page_token
    assert server.metrics()['nibble_jobs{method="qlora",state="QUEUED"}'] == QUEUED
    assert start < TIMES * START_S
    assert max(scraped) < TIMES * SCRAPE_S
    assert max(longest for _, longest in took.values()) < TIMES * PAGE_S
    api.close()
