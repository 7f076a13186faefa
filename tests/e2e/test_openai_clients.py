"""Clients of OpenAI's API, unmodified and in their pinned versions, run the examples of docs/clients.md."""
import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest

import environments
import test_openai_tools
from conftest import ROOT, Server, import_small
from test_openai import CHAT, client_of

HERMES = test_openai_tools.FORMATS["hermes"]
DOCUMENT = ROOT / "docs/clients.md"
CLIENTS = ROOT / "build/deps/clients"  # environments of the clients, kept from run to run
PACKAGES = {"openai1": ["openai==1.109.1"], "openai3": ["openai==3.54.0"], "langchain": ["langchain-openai==1.7.0"],
            "litellm": ["litellm==1.109.0"], "lm_eval": ["lm_eval[api]==0.4.13", "transformers==5.24.0"],
            "instructor": ["instructor==1.17.0", "openai==2.54.0"]}


def environment(name):
    """Python of a virtual environment with the pinned packages."""
    return environments.programs(CLIENTS / name, PACKAGES[name]) / "python"


def example(heading, server):
    """The first code block below a heading of the document, for this server and its model."""
    text = DOCUMENT.read_text()
    block = re.search(r"```\w+\n(.*?)```", text[text.index(f"### {heading}\n"):], re.DOTALL).group(1)
    assert "http://127.0.0.1:8000/v1" in block and "tuned-int8" in block
    return block.replace("127.0.0.1:8000", server.openai).replace("tuned-int8", "small-int8")


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory):
    server = Server(tmp_path_factory.mktemp("clients") / "state", "--openai_address", "127.0.0.1:0").start()
    import_small(server, model_directory)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def wanted(server):
    """The answer that every example must print."""
    answer = client_of(server).chat.completions.create(model="small-int8", messages=CHAT, temperature=0, max_completion_tokens=32)
    return answer.choices[0].message.content


def printed(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_example_with_curl(server, wanted):
    answer = json.loads(printed(["bash", "-euc", example("curl", server)]))
    assert answer["choices"][0]["message"]["content"] == wanted


def test_example_with_openai(server, wanted):
    assert printed([sys.executable, "-c", example("OpenAI for Python", server)]) == wanted + "\n"


FLOWS = """
import openai
from openai import OpenAI
client = OpenAI(base_url="http://ADDRESS/v1", api_key="unused", max_retries=0, _strict_response_validation=True)
request = dict(model="small-int8", messages=[{"role": "user", "content": "Who keeps the light?"}], temperature=0, max_tokens=32)
assert [model.id for model in client.models.list()] == ["small", "small-int8"]
assert client.models.retrieve("small").id == "small"
whole = client.chat.completions.create(**request, logprobs=True, top_logprobs=2)
assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
assert client.completions.create(model="small-int8", prompt=["a", "b"], max_tokens=2, logprobs=1, echo=True).usage.completion_tokens == 4
try:
    client.completions.create(model="nowhere", prompt="a")
    raise SystemExit("no error")
except openai.NotFoundError as error:
    assert error.code == "model_not_found"
ask = dict(model="small-int8", temperature=0, max_output_tokens=8, include=["message.output_text.logprobs"], top_logprobs=2)
first = client.responses.create(**ask, input="Who keeps the light?", instructions="Be brief.", metadata={"a": "b"})
events = list(client.responses.create(**ask, input="Who keeps the light?", instructions="Be brief.", stream=True))
assert [event.sequence_number for event in events] == list(range(len(events)))
assert events[-1].response.output_text == first.output_text and len(first.output[0].content[0].logprobs) == 8
assert client.responses.retrieve(first.id) == first
second = client.responses.create(**ask, input="And why?", previous_response_id=first.id)
assert [item.role for item in client.responses.input_items.list(second.id, limit=1, order="asc")] == ["user", "assistant", "user"]
client.responses.delete(first.id)
for call, kind, code in ((lambda: client.responses.retrieve(first.id), openai.NotFoundError, "response_not_found"),
                         (lambda: client.responses.cancel(second.id), openai.BadRequestError, "invalid_value"),
                         (lambda: client.responses.create(**ask, input="a", previous_response_id=first.id), openai.BadRequestError,
                          "previous_response_not_found")):
    try:
        call()
        raise SystemExit("no error")
    except kind as error:
        assert error.code == code
print(whole.choices[0].message.content)
"""


@pytest.mark.full
@pytest.mark.parametrize("name", ["openai1", "openai3"])
def test_other_versions_of_openai(server, wanted, name):
    assert printed([environment(name), "-c", FLOWS.replace("ADDRESS", server.openai)]) == wanted + "\n"


@pytest.mark.full
@pytest.mark.parametrize("name", ["openai1", "openai3"])
def test_every_call_with_other_versions_of_openai(name):
    packages = printed([environment(name), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    found_first = os.environ | {"PYTHONPATH": packages}
    assert f"openai=={printed([sys.executable, '-c', 'import openai; print(openai.__version__)'], env=found_first).strip()}" in PACKAGES[name]
    files = [f"tests/e2e/test_openai{part}.py" for part in ("", "_fine_tuning", "_tools", "_responses")]
    result = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "not full", "-p", "no:cacheprovider", *files], cwd=ROOT,
                            env=found_first, text=True, capture_output=True, timeout=900)
    assert result.returncode == 0, result.stdout
    assert int(re.search(r"(\d+) passed", result.stdout)[1]) > 130, result.stdout


def npm(name, packages):
    """A folder in which programs find these packages."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder, done = CLIENTS / name, CLIENTS / f"{name}.installed"
    if not done.exists() or done.read_text() != "\n".join(packages):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, *packages], check=True, timeout=300)
        done.write_text("\n".join(packages))
    return folder


def node(folder, program):
    (folder / "example.mjs").write_text(program)
    return printed(["node", folder / "example.mjs"])


@pytest.mark.full
def test_example_with_javascript(server, wanted):
    assert node(npm("npm", ["openai@7.57.0"]), example("OpenAI for JavaScript", server)) == wanted + "\n"


AI_SDK = """
import assert from "node:assert/strict";
import { APICallError, embedMany, streamText } from "ai";
const counting = createOpenAICompatible({ name: "nibble", baseURL: "http://ADDRESS/v1", includeUsage: true });
const chat = { model: counting.chatModel("small-int8"), temperature: 0, maxOutputTokens: 32, maxRetries: 0,
  prompt: "Who keeps the light?" };
const stream = streamText(chat);
let text = "";
for await (const part of stream.textStream) text += part;
assert.deepEqual([text, await stream.finishReason, await stream.usage], [answer.text, answer.finishReason, answer.usage]);
assert.equal(answer.usage.outputTokens, 32);
const completion = await generateText({ ...chat, model: provider.completionModel("small-int8"), maxOutputTokens: 5 });
assert.equal(completion.usage.outputTokens, 5);
const turns = await generateText({ ...chat, prompt: undefined, system: "Be brief.", seed: 3, topP: 0.9, frequencyPenalty: 0.1,
  presencePenalty: 0.1, stopSequences: ["zz"], messages: [{ role: "user", content: "a" }, { role: "assistant", content: "b" },
  { role: "user", content: [{ type: "text", text: "c" }] }] });
assert.deepEqual([turns.usage.outputTokens, turns.warnings], [32, []]);
const { embeddings } = await embedMany({ model: provider.embeddingModel("small"), values: ["a", "b"], maxRetries: 0 });
assert.deepEqual(embeddings.map((vector) => vector.length), [64, 64]);
await assert.rejects(generateText({ ...chat, model: provider.chatModel("nowhere") }), (error) =>
  APICallError.isInstance(error) && error.statusCode === 404 && !error.isRetryable && error.message.includes("nowhere"));
"""


@pytest.mark.full
@pytest.mark.parametrize("name, packages", [("ai2", ["@ai-sdk/openai-compatible@2.0.92", "ai@6.0.326", "zod@4.6.7"]),
                                            ("ai3", ["@ai-sdk/openai-compatible@3.0.92", "ai@7.0.173", "zod@4.6.7"])])
def test_example_with_ai_sdk(server, wanted, name, packages):
    program = example("AI SDK", server) + AI_SDK.replace("ADDRESS", server.openai)
    assert node(npm(name, packages), program) == wanted + "\n"


LANGCHAIN = """
import asyncio
from langchain_openai import OpenAI
assert "".join(chunk.content for chunk in model.stream("Who keeps the light?")) == model.invoke("Who keeps the light?").content
assert [answer.content for answer in model.batch(["a", "b"])] == [model.invoke(text).content for text in ("a", "b")]
assert asyncio.run(model.ainvoke("a")).content == model.invoke("a").content
text = OpenAI(base_url=str(model.openai_api_base), api_key="unused", model="small-int8", temperature=0, max_tokens=5)
assert "".join(text.stream("a")) == text.invoke("a") and text.batch(["a", "b"])[0] == text.invoke("a")
"""


@pytest.mark.full
def test_example_with_langchain(server, wanted):
    assert printed([environment("langchain"), "-c", example("LangChain", server) + LANGCHAIN]) == wanted + "\n"


LITELLM = """
request = dict(api_base="http://ADDRESS/v1", api_key="unused", temperature=0, max_tokens=32,
               messages=[{"role": "user", "content": "Who keeps the light?"}])
for prefix in ("openai/", "hosted_vllm/"):
    stream = litellm.completion(model=prefix + "small-int8", stream=True, **request)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer.choices[0].message.content
text = litellm.text_completion(model="text-completion-openai/small-int8", prompt="a", api_base="http://ADDRESS/v1", api_key="unused",
                               max_tokens=5, temperature=0)
assert len(text.choices[0].text) == 5
"""


@pytest.mark.full
def test_example_with_litellm(server, wanted):
    program = example("LiteLLM", server) + LITELLM.replace("ADDRESS", server.openai)
    environment_variables = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # no attempt to reach the network
    assert printed([environment("litellm"), "-c", program], env=environment_variables) == wanted + "\n"


INSTRUCTOR = """
import asyncio, json, sys
where = dict(base_url="http://ADDRESS/v1", api_key="unused", max_retries=0)
request = dict(model="small-int8", temperature=0, max_tokens=32, max_retries=0,
               messages=[{"role": "user", "content": "Who keeps the light?"}])
light = client.chat.completions.create(response_model=Light, **request).model_dump()
assert list(client.chat.completions.create_partial(response_model=Light, **request))[-1].model_dump() == light
later = instructor.from_openai(openai.AsyncOpenAI(**where), mode=instructor.Mode.JSON_SCHEMA)
assert asyncio.run(later.chat.completions.create(response_model=Light, **request)).model_dump() == light
class weather(pydantic.BaseModel):
    city: str
tools = instructor.from_openai(openai.OpenAI(**where), mode=instructor.Mode.TOOLS)
request |= {**json.loads(sys.argv[1]), "model": "hermes", "max_tokens": 60}
print(tools.chat.completions.create(response_model=weather, **request).city)
"""


@pytest.mark.full
def test_example_with_instructor(server, tmp_path):
    server.run("models", "import", test_openai_tools.write(tmp_path / "hermes", HERMES), "--name", "hermes", "--dtype", "f32")
    program = example("Instructor", server) + INSTRUCTOR.replace("ADDRESS", server.openai)
    try:
        keeper, city = printed([environment("instructor"), "-c", program, json.dumps(test_openai_tools.drawing(HERMES))]).splitlines()
        assert keeper in ("a woman", "a man", "a machine")
        assert city == "is", "Instructor demands a call, so of the pieces that the biases draw only this one fits"
    finally:
        server.run("models", "unload", "hermes")
        server.run("models", "delete", "hermes")


def wordnet_rows(count, seed=7):
    """Multiple choice: a definition of WordNet, and its word among three others."""
    glosses = []
    for line in open("/usr/share/wordnet/data.noun", encoding="latin-1"):
        if not line.startswith("  "):
            word, _, gloss = line.split()[4], *line.strip().partition(" | ")[1:]
            glosses.append((word.replace("_", " "), gloss.split(";")[0].strip('" ')))
    chosen = random.Random(seed).sample(glosses, count * 4)
    rows = []
    for i in range(count):
        four = chosen[4 * i:4 * i + 4]
        rows.append({"question": f"{four[i % 4][1]}: ", "choices": [word for word, _ in four], "answer": i % 4})
    return rows


TASK = """
task: wordnet_local
dataset_path: json
dataset_kwargs:
  data_files: {{test: {rows}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


@pytest.mark.full
def test_lm_eval_gives_the_accuracy_of_scores(server, tmp_path, model_directory):
    rows = wordnet_rows(200)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl"))
    command = example("lm-evaluation-harness", server).replace("DIRECTORY", str(model_directory)).replace("TASK", "wordnet_local")
    command = f"{environment('lm_eval').parent}/{command.strip()} --include_path {tmp_path} --output_path {tmp_path}/out"
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OPENAI_API_KEY": "unused"}
    printed(["bash", "-euc", command], cwd=tmp_path, env=variables)
    results = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())

    def score(row, choice):
        context = len(server.json("tokenize", "small-int8", "--text", row["question"])["token_ids"])
        return sum(server.json("score", "small-int8", "--text", row["question"] + choice)["logprobs"][context:])
    right = 0
    for row in rows:
        scores = [score(row, choice) for choice in row["choices"]]
        right += scores.index(max(scores)) == row["answer"]
    assert results["results"]["wordnet_local"]["acc,none"] == right / len(rows)
