"""Attacks by one client (docs/faults.md): measures the p99 of well-behaved clients with and without them."""
import pytest

import large_state
from attacks import attackers, check_beside, p99_of
from wire import Api

pytestmark = pytest.mark.full


def test_C1_lists_of_one_row_hold_up_no_other_call(make_server, model_directory, text_file):
    server = make_server("--max_jobs_per_principal", 0, "--max_queued_jobs", 1000)
    large_state.prepare(server, model_directory, text_file)
    job = large_state.template(server)
    database = large_state.open_database(server)
    large_state.add_queue(database, job, 998)
    database.close()
    server.start()
    api = Api(server.grpc)
    calls = {
        "GetJob": lambda: api.call("FineTuneService", "GetJob", name="queued-00000500"),
        "ListJobs": lambda: api.call("FineTuneService", "ListJobs", page_size=10),
        "ListDatasets": lambda: api.call("DatasetService", "ListDatasets"),
        "GetLoad": lambda: api.call("ServerService", "GetLoad"),
    }
    assert calls["GetJob"]().progress.queue_position == 499
    quiet = p99_of(calls)
    # A server that parsed the whole queue to find the position of one job, or read all 998 jobs for a base that no job
    # has, would hold up the other calls.
    (listed,) = api.call("FineTuneService", "ListJobs", page_size=1).jobs
    assert listed.name == "queued-00000998" and listed.progress.queue_position == 997
    lists = ['page_size=1', 'page_size=1, filter=message("JobFilter", base_model="none")']
    body = "; ".join(f'api.call("FineTuneService", "ListJobs", message("ListJobsRequest", {fields}), timeout=600)' for fields in lists)
    with attackers(server, 4, body):
        attacked = p99_of(calls)
    check_beside(quiet, attacked)
    api.close()
