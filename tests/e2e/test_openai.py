"""OpenAI's own Python package, unmodified, against the listener of --openai_address, beside the gRPC API."""
import base64
import concurrent.futures
import http.client
import json
import socket
import ssl
import subprocess
import time

import grpc
import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import load_file

import pki
import small_model
from conftest import BIN, Server
from soon import soon
from test_security import new_token

PROMPT = "The keeper of the light"
CHAT = [{"role": "user", "content": "Who keeps the light?"}]


def client_of(server, **options):
    options = {"api_key": "unused", "max_retries": 0, "_strict_response_validation": True, **options}
    return openai.OpenAI(base_url=f"http://{server.openai}/v1", **options)


@pytest.fixture(scope="module")
def server(openai_server):
    return openai_server


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["small", "small-int8"]
    model = client.models.retrieve("small-int8")
    assert model.object == "model" and model.owned_by == "nibble" and abs(model.created - time.time()) < 600


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 5, "top_p": 0.8}])
def test_same_seed_gives_the_texts_of_the_grpc_api(server, client, sampling):
    flags = ["--temperature", sampling["temperature"], "--max-tokens", 20]
    if "seed" in sampling:
        flags += ["--seed", sampling["seed"], "--top-p", sampling["top_p"]]
    wanted = server.json("generate", "small-int8", "--prompt", PROMPT, *flags)["text"]
    assert client.completions.create(model="small-int8", prompt=PROMPT, max_tokens=20, **sampling).choices[0].text == wanted
    loose = client_of(server, _strict_response_validation=False)  # OpenAI's own stream of completions has finish_reason null
    stream = loose.completions.create(model="small-int8", prompt=PROMPT, max_tokens=20, stream=True, **sampling)
    assert "".join(chunk.choices[0].text for chunk in stream) == wanted
    ids = server.json("tokenize", "small-int8", "--text", PROMPT)["token_ids"]
    assert client.completions.create(model="small-int8", prompt=ids, max_tokens=20, **sampling).choices[0].text == wanted


def test_chat_stream_gives_the_text_of_the_whole_answer(client):
    request = {"model": "small-int8", "messages": CHAT, "max_completion_tokens": 12, "temperature": 0.8, "seed": 3, "n": 2}
    whole = client.chat.completions.create(**request)
    texts = ["", ""]
    roles, reasons, usage = [], {}, None
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        usage = usage or chunk.usage
        for choice in chunk.choices:
            roles += [choice.delta.role] if choice.delta.role else []
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert roles == ["assistant", "assistant"]
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage == whole.usage and usage.completion_tokens == 24


def test_batch_of_prompts_gives_each_prompt_its_own_answer(client):
    prompts = [f"{PROMPT} {i}" for i in range(20)]
    batch = client.completions.create(model="small-int8", prompt=prompts, max_tokens=6, temperature=0)
    assert [choice.index for choice in batch.choices] == list(range(20))
    alone = [client.completions.create(model="small-int8", prompt=prompt, max_tokens=6, temperature=0) for prompt in prompts]
    assert [choice.text for choice in batch.choices] == [answer.choices[0].text for answer in alone]
    assert batch.usage.total_tokens == sum(answer.usage.total_tokens for answer in alone)


def test_echoed_logprobs_are_the_scores_of_the_grpc_api(server, client):
    """lm-evaluation-harness asks like this, and takes a token for the greedy one if its logprob is the largest."""
    answer = client.completions.create(model="small-int8", prompt=PROMPT, max_tokens=1, echo=True, logprobs=1, temperature=0)
    logprobs = answer.choices[0].logprobs
    scores = server.json("score", "small-int8", "--text", PROMPT)["logprobs"]
    assert logprobs.token_logprobs[1:-1] == scores[1:]
    assert len(logprobs.tokens) == len(logprobs.top_logprobs) == answer.usage.prompt_tokens + 1
    assert answer.choices[0].text == "".join(logprobs.tokens)
    assert max(logprobs.top_logprobs[-1].values()) == logprobs.token_logprobs[-1]
    assert [PROMPT[offset] for offset in logprobs.text_offset[:-1]] == logprobs.tokens[:-1]
    scored = client.completions.create(model="small-int8", prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].logprobs.token_logprobs == logprobs.token_logprobs[:-1]
    assert scored.choices[0].text == PROMPT and scored.usage.completion_tokens == 0


def test_errors_are_those_of_the_package(client):
    def error(kind, **request):
        with pytest.raises(kind) as raised:
            client.completions.create(**{"model": "small-int8", "prompt": PROMPT, **request})
        return raised.value
    missing = error(openai.NotFoundError, model="nowhere")
    assert (missing.code, missing.param) == ("model_not_found", "model") and "nowhere" in missing.message
    long = error(openai.BadRequestError, prompt="x" * 2000)
    assert (long.code, long.param) == ("context_length_exceeded", "prompt")
    assert error(openai.BadRequestError, temperature=-1).param == "temperature"
    assert error(openai.BadRequestError, max_tokens=-1).param == "max_tokens"
    assert error(openai.BadRequestError, extra_body={"temprature": 1}).message.count("did you mean temperature?") == 1
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="small-int8", messages=CHAT, max_completion_tokens=0)
    assert raised.value.param == "max_completion_tokens"
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model="small-int8", input=["x", ""])
    assert raised.value.param == "input[1]"


def test_embeddings_are_the_states_that_the_logits_are_made_of(client, model_directory):
    """The head of the small model is its embedding: the last state times this matrix gives the logits."""
    def embed(text, **extra):
        return np.array(client.embeddings.create(model="small", input=text, encoding_format="float", extra_body=extra).data[0].embedding, dtype=np.float64)
    state = embed(PROMPT, pooling="last", normalize=False)
    logits = load_file(model_directory / "model.safetensors")["model.embed_tokens.weight"].astype(np.float64) @ state
    logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    answer = client.completions.create(model="small", prompt=PROMPT, max_tokens=1, temperature=0, logprobs=5)
    served = sorted(answer.choices[0].logprobs.top_logprobs[0].values(), reverse=True)
    assert np.allclose(np.sort(logprobs)[::-1][:5], served[:5], atol=1e-3)
    assert np.allclose(embed(PROMPT, pooling="last"), state / np.linalg.norm(state), atol=1e-6)
    assert abs(np.linalg.norm(embed(PROMPT)) - 1) < 1e-5


def test_embeddings_of_every_form_of_input_agree(server, client):
    ids = server.json("tokenize", "small-int8", "--text", PROMPT)["token_ids"]
    forms = [PROMPT, [PROMPT], ids, [ids]]
    loose = client_of(server, _strict_response_validation=False)  # the package asks for base64 but validates a list
    answers = [loose.embeddings.create(model="small-int8", input=form, encoding_format=encoding)
               for form in forms for encoding in ("float", "base64")]
    answers.append(loose.embeddings.create(model="small-int8", input=PROMPT))
    vectors = [answer.data[0].embedding for answer in answers]
    decoded = [vector if isinstance(vector, list) else np.frombuffer(base64.b64decode(vector), dtype="<f4").tolist() for vector in vectors]
    assert all(np.array_equal(np.float32(vector), np.float32(decoded[0])) for vector in decoded)
    assert answers[0].usage.prompt_tokens == len(ids)


def test_request_id_comes_back_and_is_in_the_log(server, client):
    answer = client.completions.with_raw_response.create(model="small-int8", prompt=PROMPT, max_tokens=1,
                                                         extra_headers={"x-request-id": "my-request.1", "Idempotency-Key": "k"})
    assert answer.headers["x-request-id"] == "my-request.1" and answer.parse()._request_id == "my-request.1"
    assert answer.parse().id == "cmpl-my-request.1"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("nowhere", extra_headers={"x-request-id": "my-request.2"})
    assert raised.value.request_id == "my-request.2"
    def calls():
        return {entry["request_id"]: entry for entry in server.logged("rpc")}
    soon(lambda: {"my-request.1", "my-request.2"} <= set(calls()), "both are in the log")
    logged = calls()
    assert logged["my-request.1"]["method"] == "nibble.v1.InferenceService/GenerateStream"
    assert logged["my-request.1"]["peer"].startswith("ipv4:127.0.0.1:"), "the client's address, not that of the inner channel"
    assert logged["my-request.2"]["code"] == "NOT_FOUND"


def running(server):
    return server.metrics()['nibble_requests_running{model="small-int8"}']


def test_client_that_goes_frees_its_slot(server, client):
    stream = client.chat.completions.create(model="small-int8", messages=CHAT, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    soon(lambda: running(server) == 1, "the request runs", 10)
    stream.close()
    soon(lambda: running(server) == 0, "the request has ended", 10)
    ended = [entry for entry in server.logged("rpc") if entry["code"] == "CANCELLED"]
    assert ended and ended[-1]["method"] == "nibble.v1.InferenceService/ChatStream"


def test_client_that_goes_before_a_whole_answer_frees_its_slot(server):
    connection = http.client.HTTPConnection(server.openai, timeout=30)
    connection.request("POST", "/v1/completions", json.dumps({"model": "small-int8", "prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True,
                                                              "n": 4}), {"Content-Type": "application/json"})
    soon(lambda: running(server) == 1, "the request runs", 10)
    connection.close()
    soon(lambda: running(server) == 0, "the request has ended", 10)


def raw(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(server.openai, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_malformed_requests_are_refused_in_the_form_of_errors(server):
    json_type = {"Content-Type": "application/json"}
    cases = [("POST", "/v1/completions", "{", json_type, 400), ("POST", "/v1/completions", "[]", json_type, 400),
             ("POST", "/v1/completions", "", json_type, 400), ("POST", "/v1/completions", "[" * 100, json_type, 400),
             ("POST", "/v1/completions", '{"model":"a","model":"b"}', json_type, 400), ("POST", "/v1/completions", "{}", {}, 415),
             ("GET", "/v1/completions", None, {}, 405), ("GET", "/v1/nothing", None, {}, 404), ("POST", "/", "{}", json_type, 404),
             ("POST", "/v1/completions", b'{"model":"\xff"}', json_type, 400), ("POST", "/tokenize", "{}", json_type, 400),
             ("POST", "/v1/completions", "x" * (5 << 20), json_type, 413)]
    for method, path, body, headers, wanted in cases:
        status, fields, answer = raw(server, method, path, body, headers)
        error = json.loads(answer)["error"]
        assert status == wanted and set(error) == {"message", "type", "param", "code"} and error["message"], (path, body)
        assert fields["x-should-retry"] == "false"


def test_tokens_are_made_and_read_as_by_the_grpc_api(server):
    json_type = {"Content-Type": "application/json"}
    _, _, answer = raw(server, "POST", "/tokenize", json.dumps({"model": "small", "prompt": PROMPT, "return_token_strs": True}), json_type)
    tokens = json.loads(answer)
    assert tokens["tokens"] == server.json("tokenize", "small", "--text", PROMPT)["token_ids"] and tokens["count"] == len(tokens["token_strs"])
    _, _, answer = raw(server, "POST", "/detokenize", json.dumps({"model": "small", "tokens": tokens["tokens"]}), json_type)
    assert json.loads(answer) == {"prompt": PROMPT}
    _, _, answer = raw(server, "POST", "/tokenize", json.dumps({"model": "small", "messages": CHAT}), json_type)
    assert json.loads(answer)["count"] > 10
    _, _, answer = raw(server, "GET", "/tokenizer_info?model=small", None, {})
    assert json.loads(answer) == {"bos_token": "<|begin|>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast",
                                  "chat_template": small_model.CHAT_TEMPLATE}
    for query, param, wanted in (("", "model", 400), ("?model=nowhere", "model", 404), ("?name=small", "name", 400)):
        status, _, answer = raw(server, "GET", f"/tokenizer_info{query}", None, {})
        assert (status, json.loads(answer)["error"]["param"]) == (wanted, param)


def test_web_pages_of_other_origins_are_not_answered_for(server, make_server):
    preflight = {"Origin": "https://app.example.org", "Access-Control-Request-Method": "POST"}
    status, fields, _ = raw(server, "OPTIONS", "/v1/completions", None, preflight)
    assert status == 405 and "Access-Control-Allow-Origin" not in fields
    open_server = make_server("--openai_address", "127.0.0.1:0", "--openai_cors_origins", "https://app.example.org")
    status, fields, _ = raw(open_server, "OPTIONS", "/v1/completions", None, preflight)
    assert status == 204 and fields["Access-Control-Allow-Origin"] == "https://app.example.org"
    _, fields, _ = raw(open_server, "GET", "/v1/models", None, {"Origin": "https://app.example.org"})
    assert fields["Access-Control-Allow-Origin"] == "https://app.example.org"
    _, fields, _ = raw(open_server, "GET", "/v1/models", None, {"Origin": "https://evil.example.org"})
    assert "Access-Control-Allow-Origin" not in fields


@pytest.mark.parametrize("host,wanted", [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("evil.example", 403),
                                         ("evil.example:8000", 403), ("127.0.0.1.evil.example", 403), ("", 403)])
def test_name_that_a_web_page_gave_to_this_address_is_refused(server, host, wanted):
    assert raw(server, "GET", "/v1/models", None, {"Host": host})[0] == wanted


def test_requests_are_counted_by_endpoint_from_zero(server, client):
    def count(route):
        return server.metrics()[f'nibble_openai_requests_total{{route="{route}"}}']
    before = {route: count(route) for route in ("/v1/models/{}", "unknown", "/detokenize")}
    client.models.retrieve("small")
    assert count("/v1/models/{}") == before["/v1/models/{}"] + 1
    raw(server, "GET", "/nothing/here")
    assert count("unknown") == before["unknown"] + 1 and count("/detokenize") == before["/detokenize"]


def test_answers_are_counted_by_endpoint_and_status(server, client):
    def count(route, status):
        return server.metrics().get(f'nibble_openai_answers_total{{route="{route}",status="{status}"}}', 0)
    completions, unknown = "/v1/completions", "unknown"
    before = {(route, status): count(route, status) for route, status in
              [(completions, 200), (completions, 400), (completions, 415), (completions, 404), (unknown, 404), (unknown, 405)]}
    client.completions.create(model="small", prompt=PROMPT, max_tokens=2)
    for _ in client_of(server, _strict_response_validation=False).completions.create(model="small", prompt=PROMPT, max_tokens=2,
                                                                                     stream=True):
        pass
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="small", prompt=PROMPT, max_tokens=-1)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nowhere", prompt=PROMPT)
    for method, path in (("POST", "/v1/completions"), ("GET", "/nothing/here"), ("DELETE", "/v1/completions")):
        raw(server, method, path)
    more = {key: count(*key) - value for key, value in before.items()}
    assert more == {(completions, 200): 2, (completions, 400): 1, (completions, 415): 1, (completions, 404): 1, (unknown, 404): 1,
                    (unknown, 405): 1}


def test_request_counts_once_as_one_of_openai(server, client):
    def now():
        metrics = server.metrics()
        return [metrics[f'nibble_client_requests_total{{protocol="{protocol}"}}'] for protocol in ("openai", "grpc", "kserve")]
    before = now()
    client.completions.create(model="small", prompt=[PROMPT] * 3, max_tokens=2)
    assert [b - a for a, b in zip(before, now())] == [1, 0, 0], "its calls of the gRPC API do not count"
    server.run("models", "list")
    assert now()[1] > before[1]


def test_full_queue_asks_for_a_later_retry(make_server, model_directory):
    server = make_server("--openai_address", "127.0.0.1:0", "--max_running_requests", 1, "--max_waiting_requests", 0)
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    client = client_of(server)
    stream = client.chat.completions.create(model="small", messages=CHAT, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    with pytest.raises(openai.RateLimitError) as raised:
        client.completions.create(model="small", prompt=PROMPT)
    assert raised.value.code == "rate_limit_exceeded" and raised.value.response.headers["x-should-retry"] == "true"
    assert 100 <= int(raised.value.response.headers["retry-after-ms"]) <= 60_000
    stream.close()


def test_draining_server_ends_its_streams_and_refuses_new_requests(make_server, model_directory):
    server = make_server("--openai_address", "127.0.0.1:0", "--drain_s", 1)
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    client = client_of(server)
    slow = {"model": "small", "messages": CHAT, "stream": True, "extra_body": {"ignore_eos": True}}
    stream = client.chat.completions.create(**slow)
    next(iter(stream))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(server.stop)
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            for _ in range(20):  # each stream of the model's whole context takes less than the drain
                for _ in stream:
                    pass
                stream = client.chat.completions.create(**slow)
        assert stopped.result() == 0


class Guarded:
    """A server with TLS and tokens, and a client for each role."""

    def __init__(self, folder, model_directory):
        self.folder = folder
        self.authority = pki.Authority(folder / "pki")
        self.served = pki.put_in_place(folder / "served", *self.authority.issue("server0", "DNS:localhost,IP:127.0.0.1"))
        self.tokens = {role: new_token(folder, role, role) for role in ("viewer", "infer", "admin")}
        self.server = Server(folder / "state", "--tls_cert", self.served[0], "--tls_key", self.served[1], "--token_file", folder / "tokens",
                             "--openai_address", "127.0.0.1:0")
        self.server.client_flags = ["--tls-ca", self.authority.certificate, "--token-file", self.tokens["admin"]]
        self.server.start()
        self.server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")

    def client(self, role, **options):
        key = self.tokens[role].read_text().strip() if role in self.tokens else role
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        return openai.OpenAI(base_url=f"https://{self.server.openai}/v1", api_key=key, max_retries=0, _strict_response_validation=True,
                             http_client=httpx.Client(verify=context), **options)

    def serial(self):
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        host, port = self.server.openai.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
            return secure.getpeercert()["serialNumber"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, model_directory):
    guarded = Guarded(tmp_path_factory.mktemp("guarded"), model_directory)
    yield guarded
    guarded.server.stop()


def test_tokens_are_api_keys_and_roles_decide(guarded):
    with pytest.raises(openai.AuthenticationError) as raised:
        guarded.client("wrong").models.list()
    assert raised.value.code == "invalid_api_key"
    assert [model.id for model in guarded.client("viewer").models.list()] == ["small"]
    with pytest.raises(openai.PermissionDeniedError) as raised:
        guarded.client("viewer").completions.create(model="small", prompt=PROMPT)
    assert "requires the role infer" in raised.value.message
    assert guarded.client("infer").completions.create(model="small", prompt=PROMPT, max_tokens=2).usage.completion_tokens == 2
    peers = [entry["peer"] for entry in guarded.server.logged("refused")]
    assert peers and all(peer.startswith("ipv4:127.0.0.1:") for peer in peers)
    principals = {entry["principal"] for entry in guarded.server.logged("rpc") if entry["method"].endswith("GenerateStream")}
    assert principals == {"infer"}


def test_body_of_a_caller_without_a_token_is_not_read(guarded):
    context = ssl.create_default_context(cafile=str(guarded.authority.certificate))
    connection = http.client.HTTPSConnection(guarded.server.openai, timeout=10, context=context)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "1000000")
    connection.endheaders()
    answer = connection.getresponse()  # before any byte of the body
    assert answer.status == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    connection.close()
    assert guarded.server.metrics()['nibble_openai_answers_total{route="/v1/completions",status="401"}'] >= 1


def test_new_certificate_is_served_and_loses_no_stream(guarded):
    before = guarded.serial()
    stream = guarded.client("infer").chat.completions.create(model="small", messages=CHAT, stream=True, n=8,
                                                             extra_body={"ignore_eos": True})
    chunks = iter(stream)
    next(chunks)
    pki.put_in_place(guarded.folder / "served", *guarded.authority.issue("server1", "DNS:localhost,IP:127.0.0.1"))
    soon(lambda: guarded.serial() != before, "new connections get the new certificate", 15)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["length"] * 8


def test_forged_identity_of_another_client_has_no_effect(guarded):
    """A remote client may send the metadata by which the listener names its client, but not their secret."""
    channel = grpc.secure_channel(guarded.server.grpc, grpc.ssl_channel_credentials(guarded.authority.certificate.read_bytes()))
    call = channel.unary_unary("/nibble.v1.ModelService/ListModels")
    with pytest.raises(grpc.RpcError) as raised:
        call(b"", timeout=10, metadata=[("x-nibble-forward-secret", "guess"), ("x-nibble-forward-name-bin", b"uri:spiffe://tests/client")])
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
    channel.close()


def test_public_address_requires_tls_and_tokens(tmp_path):
    result = subprocess.run([BIN / "nibbled", "--state_dir", tmp_path / "s", "--grpc_address", "127.0.0.1:0", "--http_address", "127.0.0.1:0",
                             "--openai_address", "0.0.0.0:0"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "--openai_address: 0.0.0.0 is not a loopback address" in result.stderr
    result = subprocess.run([BIN / "nibbled", "--state_dir", tmp_path / "s", "--openai_cors_origins", "example.org"], capture_output=True,
                            text=True, timeout=60)
    assert result.returncode == 1 and "--openai_cors_origins: requires --openai_address" in result.stderr
