"""Outputs that were constrained by the schemas of tests/golden/text/constraints, judged by the package jsonschema."""
import collections
import concurrent.futures
import json
import subprocess

import openai
import pytest

from conftest import BIN, ROOT, Server
from exact_schema import Schema
from test_openai import client_of

CORPUS = ROOT / "tests/golden/text/constraints"
CASES = {case["name"]: case for case in json.loads((CORPUS / "schemas.json").read_text())["cases"]}
REFUSED = json.loads((CORPUS / "refused.json").read_text())["cases"]
# Schemas of each kind. A random model ends most of their outputs; the others have texts or numbers without a limit.
SAMPLE = ["object-none-required", "property-names-escaped", "array-matrix", "tuple-optional-tail", "pattern-semver", "format-date-time",
         "number-price", "enum-thousand", "one-of-references", "pydantic-enums"]


def response_format(name, schema):
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


def ask(client, model, name, max_tokens):
    """One output for the schema: its text and why it ended."""
    question = f"Give one example of {name.replace('-', ' ')} in JSON."
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], response_format=response_format(name, CASES[name]["schema"]),
        max_completion_tokens=max_tokens, temperature=0.8, seed=len(name))
    return answer.choices[0].message.content, answer.choices[0].finish_reason


def judge(outputs):
    """Validates the finished ones of (name, text, finish reason); returns the number of finished outputs by name."""
    schemas, finished, wrong = {}, collections.Counter(), []
    for name, text, reason in outputs:
        assert reason in ("stop", "eos", "length"), (name, text, reason)
        if reason == "length":
            continue
        if name not in schemas:
            schemas[name] = Schema(CASES[name]["schema"])
        finished[name] += 1
        error = schemas[name].error(text)
        if error:
            wrong.append((name, text[:200], error))
    assert not wrong, f"{len(wrong)} outputs do not match their schemas: {wrong[:5]}"
    return finished


@pytest.fixture(scope="module")
def server(openai_server):
    return openai_server


def test_outputs_of_a_random_model_match_their_schemas(server):
    """The weights are random, so a free answer of this model is never JSON."""
    client = client_of(server)
    outputs = [(name, *ask(client, "small-int8", name, 800)) for name in SAMPLE]
    assert len(judge(outputs)) >= len(SAMPLE) // 2


@pytest.mark.parametrize("case", REFUSED, ids=[case["name"] for case in REFUSED])
def test_schema_that_cannot_be_enforced_is_refused_by_name(server, case):
    with pytest.raises(openai.BadRequestError) as raised:
        client_of(server).chat.completions.create(model="small", messages=[{"role": "user", "content": "?"}], max_completion_tokens=1,
                                                  response_format=response_format(case["name"], case["schema"]))
    error = raised.value
    assert error.param.startswith("response_format"), error.param
    assert case["keyword"] in error.message and case["path"] in error.message, error.message


def random_outputs(path, count):
    """`count` outputs for each schema by the program constrained_outputs, which draws logits at random."""
    subprocess.run([BIN / "constrained_outputs", "--schemas", CORPUS / "schemas.json", "--count", str(count), "--seed", "1", "--out", path],
                   check=True, timeout=3600)
    with open(path) as lines:
        outputs = [json.loads(line) for line in lines]
    assert len(outputs) == count * len(CASES)
    return [(output["schema"], output["output"], output["finish"]) for output in outputs]


# Some schemas allow texts without end, and random tokens seldom end them; every schema must still end some.
@pytest.mark.parametrize("count", [1, pytest.param(50, marks=pytest.mark.full)])
def test_outputs_of_random_logits_match_their_schemas(tmp_path, count):
    outputs = random_outputs(tmp_path / "outputs.jsonl", count)
    finished = judge(outputs)
    print(f"{sum(finished.values())} of {len(outputs)} outputs ended and match")
    if count > 1:  # random tokens do not find the "@" of an e-mail address
        assert set(CASES) - set(finished) <= {"format-email", "tool-email"}
    assert sum(finished.values()) >= 0.95 * len(outputs)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    from test_real_model import gguf_path  # skips without what --full installs
    server = Server(tmp_path_factory.mktemp("real") / "state", "--openai_address", "127.0.0.1:0").start()
    server.run("models", "import", gguf_path(), "--name", "f32", "--dtype", "f32")
    server.run("models", "convert", "f32", "--to", "int8", "--name", "int8")
    yield server
    server.stop()


@pytest.mark.full
def test_outputs_of_a_real_model_match_their_schemas(real):
    client = client_of(real, timeout=1200)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        outputs = list(threads.map(lambda name: (name, *ask(client, "int8", name, 2000)), CASES))
    finished = judge(outputs)
    print(f"{len(finished)} of {len(outputs)} outputs ended and match; cut: {[name for name, _, reason in outputs if reason == 'length']}")
    # A model this small often writes digits without end where a schema has no limit.
    assert len(finished) >= 0.7 * len(CASES)
