"""Embedding, head and norms that are trained with an adapter (modules_to_save): from a killed job to the served model, its
conversions, PEFT's files and back. test_adapter_options.py compares the losses with those of PEFT."""
import json
import os
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

import small_model
from conftest import PAGE, Server, trainers
from nf4 import read_bf16, to_bf16
from test_kill import wait_for_own_step

STEPS = 40
EVERYTHING = ["norm", "embed_tokens", "lm_head"]
# Name of a case -> (method, base, options of the method). A tied model has no head of its own.
CASES = {
    "lora": ("lora", "untied", {"modules_to_save": EVERYTHING}),
    "lora-tied": ("lora", "tied-bf16", {"modules_to_save": ["embed_tokens", "model.norm"]}),
    "lora-on-codes": ("lora", "untied-int8", {"modules_to_save": EVERYTHING}),
    "lora-on-weight-only": ("lora", "tied-weight-only", {"modules_to_save": ["embed_tokens", "input_layernorm"]}),
    "lora-beside-int8-head": ("lora", "int8-head", {"modules_to_save": ["norm"]}),
    "qlora": ("qlora", "untied-nf4", {"modules_to_save": EVERYTHING, "use_dora": True}),
    "qlora-tied": ("qlora", "tied", {"modules_to_save": ["embed_tokens"], "lora_plus_ratio": 4}),
    "merge-aware": ("qlora", "untied", {"modules_to_save": EVERYTHING, "merge_aware_int8": True}),
}
FAST = {"lora", "lora-on-codes", "qlora-tied"}  # others run with the mark full
EXACT = {"lora-on-codes", "lora-on-weight-only", "lora-beside-int8-head"}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory, text_file):
    path = tmp_path_factory.mktemp("saved")
    server = Server(path / "state", "--retry_backoff_scale", "0.01").start()
    server.run("models", "import", model_directory, "--name", "tied", "--dtype", "f32")
    server.run("models", "import", model_directory, "--name", "tied-bf16", "--dtype", "bf16")
    untied = small_model.write(path / "untied", tie_word_embeddings=False)
    server.run("models", "import", untied, "--name", "untied", "--dtype", "f32")
    for name, source, options in [
            ("untied-nf4", "untied", ["--to", "nf4"]), ("int8-head", "untied", ["--to", "int8"]),
            ("untied-int8", "untied", ["--to", "int8", "--head", "bf16"]),
            ("tied-weight-only", "tied", ["--to", "int8", "--head", "bf16", "--activations", "bf16"])]:
        server.run("models", "convert", source, "--name", name, *options)
    server.run("datasets", "upload", text_file, "--name", "page")
    yield server
    server.stop()


def create(server, case, output, steps=STEPS):
    method, base, options = CASES[case]
    spec = {"base_model": base, "train_dataset": "page", "eval_dataset": "page", "publish": {"output_model": output},
            method: {"r": 4, "alpha": 8, "seed": 3, **options}, "data": {"max_seq_len": 128}, "optim": {"lr": 3e-3},
            "run": {"max_steps": steps, "micro_batch": 1, "seed": 3, "save_every": 10, "eval_every": steps}}
    path = server.state.parent / f"{output}.json"
    path.write_text(json.dumps(spec))
    return json.loads(server.run("--json", "jobs", "create", "--spec", path).stdout)["id"]


def digest(server, model):
    return server.json("models", "get", model)["digest"]


def score(server, model):
    return sum(server.json("score", model, "--text", PAGE[:80])["logprobs"][1:])


def answer(server, model):
    return server.json("generate", model, "--prompt", PAGE[:20], "--max-tokens", 8, "--ignore-eos")["token_ids"]


@pytest.fixture(scope="module", params=[case if case in FAST else pytest.param(case, marks=pytest.mark.full) for case in CASES])
def trained(request, server):
    """Returns the case, a job that ran undisturbed, its events, and the events of the same job after its trainer was
    killed."""
    case = request.param
    job = create(server, case, case)
    events = server.lines("jobs", "watch", job)
    killed = create(server, case, f"{case}-killed")
    wait_for_own_step(server, killed, attempt=1, step=12)  # after the checkpoint of step 10
    for pid in trainers(server):
        os.kill(pid, signal.SIGKILL)
    return case, job, events, server.lines("jobs", "watch", killed)


def test_killed_job_resumes_to_the_same_weights(server, trained):
    case, _, _, after = trained
    resumed = [event.get("resumed_step", 0) for event in after if event["type"] == "state" and event["state"] == "RUNNING"]
    assert len(resumed) == 2 and resumed[1] >= 10
    assert digest(server, f"{case}-killed") == digest(server, case)


def test_served_model_is_the_trained_one(server, trained):
    """The served model of an exact case has the bits of training, and so has the int8 form of merge-aware. For the other
    cases, the test shows only that the served model predicts the page better than its base does."""
    case, _, events, _ = trained
    losses = {}
    for event in events:
        if event["type"] == "eval":
            losses.setdefault(event["subject"], []).append(event["eval_loss"])
    assert losses["trained"][-1] < losses["trained"][0]
    if case in EXACT | {"merge-aware"}:
        assert losses["int8"] == losses["trained"][-1:], "all bits are equal"
    assert score(server, case) > score(server, CASES[case][1]), "it was trained on this page"
    if case in EXACT:
        verdict = server.json("models", "verify", case)
        assert (verdict["equal"], verdict["recorded_by"]) == (True, "trainer") and verdict["rows"] > 0


def test_conversions_have_the_copies(server, trained):
    case = trained[0]
    copies = {name.removeprefix("base_model.model."): value
              for name, value in load_file(server.state / f"models/{case}/adapter_model.safetensors").items() if ".lora_" not in name}
    assert copies
    server.run("models", "convert", case, "--to", "bf16", "--name", f"{case}-bf16")
    merged = read_bf16(server.state / f"models/{case}-bf16/model.safetensors")
    for name, value in copies.items():
        assert np.array_equal(merged[name], to_bf16(value)), name
    server.run("models", "convert", case, "--to", "int8", "--name", f"{case}-int8")
    verdict = server.json("models", "verify", f"{case}-int8")
    assert verdict["equal"] is True
    if case not in EXACT:
        assert verdict["recorded_by"] == "trainer"
    assert answer(server, f"{case}-int8")


def test_checkpoint_and_export_are_the_same_model(server, trained):
    case, job, _, _ = trained
    peft = server.state.parent / f"{case}-peft"
    server.run("models", "export", case, "--format", "peft", "--out", peft)
    config = json.loads((peft / "adapter_config.json").read_text())
    assert config["modules_to_save"] == CASES[case][2]["modules_to_save"]
    tied = CASES[case][1].startswith("tied") and "embed_tokens" in config["modules_to_save"]
    assert config.get("ensure_weight_tying", False) is tied
    server.run("jobs", "publish", f"{job}/{STEPS}", "--name", f"{case}-checkpoint")
    server.run("models", "import", peft, "--name", f"{case}-again", "--base", CASES[case][1])
    for copy in ("checkpoint", "again"):
        assert digest(server, f"{case}-{copy}") == digest(server, case), copy
        assert answer(server, f"{case}-{copy}") == answer(server, case), copy


def test_warm_start_needs_the_same_modules(server, trained):
    case = trained[0]
    method, base, options = CASES[case]
    spec = {"base_model": base, "train_dataset": "page", "warm_start_from": case, "data": {"max_seq_len": 128},
            "run": {"max_steps": 1, "micro_batch": 1, "seed": 3}}
    path = server.state.parent / "warm.json"
    path.write_text(json.dumps({**spec, method: {"r": 4, "alpha": 8, **options, "modules_to_save": []}}))
    refused = server.run("jobs", "create", "--spec", path, check=False)
    assert refused.returncode != 0 and f"{method}.modules_to_save: is not set, wanted" in refused.stderr
    path.write_text(json.dumps({**spec, method: {"r": 4, "alpha": 8, **options}}))
    assert server.lines("jobs", "create", "--spec", path, "--watch")[-1]["state"] == "SUCCEEDED"


def test_copies_of_an_int8_head_are_refused_before_the_queue(server):
    jobs = server.json("jobs", "list")["jobs"]
    path = server.state.parent / "refused.json"
    path.write_text(json.dumps({"base_model": "int8-head", "train_dataset": "page", "lora": {"modules_to_save": ["lm_head"]}}))
    refused = server.run("jobs", "create", "--spec", path, check=False)
    assert refused.returncode != 0
    assert "lora.modules_to_save: has \"lm_head\", but the base has an int8 head, wanted a base with a float head" in refused.stderr
    assert server.json("jobs", "list")["jobs"] == jobs
