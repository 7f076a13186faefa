"""Test suites of other projects, unmodified, against nibbled. docs/clients.md has their results as a table, which these
tests check. A case that passed must pass, and a case that is not applicable must fail for the reason in the table."""
import json
import pathlib
import sys

import pytest

import small_model
from conftest import ROOT, Server
from soon import soon
from test_openai import client_of

sys.path.insert(0, str(ROOT / "tests/peers"))
import llama_cpp_cases  # noqa: E402
import openai_cases  # noqa: E402
import suites  # noqa: E402
import table  # noqa: E402
import vllm_cases  # noqa: E402
from proxy import Ids, Proxy  # noqa: E402

CHATS = "".join(json.dumps({"messages": [{"role": "user", "content": f"Count to {n}."},
                                         {"role": "assistant", "content": "One, two, three."}]}) + "\n" for n in range(24)).encode()


def restart_with_waiting_trainer(server, folder):
    """From here on no job ends: the trainer of the first one only waits, so the others stay in the queue."""
    trainer = folder / "waiting-trainer"
    trainer.write_text("#!/bin/sh\nexec sleep 3600\n")
    trainer.chmod(0o755)
    assert server.stop() == 0
    server.flags += ["--trainer", str(trainer)]
    server.start()


def prepare(server, folder):
    """Gives the server a model, files and jobs, and returns which ids replace the placeholders of the suites."""
    model = small_model.write_printing(folder / "small", max_position_embeddings=4096)
    spare_models = [f"spare-{n}" for n in range(15)]
    for name in ["small", *spare_models]:
        server.run("models", "import", model, "--name", name, "--dtype", "f32")
    client = client_of(server)
    file, *spare = [client.files.create(file=(f"{n}.jsonl", CHATS), purpose="fine-tune").id for n in range(16)]
    job = {"model": "small", "training_file": file,
           "extra_body": {"nibble": {"run": {"max_steps": 4, "save_every": 2}, "data": {"max_seq_len": 128}}}}
    done = client.fine_tuning.jobs.create(**job).id
    soon(lambda: client.fine_tuning.jobs.retrieve(done).status == "succeeded", f"{done} has succeeded", 120)
    restart_with_waiting_trainer(server, folder)
    client = client_of(server)  # at another port
    jobs = client.fine_tuning.jobs
    _, *queued = [jobs.create(**job).id for _ in range(46)]
    soon(lambda: all(jobs.retrieve(one).nibble["state"] == "QUEUED" for one in queued), "the jobs are queued", 60)
    for one in queued[30:]:
        jobs.pause(one)
    kept, *deleted = [client.responses.create(model="small", input="Light", max_output_tokens=4).id for _ in range(41)]
    names = {**dict.fromkeys(openai_cases.MODELS + vllm_cases.MODELS, "small"), **dict.fromkeys(openai_cases.FILES, file),
             **dict.fromkeys(openai_cases.RESPONSES, kept), openai_cases.JOB: done,
             vllm_cases.ADAPTER: jobs.retrieve(done).fine_tuned_model}
    action = f"/v1/fine_tuning/jobs/({openai_cases.JOB})/"
    pools = {("DELETE", "/v1/files/(string)"): spare, ("DELETE", f"/v1/responses/({openai_cases.RESPONSE})"): deleted,
             ("DELETE", f"/v1/models/({openai_cases.DELETED_MODEL})"): spare_models,
             ("POST", action + "cancel"): queued[:15], ("POST", action + "pause"): queued[15:30],
             ("POST", action + "resume"): queued[30:]}
    return Ids(names, pools)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A server, and a proxy that replaces placeholders of the suites by ids of the server."""
    folder = tmp_path_factory.mktemp("prepared")
    server = Server(folder / "state", "--openai_address", "127.0.0.1:0").start()
    try:
        ids = prepare(server, folder)
        with Proxy(server.openai, ids) as proxy:
            yield proxy, server, ids
    finally:
        server.stop()


def resource(case):
    """tests/api_resources/chat/test_completions.py::... -> chat.completions"""
    path = pathlib.PurePath(case.partition("::")[0].removeprefix("tests/api_resources/"))
    return ".".join([*path.parts[:-1], path.stem.removeprefix("test_")])


@pytest.mark.full
def test_openai_python(prepared, tmp_path):
    proxy, _, _ = prepared
    folder = suites.extract(openai_cases.SUITE, tmp_path)
    variables = {"TEST_API_BASE_URL": proxy.url + "/v1"}
    options = ["-o", "addopts="]
    served = [f"tests/api_resources/{name}" for name in openai_cases.SERVED]
    outcomes = suites.run(folder, [*options, *served], proxy, variables=variables)
    rows, wrong = suites.judge(outcomes, openai_cases.RULES, resource)
    ignored = [f"--ignore={name}" for name in served]
    outcomes = suites.run(folder, [*options, *ignored, "tests/api_resources"], proxy, openai_cases.OTHERS, variables)
    others, wrong_others = suites.judge(outcomes, openai_cases.OTHER_RULES, lambda case: "all others")
    assert not wrong + wrong_others, "\n".join(wrong + wrong_others)
    table.check("openai-python", {**rows, **others})


@pytest.mark.full
def test_vllm(prepared, tmp_path):
    folder = suites.extract(vllm_cases.SUITE, tmp_path, "vllm")
    _, server, ids = prepared
    # With a seed, so that texts that must differ from each other do in each run.
    with Proxy(server.openai, Ids(ids.names, defaults={"seed": 7})) as proxy:
        outcomes = suites.run(folder, [vllm_cases.COMPLETION, vllm_cases.CHAT], proxy)
    rows, wrong = suites.judge(outcomes, vllm_cases.RULES, lambda case: pathlib.PurePath(case.partition("::")[0]).stem)
    assert not wrong, "\n".join(wrong)
    table.check("vLLM", rows)


@pytest.mark.full
def test_llama_cpp(prepared, tmp_path):
    folder = suites.extract(llama_cpp_cases.SUITE, tmp_path, "llama_cpp") / llama_cpp_cases.FOLDER
    with Proxy(prepared[1].openai, Ids(dict.fromkeys(llama_cpp_cases.MODELS, "small"), defaults={"model": "small"})) as proxy:
        outcomes = suites.run(folder, ["-m", "not slow", *llama_cpp_cases.FILES], proxy)
    rows, wrong = suites.judge(outcomes, llama_cpp_cases.RULES, lambda case: pathlib.PurePath(case.partition("::")[0]).stem)
    assert not wrong, "\n".join(wrong)
    table.check("llama.cpp", rows)


def outcome(result, message="", requests=1):
    return {"outcome": result, "message": message, "requests": requests}


def test_outcomes_are_judged_by_the_rules():
    rules = [suites.NotApplicable("test_n", "`n`", "n: is not")]
    rows, wrong = suites.judge({"a::test_1": outcome("passed"), "a::test_2": outcome("passed", requests=0), "b::test_n": outcome(
        "failed", "n: is not supported"), "b::test_n2": outcome("passed", requests=0)}, rules, lambda case: case[0])
    assert not wrong
    assert [row.text("suite", part) for part, row in rows.items()] == ["| suite | a | 1 | - |  |", "| suite | b | - | 1 | `n` (1) |"]
    for case, line, said in [("a::test_1", outcome("failed", "timeout"), "timeout"), ("b::test_n", outcome("passed"), "passes"),
                             ("b::test_n", outcome("failed", "timeout"), "has not failed for its reason"),
                             ("b::test_n", outcome("failed", "timeout", requests=0), "has not failed for its reason"),
                             ("a::test_1", outcome("skipped"), "skipped")]:
        _, wrong = suites.judge({"b::test_n0": outcome("failed", "n: is not supported"), case: line}, rules, lambda case: case[0])
        assert len(wrong) == 1 and said in wrong[0]
    assert suites.judge({"a::test_1": outcome("passed")}, rules, lambda case: case[0])[1] == ["no case: test_n"]


def test_proxy_replaces_only_placeholders():
    ids = Ids({"gpt-4o": "a/b", "file-1": "chats"}, {("DELETE", "/v1/files/(file-1)"): ["first", "second"]}, defaults={"model": "small"})
    assert ids.path("GET", "/v1/models/gpt-4o?x=gpt-4o") == "/v1/models/a%2Fb?x=gpt-4o"
    assert ids.path("GET", "/v1/files/file-1/content") == "/v1/files/chats/content"
    assert [ids.path("DELETE", "/v1/files/file-1") for _ in range(2)] == ["/v1/files/first", "/v1/files/second"]
    body = ids.body("application/json", b'{"model": "gpt-4o", "training_file": "file-1", "user": "gpt-4o"}')
    assert json.loads(body) == {"model": "a/b", "training_file": "chats", "user": "gpt-4o"}
    assert json.loads(ids.body("application/json", b'{"model": null}')) == {"model": "small"}
    for kind, content in [("application/json", b"{"), ("application/json", b"[1]"), ("multipart/form-data", b'{"model": "gpt-4o"}')]:
        assert ids.body(kind, content) == content
