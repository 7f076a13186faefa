"""Attacks by one client on the listener of OpenAI's API (docs/faults.md, C1 to C4, C10): the p99 of well-behaved clients
of HTTP and gRPC without and with them."""
import contextlib
import os
import time
import urllib.request

import pytest

import large_state
from attacks import CALLS, check_beside, connections, http_callers, p99_of
from conftest import Server, import_small
from footprint import disk_bytes
from http_api import HttpApi, expect, keep_response, upload
from soon import soon
from test_message_limits import Growth, resident
from test_security import new_token
from wire import Api, message

pytestmark = pytest.mark.full

MIB = 1 << 20
OPENAI = ("--openai_address", "127.0.0.1:0")
ROLES = {"flood": "train", "quiet": "train", "boss": "operator", "admin": "admin"}
# check_beside()'s slack for attacks that make the server compute: on two cores, other calls then wait for each other.
COMPUTES = 10


@pytest.fixture
def server(make_server, model_directory):
    server = make_server(*OPENAI)
    import_small(server, model_directory)
    return server


@pytest.fixture
def with_tokens(tmp_path, model_directory):
    """A server with the principals of ROLES."""
    files = {name: new_token(tmp_path, name, role) for name, role in ROLES.items()}
    server = Server(tmp_path / "state", "--token_file", tmp_path / "tokens", "--max_upload_bytes_per_principal", 8 * MIB, *OPENAI)
    server.client_flags = ["--token-file", files["admin"]]
    server.start()
    import_small(server, model_directory)
    server.tokens = {name: file.read_text().strip() for name, file in files.items()}
    yield server
    server.stop()


def on_new_connection(server, act, *token):
    with contextlib.closing(HttpApi(server.openai, *token)) as http:
        return act(http)


def tokenize(http):
    return expect(http.post("/tokenize", model="small-int8", prompt="the keeper"))


def well_behaved(server, *token):
    """Calls by HTTP and gRPC, each with a short answer. They have loaded the model."""
    http, api = HttpApi(server.openai, *token), Api(server.grpc, *token)
    generate = message("GenerateRequest", model="small-int8", text="a", stopping=message("Stopping", max_tokens=4, ignore_eos=True))
    calls = {
        "GET /v1/models": lambda: expect(http.get("/v1/models")),
        "POST /tokenize": lambda: tokenize(http),
        "POST /v1/completions": lambda: expect(http.post("/v1/completions", model="small-int8", prompt="a", max_tokens=4)),
        "ListModels": lambda: api.call("ModelService", "ListModels"),
        "Generate": lambda: api.call("InferenceService", "Generate", generate),
        "/livez": lambda: urllib.request.urlopen(f"http://{server.http}/livez", timeout=5).close(),
    }
    for call in calls.values():
        call()
    return calls


def test_C1_lists_of_one_row_over_http_hold_up_no_other_call(make_server, model_directory, text_file):
    server = make_server("--max_jobs_per_principal", 0, "--max_queued_jobs", 1000, *OPENAI)
    large_state.prepare(server, model_directory, text_file)
    server.run("models", "convert", "small", "--to", "int8", "--name", "small-int8")
    job = large_state.template(server)
    database = large_state.open_database(server)
    large_state.add_final(database, job, 1)
    large_state.add_queue(database, job, 998)
    large_state.add_steps(database, "id = 'final-00000001'", 10_000)
    database.close()
    server.start()
    lists = ["/v1/fine_tuning/jobs?limit=1", "/v1/fine_tuning/jobs?limit=1&metadata[none]=none", "/v1/models", "/v1/files?limit=1",
             "/v1/fine_tuning/jobs/final-00000001/events?limit=1", f"/v1/fine_tuning/jobs/{job}/checkpoints?limit=1"]
    http = HttpApi(server.openai)
    rows = {path: expect(http.get(path)) for path in lists}
    assert [len(rows[path]["data"]) for path in lists] == [1, 0, 2, 1, 1, 0]
    assert rows[lists[0]]["data"][0]["id"] == "queued-00000998" and rows[lists[4]]["data"][0]["data"]["step"] == 10_000
    calls = {"GET /v1/fine_tuning/jobs/ID": lambda: expect(http.get("/v1/fine_tuning/jobs/queued-00000500")), **well_behaved(server)}
    quiet = p99_of(calls)
    with http_callers(server, 4, f"for path in {lists}: assert api.get(path)[0] == 200"):
        attacked = p99_of(calls)
    check_beside(quiet, attacked)


# Each answer refuses the request: the model takes 1024 tokens.
REFUSED = """for path, fields in (("/v1/completions", {{"prompt": {large}}}), ("/v1/embeddings", {{"input": {large}}}), *{more}):
            status, answer = api.post(path, model="small-int8", **fields)
            assert status in (400, 429, 503), (path, status, str(answer)[:300])"""
TEXT = "'the keeper of the light ' * 160_000"  # 4 MB
IDS = "[1] * 1_300_000"  # 3.9 MB of JSON
CHATS = f"""(("/tokenize", {{"prompt": {TEXT}}}), ("/v1/responses", {{"input": {TEXT}}}),
            ("/v1/chat/completions", {{"messages": [{{"role": "user", "content": {TEXT}}}]}}))"""


@pytest.mark.parametrize("large, more", [(TEXT, CHATS), (IDS, ())], ids=["text", "ids"])
def test_C2_large_prompts_over_http_cost_little_and_hold_up_no_other_call(server, large, more):
    calls = well_behaved(server)
    quiet = p99_of(calls)
    growth = Growth(server)
    with http_callers(server, 4, REFUSED.format(large=large, more=more)):
        attacked = p99_of(calls)
    print(f"peak memory: {growth.peak() / MIB:.0f} MiB above the quiet server")
    check_beside(quiet, attacked, slack=COMPUTES)
    assert growth.peak() < 256 * MIB
    soon(lambda: resident(server) - growth.before <= 64 * MIB, lambda: f"{(resident(server) - growth.before) / MIB:.0f} MiB are freed")


@pytest.mark.parametrize("kind, count", [("drip", 200), ("silent", 500), ("flood", 50), ("claim", 40), ("hoard", 40), ("endless", 40),
                                         ("upload", 40)])
def test_C3_misbehaving_connections_hold_up_no_other_call(server, kind, count):
    # A new connection, as the server might prefer connections that exist. The body follows the header in a second write.
    calls = {**well_behaved(server),
             "POST /tokenize, new connection": lambda: on_new_connection(server, tokenize)}
    uploads = {"POST /v1/files, new connection": lambda: on_new_connection(server, upload)}
    quiet, quiet_uploads = p99_of(calls), p99_of(uploads)
    growth = Growth(server)
    with connections(server.openai, kind, count, *(["/v1/models"] if kind == "drip" else [])):
        time.sleep(2)  # most attackers have begun
        attacked, attacked_uploads = p99_of(calls), p99_of(uploads)
    print(f"peak memory: {growth.peak() / MIB:.0f} MiB above the quiet server")
    check_beside(quiet, attacked)
    check_beside(quiet_uploads, attacked_uploads, slack=10)  # the disk's time varies by as much
    assert growth.peak() < 256 * MIB


def test_C3_answers_that_no_client_reads_take_bounded_memory(server):
    calls = {**well_behaved(server), "POST /tokenize, new connection": lambda: on_new_connection(server, tokenize)}
    path = on_new_connection(server, keep_response)
    quiet = p99_of(calls)
    growth = Growth(server)
    with connections(server.openai, "deaf", 2000, path):  # 500 MB of answers
        time.sleep(10)
        attacked = p99_of(calls)
    print(f"peak memory: {growth.peak() / MIB:.0f} MiB above the quiet server")
    check_beside(quiet, attacked, slack=COMPUTES)
    assert growth.peak() < 256 * MIB


FLOOD = """for _ in api.events("/v1/chat/completions", model="small-int8", messages=[{{"role": "user", "content": "a"}}], max_tokens=900,
                ignore_eos=True, n=2, priority={priority}): pass"""
REFUSALS = """try:
            {flood}
        except AssertionError as error:
            assert b"rate_limit_exceeded" in error.args[0], error"""


def chat(http):
    """Returns the number of tokens of a streamed answer."""
    events = list(http.events("/v1/chat/completions", model="small-int8", messages=[{"role": "user", "content": "a"}], max_tokens=8,
                              ignore_eos=True, stream_options={"include_usage": True}))
    return events[-1]["usage"]["completion_tokens"]


@contextlib.contextmanager
def flood(server, principal, priority):
    body = REFUSALS.format(flood=FLOOD.format(priority=priority))
    with http_callers(server, 40, body, server.tokens[principal]):
        soon(lambda: server.metrics()['nibble_requests_waiting{model="small-int8"}'] >= 10, "the queue fills")
        yield


def test_C4_streams_of_one_key_hold_up_no_other(with_tokens):
    server, token = with_tokens, with_tokens.tokens["quiet"]
    http = HttpApi(server.openai, token)
    refused = http.post("/v1/completions", model="small-int8", prompt="a", priority=100)
    assert expect(refused, 403)["error"]["code"] == "role"
    calls = {"a chat as a stream": lambda: chat(http), **well_behaved(server, token)}
    assert chat(http) == 8
    quiet = p99_of(calls)
    with flood(server, "flood", 0):
        attacked = p99_of(calls)
    check_beside(quiet, attacked, slack=COMPUTES)
    # As test_turns.py: a principal that may set priorities holds up the others for ten seconds, not forever.
    with flood(server, "boss", 100):
        began = time.monotonic()
        assert chat(http) == 8
        took = time.monotonic() - began
    print(f"beside a flood of priority 100: {took:.1f} s")
    assert took < 60


# A form of 10 GB; forms that are left after 5 MB of their file, with and without a length.
CUTS = """for length, sent in ((10**10, 100), (10**8, 5_000_000), (None, 5_000_000)):
            try:
                api.begin("/v1/files", FORM, form(ROW * 130_000)[:sent], length)
            except OSError: pass  # refused before all is sent
            api.close()"""


def test_C10_forms_that_never_end_hold_up_no_other_upload(with_tokens):
    server, token = with_tokens, with_tokens.tokens["quiet"]
    http = HttpApi(server.openai, token)
    calls = {"POST /v1/files": lambda: upload(http), **well_behaved(server, token)}
    quiet = p99_of(calls)
    growth, most = Growth(server), 0
    with (connections(server.openai, "upload", 40, "/v1/files", server.tokens["flood"]),
          http_callers(server, 4, CUTS, server.tokens["flood"])):
        attacked = p99_of(calls)
        for _ in range(100):
            most = max(most, disk_bytes(server.state / "uploads"))
            time.sleep(0.05)
    print(f"peak memory: {growth.peak() / MIB:.0f} MiB above the quiet server; unfinished uploads: at most {most / MIB:.0f} MiB")
    check_beside(quiet, attacked, slack=COMPUTES)
    assert growth.peak() < 256 * MIB and 0 < most <= 9 * MIB, "8 MiB of one principal, and a file of the other"
    soon(lambda: not os.listdir(server.state / "uploads"), "unfinished uploads are deleted")
    assert len(expect(http.get("/v1/files?limit=10000"))["data"]) == 2 * CALLS, "the files of the two measurements"


def test_C4_kept_responses_of_one_key_take_half_and_hold_up_no_other(with_tokens):
    server, token = with_tokens, with_tokens.tokens["quiet"]
    http = HttpApi(server.openai, token)
    kept = keep_response(http)
    calls = {"GET /v1/responses/ID": lambda: expect(http.get(kept)), **well_behaved(server, token)}
    quiet = p99_of(calls)
    stored = "nibble_openai_stored_response_bytes"
    with http_callers(server, 4, "keep_response(api)", server.tokens["flood"]):
        soon(lambda: server.metrics()[stored] > 30 * MIB, "the half of one principal is used up")
        attacked = p99_of(calls)
        held = server.metrics()[stored]
    print(f"kept responses: {held / MIB:.1f} MiB")
    check_beside(quiet, attacked, slack=COMPUTES)
    assert held < 33 * MIB, "half of 64 MiB, and one response of another principal"


# Each constraint is new, so that the server compiles it.
CONSTRAINTS = """import random
        word = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=8))
        names = [word + str(i) for i in range(1000)]
        schemas = [{"type": "object", "properties": {name: {"type": "string", "pattern": "^(a|b|ab){1,200}$"} for name in names}},
                   {"enum": names * 9}, {"type": "array", "minItems": 500, "maxItems": 5000, "items": {"type": "string", "maxLength": 1000}}]
        fields = [{"response_format": {"type": "json_schema", "json_schema": {"name": word, "schema": schema}}} for schema in schemas]
        fields += [{"guided_regex": "(%s|(a{1,300}b?){1,300}){1,300}" % word}, {"guided_regex": "%s.*a.{1000}" % word},
                   {"guided_grammar": 'start: "%s"? start start | /[a-z]*/' % word}]
        for one in fields:
            status, answer = api.post("/v1/chat/completions", model="small-int8", messages=[{"role": "user", "content": "a"}], max_tokens=100,
                                      seed=1, **one)
            assert status in (200, 400, 429), (status, answer)"""


def test_C4_costly_constraints_of_one_key_hold_up_no_other(with_tokens):
    server, token = with_tokens, with_tokens.tokens["quiet"]
    http = HttpApi(server.openai, token)
    calls = {"a chat as a stream": lambda: chat(http), **well_behaved(server, token)}
    quiet = p99_of(calls)
    growth = Growth(server)
    with http_callers(server, 4, CONSTRAINTS, server.tokens["flood"]):
        attacked = p99_of(calls)
    print(f"peak memory: {growth.peak() / MIB:.0f} MiB above the quiet server")
    check_beside(quiet, attacked, slack=COMPUTES)
    assert growth.peak() < 512 * MIB
