"""An int8 and a ternary model give the same bits alone and beside other requests, whole and in pieces, on every
instruction set and thread count, and after a restart."""
import concurrent.futures
import hashlib
import json
import pathlib
import shutil
import struct
import threading

import pytest

from conftest import PAGE, Server

TEXTS = [PAGE, PAGE[40:300], "x", PAGE[100:] + PAGE, "boats", PAGE[7:90], PAGE * 2, "The lamp."]


def supported_isas():
    flags = pathlib.Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
    isas = {"plain"}
    if {"avx2", "fma"} <= set(flags):
        isas.add("avx2")
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= set(flags):
        isas.add("avx512")
    return isas


@pytest.fixture(params=["small-int8", "small-ternary"])
def model(request):
    return request.param


def score(server, text, model):
    """The SHA-256 of every row of logits (all bits, the whole vocabulary), and the logprobs."""
    got = server.json("score", model, "--text", text, "--digests")
    digests = got.get("logits_digests", [None])  # a single token has none
    assert len(digests) == len(got["token_ids"]) and all(len(digest) == 64 for digest in digests[1:])
    return digests, got["logprobs"]


def test_scores_are_the_same_bits_among_eight_requests(shared, model):
    alone = [score(shared, text, model) for text in TEXTS]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(lambda text: score(shared, text, model), TEXTS)) == alone


def test_generation_is_the_same_bits_among_eight_requests(shared, model):
    def generate(text):
        got = shared.json("generate", model, "--prompt", text, "--max-tokens", 500, "--logprobs", 1, "--ignore-eos")
        return got["token_ids"], got["logprobs"]
    alone = [generate(text) for text in TEXTS]
    stop, most = threading.Event(), [0]

    def watch():
        while not stop.is_set():
            most[0] = max(most[0], shared.json("server", "load")["requests_running"])
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        watching = pool.submit(watch)
        try:
            together = list(pool.map(generate, TEXTS * 2))
        finally:
            stop.set()
        watching.result()
    assert together == alone * 2
    assert most[0] >= 2, "the requests did not run together"


def test_decoding_gives_the_logprobs_of_scoring(shared, model):
    answer = shared.json("generate", model, "--prompt", PAGE, "--max-tokens", 24, "--logprobs", 1, "--ignore-eos")
    prompt = shared.json("tokenize", model, "--text", PAGE)["token_ids"]
    decoded = [entry["logprob"] if isinstance(entry, dict) else entry for entry in answer["logprobs"]]
    assert len(decoded) == 24
    ids = prompt + answer["token_ids"]  # not the text, which may encode to other tokens
    scored = shared.json("score", model, "--token-ids", ",".join(map(str, ids)))
    assert scored["token_ids"] == ids
    assert scored["logprobs"][len(prompt):] == decoded


@pytest.mark.hardware
@pytest.mark.parametrize("flags", [("--isa", "plain"), ("--isa", "avx2"), ("--isa", "avx512"), ("--threads", 1), ("--threads", 2),
                                   ("--prefill_chunk", 7), ()], ids=lambda flags: " ".join(map(str, flags)) or "restart")
def test_another_server_with_the_same_models_has_the_same_bits(shared, tmp_path, flags):
    if flags[:1] == ("--isa",) and flags[1] not in supported_isas():
        pytest.skip(f"this CPU has no {flags[1]}")
    models = ["small-int8", "small-ternary"]
    want = [score(shared, text, model) for model in models for text in TEXTS[:3]]
    # A state directory has one server: the other one gets a copy of the models.
    other = Server(tmp_path / "state", *flags)
    other.state.mkdir(parents=True)
    shutil.copytree(shared.state / "models", other.state / "models")
    other.start()
    try:
        assert [score(other, text, model) for model in models for text in TEXTS[:3]] == want
        for model in models:
            assert other.json("models", "verify", model)["equal"] is True
    finally:
        assert other.stop() == 0


@pytest.fixture
def spoilt(shared, tmp_path, model):
    """Runs verify on a copy of a model whose named file was changed by `change(bytearray)`."""
    def verify(file, change):
        other = Server(tmp_path / "state")
        shutil.copytree(shared.state / "models", other.state / "models")
        path = other.state / "models" / model / file
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)
        other.start()
        try:
            return other.run("--json", "models", "verify", model, check=False)
        finally:
            other.stop()
    return verify


def test_verify_accepts_an_unchanged_copy(spoilt):
    result = spoilt("record.bin", lambda data: None)
    assert result.returncode == 0 and json.loads(result.stdout)["equal"] is True


def test_verify_catches_a_scale_changed_by_one_ulp(spoilt):
    def change(data):
        header_size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + header_size])
        name = next(key for key in header if key.endswith("q_proj.weight_scale"))
        at = 8 + header_size + header[name]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<I", struct.unpack("<I", data[at:at + 4])[0] + 1)
    result = spoilt("model.safetensors", change)
    assert result.returncode != 0
    assert not (result.stdout and json.loads(result.stdout).get("equal"))


def test_verify_catches_one_token_id_changed_in_the_record(spoilt):
    def change(data):
        first_id = 8 + 4 + 64 + 4 + 4  # magic, device, digest, number of sequences, tokens of the first (server/model/record.h)
        token = struct.unpack("<i", data[first_id:first_id + 4])[0]
        data[first_id:first_id + 4] = struct.pack("<i", (token + 1) % 256)
        data[-64:] = hashlib.sha256(bytes(data[:-64])).hexdigest().encode()
    result = spoilt("record.bin", change)
    assert result.returncode != 0
    verdict = json.loads(result.stdout)
    assert verdict["equal"] is False and verdict["rows"] >= 1 and verdict["differing_rows"] >= 1
    first = verdict["first_difference"]
    assert first["row"] == 0 and first["recorded_digest"] != first["computed_digest"]
