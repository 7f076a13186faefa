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

pytestmark = pytest.mark.full
CHATS = "".join(json.dumps({"messages": [{"role": "user", "content": f"Count to {n}."},
                                         {"role": "assistant", "content": "One, two, three."}]}) + "\n" for n in range(24)).encode()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A server with a model, and a proxy that replaces placeholders of the suites by ids of the server."""
    tmp_path = tmp_path_factory.mktemp("prepared")
    server = Server(tmp_path / "state", "--openai_address", "127.0.0.1:0").start()
    try:
        server.run("models", "import", small_model.write_printing(tmp_path / "small", max_position_embeddings=512), "--name", "small", "--dtype", "f32")
        client = client_of(server)
        file, *spare = [client.files.create(file=(f"{n}.jsonl", CHATS), purpose="fine-tune").id for n in range(16)]

        def create(**run):
            return client_of(server).fine_tuning.jobs.create(model="small", training_file=file, extra_body={
                "nibble": {"run": run, "data": {"max_seq_len": 128}}}).id
        done = create(max_steps=4, save_every=2)
        soon(lambda: client.fine_tuning.jobs.retrieve(done).status == "succeeded", f"{done} has succeeded", 120)
        # From here on no job ends: the trainer of the first one only waits, so the others stay in the queue.
        trainer = tmp_path / "waiting-trainer"
        trainer.write_text("#!/bin/sh\nexec sleep 3600\n")
        trainer.chmod(0o755)
        assert server.stop() == 0
        server.flags += ["--trainer", str(trainer)]
        client = client_of(server.start())  # its port is another one
        _, *queued = [create(max_steps=4) for _ in range(46)]
        soon(lambda: {client.fine_tuning.jobs.retrieve(job).nibble["state"] for job in queued} == {"QUEUED"}, "the jobs are queued", 60)
        paused = queued[30:]
        for job in paused:
            client.fine_tuning.jobs.pause(job)
        names = {**dict.fromkeys(openai_cases.MODELS + vllm_cases.MODELS, "small"), **dict.fromkeys(openai_cases.FILES, file),
                 openai_cases.JOB: done, vllm_cases.ADAPTER: client.fine_tuning.jobs.retrieve(done).fine_tuned_model}
        action = f"/v1/fine_tuning/jobs/({openai_cases.JOB})/"
        pools = {("DELETE", "/v1/files/(string)"): spare, ("POST", action + "cancel"): queued[:15], ("POST", action + "pause"): queued[15:30],
                 ("POST", action + "resume"): paused}
        with Proxy(server.openai, Ids(names, pools)) as proxy:
            yield proxy, server
    finally:
        server.stop()


def resource(case):
    """tests/api_resources/chat/test_completions.py::... -> chat.completions"""
    path = pathlib.PurePath(case.partition("::")[0].removeprefix("tests/api_resources/"))
    return ".".join([*path.parts[:-1], path.stem.removeprefix("test_")])


def test_openai_python(prepared, tmp_path):
    proxy, _ = prepared
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


def test_vllm(prepared, tmp_path):
    folder = suites.extract(vllm_cases.SUITE, tmp_path, "vllm")
    outcomes = suites.run(folder, [vllm_cases.COMPLETION, vllm_cases.CHAT], prepared[0])
    rows, wrong = suites.judge(outcomes, vllm_cases.RULES, lambda case: pathlib.PurePath(case.partition("::")[0]).stem)
    assert not wrong, "\n".join(wrong)
    table.check("vLLM", rows)


def test_llama_cpp(prepared, tmp_path):
    folder = suites.extract(llama_cpp_cases.SUITE, tmp_path, "llama_cpp") / llama_cpp_cases.FOLDER
    with Proxy(prepared[1].openai, Ids(dict.fromkeys(llama_cpp_cases.MODELS, "small"), default_model="small")) as proxy:
        outcomes = suites.run(folder, ["-m", "not slow", *llama_cpp_cases.FILES], proxy)
    rows, wrong = suites.judge(outcomes, llama_cpp_cases.RULES, lambda case: pathlib.PurePath(case.partition("::")[0]).stem)
    assert not wrong, "\n".join(wrong)
    table.check("llama.cpp", rows)
