"""Triton's own Python client, tritonclient.grpc and tritonclient.grpc.aio, unmodified, against nibbled --kserve, beside
the gRPC API."""
import asyncio
import json
import queue
import re
import struct
import subprocess
import sys
import threading
import time

import grpc
import pytest

from conftest import ROOT, Server, import_small
from soon import soon
from test_security import Secure

np = pytest.importorskip("numpy")
triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed: deploy/setup.sh --tests installs it")
import tritonclient.grpc.aio as triton_aio  # noqa: E402 (only if tritonclient is there)
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

PROMPT = "The keeper of the light"
GREEDY = {"temperature": 0, "ignore_eos": True}
SEEDED = {"temperature": 20, "top_p": 0.9, "seed": 5, "ignore_eos": True}  # hot, because the small model is very sure


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory):
    server = Server(tmp_path_factory.mktemp("kserve") / "state", "--kserve", "--reflection").start()
    import_small(server, model_directory)
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.grpc) as client:
        yield client


def tensor(name, value):
    kind = "BOOL" if isinstance(value, bool) else "BYTES"
    if not isinstance(value, bool):
        value = (value if isinstance(value, str) else json.dumps(value)).encode()
    made = triton.InferInput(name, [1], kind)
    made.set_data_from_numpy(np.array([value], dtype=bool if kind == "BOOL" else np.object_))
    return made


def inputs(prompt, sampling=None, **more):
    if sampling is not None:
        more["sampling_parameters"] = sampling
    return [tensor("text_input", prompt), *(tensor(name, value) for name, value in more.items())]


def text(result, name="text_output"):
    values = result.as_numpy(name)
    assert values is not None and values.shape == (1,), name
    return values[0].decode()


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


def ids(result):
    """Ids of the generated tokens: the first key of each entry of the logprobs."""
    return [int(next(iter(entry))) for entry in json.loads(text(result, "logprobs"))]


def generated(server, model, prompt, tokens, *flags):
    """The answer of nibble.v1."""
    return server.json("generate", model, "--prompt", prompt, "--max-tokens", tokens, "--ignore-eos", *flags)


class Stream:
    """An open stream, and what it brought for each request."""

    def __init__(self, client, **options):
        self.client, self.got = client, queue.Queue()
        client.start_stream(lambda result, error: self.got.put((result, error)), **options)

    def ask(self, model, request_id, prompt, sampling=None, empty=False, **more):
        self.client.async_stream_infer(model, inputs(prompt, sampling, **more), request_id=request_id, enable_empty_final_response=empty)

    def answers(self, final):
        """Results by id until `final` of them have ended, and errors."""
        results, errors, ended = {}, [], 0
        while ended < final:
            result, error = self.got.get(timeout=60)
            if error is not None:
                errors.append(str(error))
                ended += 1
                continue
            results.setdefault(result.get_response().id, []).append(result)
            ended += is_final(result)
        return results, errors


def test_server_and_models_are_described(server, client):
    assert client.is_server_live() and client.is_server_ready()
    metadata = client.get_server_metadata()
    assert (metadata.name, metadata.version) == ("triton", server.json("server", "info")["version"])
    model = client.get_model_metadata("small")
    assert model.name == "small" and list(model.versions) == ["1"]
    assert {(i.name, i.datatype, tuple(i.shape)) for i in model.inputs} >= {("text_input", "BYTES", (1,)), ("stream", "BOOL", (1,))}
    assert {o.name for o in model.outputs} == {"text_output", "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens",
                                               "num_output_tokens"}
    config = client.get_model_config("small", as_json=True)["config"]
    assert config["model_transaction_policy"] == {"decoupled": True} and config.get("max_batch_size", 0) == 0
    assert next(i for i in config["input"] if i["name"] == "stream")["optional"]


def test_models_are_loaded_unloaded_and_listed(client):
    client.unload_model("small")
    assert not client.is_model_ready("small")
    assert not client.is_model_ready("no-such-model")
    client.load_model("small")
    assert client.is_model_ready("small") and client.is_model_ready("small", "1")
    index = {m["name"]: m for m in client.get_model_repository_index(as_json=True)["models"]}
    assert index["small"]["state"] == "READY" and set(index) == {"small", "small-int8"}
    client.unload_model("small")
    assert {m.name: m.state for m in client.get_model_repository_index().models}["small"] == "UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="there is no model named") as error:
        client.load_model("no-such-model")
    assert error.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_same_seed_gives_the_text_and_the_tokens_of_nibble(server, client, sampling):
    flags = ["--temperature", sampling["temperature"]]
    if "seed" in sampling:
        flags += ["--seed", sampling["seed"], "--top-p", sampling["top_p"]]
    wanted = generated(server, "small-int8", PROMPT, 20, *flags)
    assert sampling is GREEDY or len(set(wanted["token_ids"])) > 5
    sampling = {**sampling, "max_tokens": 20, "logprobs": 1}
    result = client.infer("small-int8", inputs(PROMPT, sampling, return_logprobs=True, return_finish_reason=True,
                                               return_num_input_tokens=True, return_num_output_tokens=True), request_id="one")
    assert text(result) == PROMPT + wanted["text"] and result.get_response().id == "one"
    assert ids(result) == wanted["token_ids"]
    assert text(result, "finish_reason") == "length"
    assert result.as_numpy("num_output_tokens").tolist() == [20]
    assert result.as_numpy("num_input_tokens").tolist() == [len(server.json("tokenize", "small-int8", "--text", PROMPT)["token_ids"])]
    stream = Stream(client)
    stream.ask("small-int8", "s", PROMPT, sampling, stream=True, return_logprobs=True, return_finish_reason=True)
    client.stop_stream()
    results, errors = stream.answers(1)
    assert not errors
    assert "".join(text(r) for r in results["s"]) == wanted["text"]
    assert [i for r in results["s"] for i in ids(r)] == wanted["token_ids"]
    assert [text(r, "finish_reason") for r in results["s"]] == ["None"] * (len(results["s"]) - 1) + ["length"]


def test_parameters_of_the_request_and_texts_are_sampling_parameters(server, client):
    wanted = generated(server, "small", PROMPT, 9, "--temperature", 0)["text"]
    result = client.infer("small", inputs(PROMPT, exclude_input_in_output=True),
                          parameters={"temperature": "0", "max_tokens": "9", "ignore_eos": True})
    assert text(result) == wanted


def test_requested_outputs_are_the_only_ones(client):
    result = client.infer("small", inputs(PROMPT, {"max_tokens": 2}, return_finish_reason=True),
                          outputs=[triton.InferRequestedOutput("finish_reason")])
    assert [o.name for o in result.get_response().outputs] == ["finish_reason"]
    assert result.as_numpy("text_output") is None


def test_stream_answers_many_requests_at_a_time(server, client):
    prompts = {str(i): PROMPT[:5 + i] for i in range(12)}
    wanted = {i: generated(server, "small", prompt, 24, "--temperature", 0)["text"] for i, prompt in prompts.items()}
    stream = Stream(client)
    for i, prompt in prompts.items():
        stream.ask("small", i, prompt, {**GREEDY, "max_tokens": 24}, empty=int(i) % 2 == 0, stream=int(i) % 3 != 0,
                   **({} if int(i) % 3 else {"exclude_input_in_output": True}))
    stream.ask("small", "wrong", PROMPT, {"temperature": -1}, stream=True)
    results, errors = stream.answers(13)
    client.stop_stream()
    assert errors == ["FIELD_VIOLATION: sampling_parameters.temperature: is -1, wanted 0 to 100"]
    for i in prompts:
        with_tensors = [r for r in results[i] if r.get_response().outputs]
        assert "".join(text(r) for r in with_tensors) == wanted[i]
        assert [is_final(r) for r in results[i]] == [False] * (len(results[i]) - 1) + [True]
        assert (len(results[i]) > len(with_tensors)) == (int(i) % 2 == 0), "the empty response comes only on request"
        assert int(i) % 3 == 0 or len(with_tensors) > 2, "a stream has several responses"


def test_asynchronous_client(server):
    wanted = generated(server, "small", PROMPT, 12, "--temperature", 0)["text"]

    async def run():
        async with triton_aio.InferenceServerClient(server.grpc) as client:
            assert await client.is_server_live() and await client.is_server_ready()
            await client.load_model("small")
            assert await client.is_model_ready("small")
            assert (await client.get_server_metadata()).name == "triton"
            assert (await client.get_model_metadata("small")).name == "small"
            assert (await client.get_model_config("small")).config.model_transaction_policy.decoupled
            assert "small" in [m.name for m in (await client.get_model_repository_index()).models]
            results = await asyncio.gather(*(client.infer("small", inputs(PROMPT, {**GREEDY, "max_tokens": 12})) for _ in range(8)))
            assert [text(r) for r in results] == [PROMPT + wanted] * 8
            assert (await client.get_inference_statistics("small")).model_stats[0].inference_count >= 8

            async def requests():
                for i in range(3):
                    yield {"model_name": "small", "request_id": str(i),
                           "inputs": inputs(PROMPT, {**GREEDY, "max_tokens": 12}, stream=True)}
            texts = {}
            async for result, error in client.stream_infer(requests()):
                assert error is None
                texts[result.get_response().id] = texts.get(result.get_response().id, "") + text(result)
            assert texts == {str(i): wanted for i in range(3)}

            async def one():
                yield {"model_name": "small", "inputs": inputs(PROMPT, {**GREEDY, "max_tokens": 900}, stream=True)}
            stream = client.stream_infer(one())
            await stream.__anext__()
            assert stream.cancel()
            with pytest.raises((asyncio.CancelledError, grpc.RpcError)):
                while True:
                    await stream.__anext__()
            with pytest.raises(InferenceServerException, match="there is no model"):
                await client.infer("no-such-model", inputs(PROMPT))
    asyncio.run(run())
    soon(lambda: server.json("server", "load").get("requests_running", 0) == 0, "the cancelled request has ended", 10)


def idle(server):
    load = server.json("server", "load")
    return load.get("requests_running", 0) == 0 and load.get("requests_waiting", 0) == 0 and int(load.get("kv_blocks_used", 0)) == 0


def test_cancelled_requests_free_their_slots(server, client):
    soon(lambda: idle(server), "idle before", 10)
    before = int(server.json("server", "load").get("generated_tokens_total", 0))
    long = {**GREEDY, "max_tokens": 900, "n": 16}
    ended = queue.Queue()
    calls = [client.async_infer("small", inputs(PROMPT, long), lambda result, error: ended.put((result, error))) for _ in range(6)]
    soon(lambda: server.json("server", "load").get("requests_running", 0) > 0, "a request runs", 20)
    for call in calls:
        call.cancel()
    ends = [ended.get(timeout=20) for _ in calls]
    assert any(result is None and error.status() == "StatusCode.CANCELLED" for result, error in ends)
    soon(lambda: idle(server), "async_infer's slots are free", 10)

    stream = Stream(client)
    for i in range(6):
        stream.ask("small", str(i), PROMPT, long, stream=True)
    assert stream.got.get(timeout=20)[1] is None
    client.stop_stream(cancel_requests=True)
    soon(lambda: idle(server), "the stream's slots are free", 10)

    with pytest.raises(InferenceServerException) as late:
        client.infer("small", inputs(PROMPT, long), client_timeout=0.05)
    assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    soon(lambda: idle(server), "the late request's slot is free", 10)
    assert int(server.json("server", "load")["generated_tokens_total"]) - before < 13 * 16 * 900


def test_statistics_count_what_was_answered(server, client):
    def now():
        stats = client.get_inference_statistics("small").model_stats[0]
        return stats.inference_count, stats.inference_stats.success.count, stats.inference_stats.compute_infer.ns
    before = now()
    for _ in range(3):
        client.infer("small", inputs(PROMPT, {"max_tokens": 4}))
    with pytest.raises(InferenceServerException):
        client.infer("small", inputs(PROMPT, {"max_tokens": 0}))
    after = now()
    assert after[0] - before[0] == 3 and after[1] - before[1] == 3 and after[2] > before[2]
    stats = client.get_inference_statistics("small").model_stats[0]
    assert abs(stats.last_inference / 1000 - time.time()) < 60
    assert stats.execution_count == 0 and stats.inference_stats.compute_input.ns == 0


def test_request_counts_once_as_one_of_kserve(server, client):
    def now():
        metrics = server.metrics()
        return [metrics[f'nibble_client_requests_total{{protocol="{protocol}"}}'] for protocol in ("kserve", "grpc", "openai")]
    before = now()
    client.infer("small", inputs(PROMPT, {"max_tokens": 2}))
    stream = Stream(client)
    for i in range(2):
        stream.ask("small", str(i), PROMPT, {"max_tokens": 2}, stream=True)
    assert stream.answers(2)[1] == []
    client.stop_stream()
    assert [b - a for a, b in zip(before, now())] == [3, 0, 0], "one call, and two requests in a stream"


def test_methods_of_shared_memory_traces_and_logs_are_unimplemented(client):
    calls = [client.get_system_shared_memory_status, client.get_cuda_shared_memory_status, client.get_trace_settings,
             client.get_log_settings, client.unregister_system_shared_memory, client.unregister_cuda_shared_memory,
             lambda: client.register_system_shared_memory("r", "/k", 8),
             lambda: client.register_cuda_shared_memory("r", b"YWJj", 0, 8)]
    for call in calls:
        with pytest.raises(InferenceServerException) as error:
            call()
        assert error.value.status() == "StatusCode.UNIMPLEMENTED"
    shared = tensor("text_input", "x")
    shared.set_shared_memory("region", 8)
    with pytest.raises(InferenceServerException, match="text_input: is in shared memory"):
        client.infer("small", [shared])


def message(*tensors, **fields):
    """A request as bytes on the wire: (name, type, shape, raw contents)."""
    request = service_pb2.ModelInferRequest(model_name="small", **fields)
    for name, datatype, shape, raw in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    return request


HOSTILE = {
    "wrong_shape": ([("text_input", "BYTES", [2], b"\0\0\0\0")], "text_input: has the shape [2], wanted [1]"),
    "huge_shape": ([("text_input", "BYTES", [2**62, 2**62], b"\0\0\0\0")], "text_input: has the shape"),
    "negative_shape": ([("text_input", "BYTES", [-1], b"\0\0\0\0")], "text_input: has the shape [-1]"),
    "truncated_length": ([("text_input", "BYTES", [1], b"\1\0")], "text_input: has 2 bytes of raw contents"),
    "truncated_element": ([("text_input", "BYTES", [1], struct.pack("<I", 9) + b"short")], "length is 9, followed by 5 bytes"),
    "huge_length": ([("text_input", "BYTES", [1], b"\xff\xff\xff\xff" + b"x")], "length is 4294967295, followed by 1 bytes"),
    "not_utf8": ([("text_input", "BYTES", [1], struct.pack("<I", 1) + b"\xff")], "text_input: has an element that is not UTF-8"),
    "wrong_type": ([("text_input", "FP32", [1], b"\0\0\0\0")], 'text_input: has the datatype "FP32", wanted BYTES'),
    "wrong_bool": ([("text_input", "BYTES", [1], b"\0\0\0\0"), ("return_logprobs", "BOOL", [1], b"\7")], "return_logprobs: has the byte 7"),
    "no_tensor": ([], "text_input: is missing"),
    "twice": ([("text_input", "BYTES", [1], b"\0\0\0\0")] * 2, "text_input: is in the request twice"),
    "unknown": ([("image", "BYTES", [1], b"\0\0\0\0")], "image: is not an input tensor"),
    "deep_json": ([("text_input", "BYTES", [1], b"\1\0\0\0x"),
                   ("sampling_parameters", "BYTES", [1], struct.pack("<I", 5000) + b"[" * 5000)], "sampling_parameters: is not JSON"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tensors_are_refused_by_name(server, case):
    tensors, said = HOSTILE[case]
    request = message(*tensors)
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            stub.ModelInfer(request, timeout=20)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and said in error.value.details()
        # On a stream, the next request is answered all the same.
        good = message(("text_input", "BYTES", [1], struct.pack("<I", 1) + b"x"), id="good")
        answers = list(stub.ModelStreamInfer(iter([request, good]), timeout=20))
    errors = [a.error_message for a in answers if a.error_message]
    assert len(errors) == 1 and said in errors[0]
    assert [a.infer_response.id for a in answers if not a.error_message] == ["good"]


def test_client_that_does_not_read_is_not_buffered_without_bound(make_server, model_directory):
    server = make_server("--kserve", "--slow_reader_s", 1, "--stream_buffer", 128)
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("models", "load", "small")
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]
    stop = threading.Event()

    def requests():
        sampling = json.dumps({"temperature": 0, "ignore_eos": True, "max_tokens": 900, "n": 8, "logprobs": 20}).encode()
        for i in range(40):
            yield message(("text_input", "BYTES", [1], struct.pack("<I", 1) + b"x"), ("stream", "BOOL", [1], b"\1"),
                          ("return_logprobs", "BOOL", [1], b"\1"),
                          ("sampling_parameters", "BYTES", [1], struct.pack("<I", len(sampling)) + sampling), id=str(i))
        stop.wait(60)

    def rss():
        return int(server.json("server", "load")["rss_bytes"])
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        before = rss()
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests())
        key = 'grpc_server_handled_total{grpc_code="RESOURCE_EXHAUSTED",grpc_method="ModelStreamInfer",' \
              'grpc_service="inference.GRPCInferenceService",grpc_type="bidi_stream"}'
        soon(lambda: server.metrics().get(key) == 1, "the stream of the slow client has ended", 60)
        soon(lambda: idle(server), "its slots are free", 10)
        assert rss() - before < 200 << 20
        stop.set()
        call.cancel()


def test_token_and_certificate_of_the_client_count(tmp_path, model_directory):
    (tmp_path / "tokens").write_text(json.dumps({"name": "web", "role": "infer", "san": "uri:spiffe://tests/client"}) + "\n")
    guarded = Secure(tmp_path, "--kserve")
    try:
        guarded.server.client_flags = guarded.flags("train")
        guarded.server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
        certificate, key = guarded.client
        url = guarded.server.grpc.replace("127.0.0.1", "localhost")
        with triton.InferenceServerClient(url, ssl=True, root_certificates=str(guarded.ca.certificate),
                                          private_key=str(key), certificate_chain=str(certificate)) as client:
            assert text(client.infer("small", inputs(PROMPT, {"max_tokens": 2}))).startswith(PROMPT), "the role of the certificate"
            with pytest.raises(InferenceServerException) as error:
                client.unload_model("small")
            assert error.value.status() == "StatusCode.PERMISSION_DENIED"
            headers = {"authorization": "Bearer " + guarded.tokens["viewer"].read_text().strip()}
            with pytest.raises(InferenceServerException) as error:
                client.infer("small", inputs(PROMPT, {"max_tokens": 2}), headers=headers)
            assert error.value.status() == "StatusCode.PERMISSION_DENIED", "a token replaces the certificate"
            client.unload_model("small", headers={"authorization": "Bearer " + guarded.tokens["train"].read_text().strip()})
        inner = [e for e in guarded.server.logged("rpc") if e["method"] == "nibble.v1.InferenceService/Generate"]
        assert inner and all(e["principal"] == "web" and e["peer"].startswith("ipv4:127.0.0.1:") for e in inner)
    finally:
        guarded.server.stop()


def test_example_of_the_document_runs(server):
    document = (ROOT / "docs/clients.md").read_text()
    part = document[document.index("## KServe V2 and Triton clients"):]
    code = re.search(r"```python\n(.*?)```", part, re.DOTALL).group(1)
    assert "127.0.0.1:50051" in code and "tuned-int8" in code
    code = code.replace("127.0.0.1:50051", server.grpc).replace("tuned-int8", "small-int8")
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    wanted = server.json("generate", "small-int8", "--prompt", PROMPT, "--max-tokens", 32, "--temperature", 0)["text"]
    assert (printed.stdout, printed.stderr, printed.returncode) == (wanted, "", 0)


def test_without_the_flag_the_service_is_absent(make_server):
    server = make_server()
    with triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException) as error:
            client.is_server_live()
        assert error.value.status() == "StatusCode.UNIMPLEMENTED"
