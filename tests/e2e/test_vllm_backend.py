"""The cases of Triton's vllm_backend (ci/ of commit 8de0c14), which no package index has, written again for nibbled and
tritonclient. docs/clients.md has them as rows of a table, which the last test checks."""
import asyncio
import collections
import itertools
import json
import queue
import sys

import pytest

import small_model
from conftest import ROOT, Server
from soon import soon
from test_kserve import Stream, generated, inputs, text, triton, triton_aio

sys.path.insert(0, str(ROOT / "tests/peers"))
import table  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402 (test_kserve skips this module without tritonclient)

PROMPTS = ["The most dangerous animal is", "The capital of France is", "The future of AI is"]
SAMPLING = {"temperature": "0", "top_p": "1"}  # texts, and vLLM's default of 16 tokens
FOLLOWED = collections.Counter()  # number of its cases by file
NOT_APPLICABLE = {
    "vllm_backend_test": {"a file of vLLM's options that is wrong": 1},
    "check_health_test": {"a model without its engine: here it would be the server": 1},
    "vllm_metrics_test": {"Triton's metrics of vLLM": 4},
    "multi_lora_test": {"`lora_name`: an adapter is a model here": 2},
    "vllm_multi_gpu_test": {"several GPUs": 1},
}


def follows(file, cases=1):
    """The test does what `cases` cases of this file do."""
    FOLLOWED[file] += cases
    return lambda test: test


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm_backend")
    server = Server(folder / "state", "--kserve").start()
    server.run("models", "import", small_model.write_printing(folder / "model"), "--name", "small", "--dtype", "f32")
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture(scope="module")
def wanted(server):
    """The greedy text after each prompt."""
    return {prompt: generated(server, "small", prompt, 16, "--temperature", 0)["text"] for prompt in PROMPTS}


def answers(client, sampling=SAMPLING, parameters=None, **tensors):
    """Answers to all prompts, by prompt, from requests on a stream without `stream`."""
    stream = Stream(client)
    for prompt in PROMPTS:
        client.async_stream_infer("small", inputs(prompt, sampling, stream=False, **tensors), request_id=prompt, parameters=parameters,
                                  outputs=[triton.InferRequestedOutput("text_output")])
    results, errors = stream.answers(len(PROMPTS))
    client.stop_stream()
    assert not errors and all(len(results[prompt]) == 1 for prompt in PROMPTS)
    return {prompt: text(results[prompt][0]) for prompt in PROMPTS}


@follows("vllm_backend_test")  # without its models of other backends
def test_model_is_loaded_answers_and_is_unloaded(client, wanted):
    client.load_model("small")
    assert client.is_model_ready("small")
    client.unload_model("small")
    assert not client.is_model_ready("small")
    client.load_model("small")
    assert client.is_model_ready("small")
    whole = {prompt: prompt + wanted[prompt] for prompt in PROMPTS}
    assert answers(client) == whole
    assert answers(client, parameters=SAMPLING) == whole  # also with the tensor's values once more as parameters
    assert answers(client, sampling=None, parameters=SAMPLING) == whole
    client.unload_model("small")
    assert not client.is_model_ready("small")


@follows("vllm_backend_test")
def test_unknown_model_is_not_loaded(client):
    with pytest.raises(InferenceServerException):
        client.load_model("vllm_invalid_2")


@follows("vllm_backend_test", 3)
@pytest.mark.parametrize("exclude", [None, False, True])
def test_answer_begins_with_the_prompt_unless_it_is_excluded(client, wanted, exclude):
    tensors = {} if exclude is None else {"exclude_input_in_output": exclude}
    assert answers(client, **tensors) == {prompt: ("" if exclude else prompt) + wanted[prompt] for prompt in PROMPTS}


@follows("accuracy_test")
def test_texts_are_those_of_the_other_api(client, wanted):
    assert answers(client, sampling={"temperature": 0, "top_p": 1}) == {prompt: prompt + wanted[prompt] for prompt in PROMPTS}


def streamed(server, prompts, **tensors):
    """What a stream of the asynchronous client brings: (result, error)."""
    async def requests():
        for prompt in prompts:
            yield {"model_name": "small", "request_id": prompt, "inputs": inputs(prompt, SAMPLING, stream=True, **tensors),
                   "outputs": [triton.InferRequestedOutput("text_output")], "parameters": SAMPLING}

    async def run():
        async with triton_aio.InferenceServerClient(server.grpc) as client:
            return [answer async for answer in client.stream_infer(requests())]
    return asyncio.run(run())


@follows("enabled_stream_test", 2)
@pytest.mark.parametrize("count", [1, 2])
def test_stream_brings_only_new_text(server, wanted, count):
    got = collections.defaultdict(list)
    for result, error in streamed(server, PROMPTS[:count]):
        assert error is None
        got[result.get_response().id].append(text(result))
    assert {prompt: "".join(parts) for prompt, parts in got.items()} == {prompt: wanted[prompt] for prompt in PROMPTS[:count]}
    assert all(len(parts) == 16 for parts in got.values()), "one response for each token"


@follows("enabled_stream_test")
def test_stream_with_its_prompt_is_refused(server):
    (result, error), = streamed(server, PROMPTS[:1], exclude_input_in_output=False)
    assert isinstance(error, InferenceServerException) and "exclude_input_in_output" in error.message() and result is None


@follows("request_cancellation_test")
def test_cancelled_stream_ends_with_one_error(server, client):
    client.load_model("small")
    got = queue.Queue()
    client.start_stream(lambda result, error: got.put((result, error)))
    client.async_stream_infer("small", inputs(PROMPTS[0], {**SAMPLING, "max_tokens": "900", "n": "16"}, stream=False), request_id="1")
    soon(lambda: server.json("server", "load").get("requests_running", 0), "the request runs", 20)
    client.stop_stream(cancel_requests=True)
    result, error = got.get(timeout=20)
    assert result is None and error.status() == "StatusCode.CANCELLED" and got.empty()
    soon(lambda: not server.json("server", "load").get("requests_running", 0), "its slot is free", 10)


@follows("check_health_test")
def test_model_that_answers_stays_ready(client):
    client.load_model("small")
    for _ in range(3):
        assert client.is_model_ready("small")
        assert {model.name: model.state for model in client.get_model_repository_index().models} == {"small": "READY"}
        assert all(len(answer) > 20 for answer in answers(client).values())


OUTPUTS = ["finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"]


def check_outputs(results, sampling, stream, asked):
    """The outputs of one request: those that were asked for, with values that fit each other."""
    last_sum, whole = 0.0, ""
    for i, result in enumerate(results):
        for name in OUTPUTS:
            assert (result.as_numpy(name) is not None) == bool(asked[name]), name
        new = text(result)
        whole += new
        if asked["finish_reason"]:
            assert text(result, "finish_reason") == ("length" if i == len(results) - 1 else "None")
        if asked["cumulative_logprob"]:
            assert result.as_numpy("cumulative_logprob")[0] < last_sum
            last_sum = result.as_numpy("cumulative_logprob")[0]
        if asked["num_input_tokens"]:
            assert result.as_numpy("num_input_tokens") == len(PROMPTS[0]), "a token of this model is a byte"
        if asked["num_output_tokens"]:
            assert result.as_numpy("num_output_tokens") == (1 if stream else 16)
        if asked["logprobs"] and "logprobs" not in sampling:
            assert json.loads(text(result, "logprobs")) is None
        elif asked["logprobs"]:
            entries = json.loads(text(result, "logprobs"))
            assert len(entries) == (1 if stream else 16)
            best = ""
            for entry in entries:
                assert 1 <= len(entry) <= sampling["logprobs"] + 1
                best += next(token["decoded_token"] for token in entry.values() if token["rank"] == 1)
            assert new == ("" if stream else PROMPTS[0]) + best
    return whole


@follows("additional_outputs_test", 1458)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_answer_has_the_outputs_that_are_asked_for(client, wanted, stream, logprobs):
    sampling = SAMPLING if logprobs is None else {**SAMPLING, "logprobs": logprobs}
    asked = {str(i): dict(zip(OUTPUTS, values)) for i, values in enumerate(itertools.product([None, True, False], repeat=5))}
    got = Stream(client)
    for request_id, values in asked.items():
        got.ask("small", request_id, PROMPTS[0], sampling, stream=stream,
                **{f"return_{name}": value for name, value in values.items() if value is not None})
    results, errors = got.answers(len(asked))
    client.stop_stream()
    assert not errors
    for request_id, values in asked.items():
        whole = check_outputs(results[request_id], sampling, stream, values)
        assert whole == ("" if stream else PROMPTS[0]) + wanted[PROMPTS[0]]


@follows("accuracy_test")
@pytest.mark.parametrize("form", [dict, json.dumps])
def test_structured_outputs_constrain_the_answer(client, form):
    sampling = {"temperature": "1", "seed": "3", "max_tokens": "40", "structured_outputs": form({"choice": ["Positive", "Negative"]})}
    assert set(answers(client, sampling=sampling, exclude_input_in_output=True).values()) <= {"Positive", "Negative"}


@pytest.mark.parametrize("name", ["lora_name"])
def test_parameters_of_cases_that_do_not_apply_are_refused(client, name):
    with pytest.raises(InferenceServerException, match=name):
        client.infer("small", inputs(PROMPTS[0], {**SAMPLING, name: "{}"}))


def test_document_has_these_cases():
    files = [*FOLLOWED, *(file for file in NOT_APPLICABLE if file not in FOLLOWED)]
    rows = {file: table.Row(FOLLOWED[file], collections.Counter(NOT_APPLICABLE.get(file, {}))) for file in files}
    table.check("vllm_backend", rows)
