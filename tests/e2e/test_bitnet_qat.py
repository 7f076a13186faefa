"""BitNet QAT: train, convert once, verify, serve; from a model's weights and from random ones."""
import json
import re
import subprocess
import sys

import pytest

import small_model
from conftest import ROOT, Server
from test_kill import wait_for_step
from soon import soon

SEQ = 96
TEXT = ("The keeper of the light walked down to the harbour every morning before the tide turned. He counted the boats, wrote "
        "the number in his book, and climbed back up the hill to wind the clockwork of the lamp. Seven gulls watched him go. "
        "By noon the fog had come in from the west, and the bell on the rocks began to speak.")


# The first page of "On the Origin of Species" (1859).
PAGE = ("When on board H.M.S. 'Beagle,' as naturalist, I was much struck with certain facts in the distribution of the inhabitants of "
        "South America, and in the geological relations of the present to the past inhabitants of that continent. These facts seemed to "
        "me to throw some light on the origin of species--that mystery of mysteries, as it has been called by one of our greatest "
        "philosophers. On my return home, it occurred to me, in 1837, that something might perhaps be made out on this question by "
        "patiently accumulating and reflecting on all sorts of facts which could possibly have any bearing on it. After five years' work "
        "I allowed myself to speculate on the subject, and drew up some short notes; these I enlarged in 1844 into a sketch of the "
        "conclusions, which then seemed to me probable: from that period to the present day I have steadily pursued the same object. I "
        "hope that I may be excused for entering on these personal details, as I give them to show that I have not been hasty in coming "
        "to a decision.")


def create(server, path, method, **parts):
    """Creates a job with --spec; returns the events of its watch."""
    spec = {"base_model": "small", "bitnet_qat": method, "optim": {"lr": 5e-3, "schedule": "LR_SCHEDULE_CONSTANT", "warmup_steps": 0}}
    for key, value in parts.items():
        if isinstance(value, dict) and key in spec:
            spec[key].update(value)
        else:
            spec[key] = value
    path.write_text(json.dumps(spec))
    return server.lines("jobs", "create", "--spec", path, "--watch", timeout=600)


@pytest.fixture(scope="module")
def trained(shared, tmp_path_factory):
    events = shared.lines("jobs", "create", "--method", "bitnet_qat", "--base", "small", "--dataset", "page", "--eval-dataset", "page",
                          "--output", "masters", "--max-steps", 12, "--micro-batch", 2, "--seq-len", SEQ, "--lr", "5e-3", "--seed", 3,
                          "--save-every", 6, "--eval-every", 6, "--watch")
    shared.run("models", "convert", "masters", "--to", "ternary", "--name", "ternary")
    return shared, events


def test_losses_fall_and_the_ternary_loss_equals_the_trained_one(trained):
    server, events = trained
    steps = [event for event in events if event.get("type") == "step"]
    assert len(steps) == 12 and steps[-1]["loss"] < steps[0]["loss"]
    losses = {event["subject"]: event["eval_loss"] for event in events if event.get("type") == "eval"}  # the last of each
    first = next(event["eval_loss"] for event in events if event.get("type") == "eval")
    assert losses["trained"] < first
    assert losses["ternary"] == losses["trained"]
    kernels = {launch["kernel"] for step in steps for launch in step["launches"]}
    assert {"ternarise", "matmul_ternary", "rms_norm_quantize", "matmul_dense", "attention"} <= kernels


def test_ternary_model_reproduces_the_record_of_its_trainer(trained):
    server, events = trained
    model = server.json("models", "get", "ternary")
    assert model["format"] == "ternary"
    verdict = server.json("models", "verify", "ternary")
    assert verdict["equal"] is True and verdict["rows"] >= 64 and verdict["recorded_by"] == "trainer"
    report = model["conversion"]
    assert report["eval_loss_after"] == [event["eval_loss"] for event in events if event.get("type") == "eval"][-1]
    answer = server.json("generate", "ternary", "--prompt", "The keeper of", "--max-tokens", 8, "--ignore-eos")
    assert len(answer["token_ids"]) == 8


def test_published_checkpoint_equals_the_model_of_a_job_that_ends_there(shared, tmp_path):
    run = {"micro_batch": 2, "save_every": 3, "seed": 5}
    common = {"train_dataset": "page", "data": {"max_seq_len": SEQ}}
    create(shared, tmp_path / "short.json", {"preset": "bitnet-tips", "act_bits": 4}, run={**run, "max_steps": 3},
           publish={"output_model": "short"}, **common)
    events = create(shared, tmp_path / "long.json", {"preset": "bitnet-tips", "act_bits": 4}, run={**run, "max_steps": 5},
                    publish={"output_model": "long"}, **common)
    job = events[-1]["job_id"]
    published = shared.json("jobs", "publish", f"{job}/3", "--name", "so-far")
    assert published["digest"] == shared.json("models", "get", "short")["digest"] != shared.json("models", "get", "long")["digest"]
    shared.run("models", "convert", "so-far", "--to", "ternary", "--name", "so-far-ternary")
    assert shared.json("models", "verify", "so-far-ternary")["equal"] is True


def test_a_checkpoint_is_published_converted_and_served_while_the_job_runs(shared, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"base_model": "small", "train_dataset": "page", "bitnet_qat": {"preset": "bitnet-tips"},
                                "data": {"max_seq_len": SEQ}, "run": {"micro_batch": 2, "max_steps": 5000, "save_every": 0, "seed": 5},
                                "publish": {"output_model": "never"}}))
    shared.run("models", "load", "small")
    job = shared.json("jobs", "create", "--spec", spec)["id"]
    try:
        wait_for_step(shared, job, 3)
        shared.run("jobs", "checkpoint", job)
        soon(lambda: shared.json("jobs", "checkpoints", job)["checkpoints"])
        (checkpoint,) = shared.json("jobs", "checkpoints", job)["checkpoints"]
        published = shared.json("jobs", "publish", checkpoint["name"], "--name", "running")
        assert published["source"] == checkpoint["name"] and not published["loaded"]
        # The answer lists the models in memory: the base, but not the published model.
        resident = {model["name"]: model["bytes"] for model in published["residents"]["models"]}
        assert resident["small"] > 0 and "running" not in resident
        assert published["residents"]["weights_bytes"] == sum(resident.values()) and published["residents"]["kv_bytes"] > 0
        shared.run("models", "convert", "running", "--to", "ternary", "--name", "running-ternary")
        answer = shared.json("generate", "running-ternary", "--prompt", "The keeper of", "--max-tokens", 8, "--ignore-eos")
        assert len(answer["token_ids"]) == 8
        assert shared.json("jobs", "get", job)["state"] == "RUNNING", "the job must still run"
    finally:
        shared.run("jobs", "cancel", job)
        soon(lambda: shared.json("jobs", "get", job)["state"] == "CANCELLED")
        shared.run("models", "unload", "small")


def test_ramp_continues_after_a_pause(shared, tmp_path):
    """A run that is paused within the ramp has the losses and the result of a run without a pause. Only steps after the
    ramp multiply codes."""
    ramp = {"warmup_lambda": {"steps": 300}}
    common = {"train_dataset": "page", "data": {"max_seq_len": SEQ},
              "run": {"micro_batch": 2, "max_steps": 304, "save_every": 0, "seed": 5}}
    calm = create(shared, tmp_path / "calm.json", ramp, publish={"output_model": "calm-ramp"}, **common)
    spec = json.loads((tmp_path / "calm.json").read_text())
    (tmp_path / "paused.json").write_text(json.dumps({**spec, "publish": {"output_model": "paused-ramp"}}))
    job = shared.json("jobs", "create", "--spec", tmp_path / "paused.json")["id"]
    wait_for_step(shared, job, 2)
    shared.run("jobs", "pause", job)
    soon(lambda: shared.json("jobs", "get", job)["state"] == "PAUSED")
    assert shared.json("jobs", "get", job)["progress"]["step"] < 300
    shared.run("jobs", "resume", job)
    paused = shared.lines("jobs", "watch", job, timeout=600)
    losses = [[event["loss"] for event in events if event.get("type") == "step"] for events in (calm, paused)]
    assert len(losses[0]) == 304 and losses[1] == losses[0]
    assert shared.json("models", "get", "paused-ramp")["digest"] == shared.json("models", "get", "calm-ramp")["digest"]
    launches = [{launch["kernel"] for launch in event["launches"]} for event in calm if event.get("type") == "step"]
    assert "matmul_ternary" not in launches[0] and "matmul_ternary" in launches[-1]
    shared.run("models", "convert", "calm-ramp", "--to", "ternary", "--name", "calm-ramp-ternary")
    assert shared.json("models", "verify", "calm-ramp-ternary")["equal"] is True


HF_AND_FLOATS = {"hf": {"preset": "hf"}, "floats": {"modules_to_not_convert": ["o_proj", "down_proj"]},
                 "both": {"preset": "hf", "modules_to_not_convert": ["q_proj", "up_proj", "lm_head"], "master_dtype": "COMPUTE_DTYPE_BF16"}}


@pytest.mark.parametrize("name", HF_AND_FLOATS)
def test_hf_scales_and_float_linears_are_served_as_trained(shared, tmp_path, name):
    """The whole way: trained, continued from a checkpoint, published, converted, verified, served, exported, imported."""
    method, floats = HF_AND_FLOATS[name], [m for m in HF_AND_FLOATS[name].get("modules_to_not_convert", []) if m != "lm_head"]
    common = {"train_dataset": "page", "eval_dataset": "page", "data": {"max_seq_len": SEQ}}
    run = {"micro_batch": 2, "max_steps": 4, "save_every": 2, "seed": 5}
    events = create(shared, tmp_path / "spec.json", method, run=run, publish={"output_model": name}, **common)
    job = events[-1]["job_id"]
    shown = shared.json("jobs", "get", job)["spec"]["bitnet_qat"]
    assert shown["preset"] == method.get("preset", "native")
    assert shown["modules_to_not_convert"] == method.get("modules_to_not_convert", ["lm_head"])
    losses = {event["subject"]: event["eval_loss"] for event in events if event.get("type") == "eval"}  # the last of each
    assert losses["ternary"] == losses["trained"]
    masters = shared.json("models", "get", name)["digest"]

    create(shared, tmp_path / "again.json", method, run=run, publish={"output_model": f"{name}-again"}, resume_from=f"{job}/2", **common)
    assert shared.json("models", "get", f"{name}-again")["digest"] == masters
    assert shared.json("jobs", "publish", f"{job}/4", "--name", f"{name}-published")["digest"] == masters

    for source in (name, f"{name}-published"):
        shared.run("models", "convert", source, "--to", "ternary", "--name", f"{source}-ternary")
        verdict = shared.json("models", "verify", f"{source}-ternary")
        assert verdict["equal"] is True and verdict["recorded_by"] == ("trainer" if source == name else "convert")
    ternary = shared.json("models", "get", f"{name}-ternary")
    assert ternary["digest"] == shared.json("models", "get", f"{name}-published-ternary")["digest"]
    answer = shared.json("generate", f"{name}-ternary", "--prompt", "The keeper of", "--max-tokens", 8, "--ignore-eos")
    assert len(answer["token_ids"]) == 8

    shared.run("models", "export", f"{name}-ternary", "--format", "hf", "--linear-class", "autobitlinear", "--out", tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())["quantization_config"]
    assert config["modules_to_not_convert"] == ["lm_head", *floats]
    shared.run("models", "import", tmp_path / "hf", "--name", f"{name}-imported")
    assert shared.json("models", "get", f"{name}-imported")["digest"] == ternary["digest"]


def test_norms_before_float_linears_are_not_exported(shared, tmp_path):
    create(shared, tmp_path / "spec.json", {"preset": "bitnet-tips", "modules_to_not_convert": ["v_proj"]}, train_dataset="page",
           data={"max_seq_len": SEQ}, run={"micro_batch": 2, "max_steps": 1, "save_every": 0}, publish={"output_model": "tips-floats"})
    refused = shared.run("models", "export", "tips-floats", "--format", "hf", "--out", tmp_path / "hf", check=False)
    assert refused.returncode != 0 and "modules_to_not_convert" in refused.stderr


def test_ternary_model_is_not_converted_again(trained):
    server, _ = trained
    refused = server.run("models", "convert", "ternary", "--to", "ternary", "--name", "twice", check=False)
    assert refused.returncode != 0 and "ternary" in refused.stderr


@pytest.mark.parametrize("preset", ["bitnet-tips", pytest.param("bitnet-2b4t", marks=pytest.mark.full)])
def test_random_weights_learn_a_page_by_heart_and_recite_it_as_ternary(shared, tmp_path, preset):
    (tmp_path / "page.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    name = preset.replace("-", "_")
    shared.run("datasets", "upload", tmp_path / "page.jsonl", "--name", f"one-{name}")
    events = create(shared, tmp_path / "spec.json", {"preset": preset, "init": "WEIGHT_INIT_RANDOM"}, train_dataset=f"one-{name}",
                    data={"max_seq_len": 512}, run={"max_steps": 300, "micro_batch": 1, "save_every": 0, "seed": 1},
                    publish={"output_model": f"page-{name}"}, optim={"schedule": "LR_SCHEDULE_COSINE"})
    losses = [event["loss"] for event in events if event.get("type") == "step"]
    print(f"{preset}: loss {losses[0]:.2f} to {losses[-1]:.4f} in 300 steps")
    assert losses[0] > 4 and losses[-1] < 0.1, losses[-1]
    shared.run("models", "convert", f"page-{name}", "--to", "ternary", "--name", f"recite-{name}")
    assert shared.json("models", "verify", f"recite-{name}")["equal"] is True
    answer = shared.json("generate", f"recite-{name}", "--prompt", TEXT[:24], "--max-tokens", len(TEXT) - 24)
    assert TEXT[:24] + answer["text"] == TEXT


@pytest.mark.full
def test_a_page_is_learnt_by_heart_from_random_weights_and_recited_as_ternary(tmp_path):
    """A model of 3 M parameters, 250 steps, each on the whole page (some minutes on two cores). Greedy decoding then
    returns the page from its first words."""
    steps, first_words = 250, PAGE[:len("When on board H.M.S. 'Beagle,'")]
    base = small_model.write(tmp_path / "model", hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8,
                             num_key_value_heads=4, head_dim=32)
    (tmp_path / "page.jsonl").write_text(json.dumps({"text": PAGE}) + "\n")
    server = Server(tmp_path / "state").start()
    try:
        server.run("models", "import", base, "--name", "small", "--dtype", "f32")
        assert server.json("models", "get", "small")["parameters"] > 2_500_000
        server.run("datasets", "upload", tmp_path / "page.jsonl", "--name", "page")
        # A wider model needs a smaller learning rate than that of create().
        events = create(server, tmp_path / "spec.json", {"preset": "bitnet-tips", "init": "WEIGHT_INIT_RANDOM"}, train_dataset="page",
                        data={"max_seq_len": 1024}, run={"max_steps": steps, "micro_batch": 1, "save_every": 0, "seed": 1},
                        publish={"output_model": "masters"}, optim={"lr": 2e-3, "schedule": "LR_SCHEDULE_COSINE", "warmup_steps": 20})
        trained = [event for event in events if event.get("type") == "step"]
        losses = [step["loss"] for step in trained]
        print(f"{len(PAGE)} characters: loss {losses[0]:.2f} to {losses[-1]:.4f} in {len(losses)} steps")
        assert len(losses) == steps and trained[-1]["tokens"] == len(PAGE) + 1, "each step trains the whole page"
        assert losses[0] > 4 and losses[-1] < 0.1, losses[-1]
        server.run("models", "convert", "masters", "--to", "ternary", "--name", "recite")
        assert server.json("models", "verify", "recite")["equal"] is True
        answer = server.json("generate", "recite", "--prompt", first_words, "--max-tokens", len(PAGE) - len(first_words))
        assert first_words + answer["text"] == PAGE
    finally:
        server.stop()


def test_settings_reach_the_trainer(shared, tmp_path):
    """The forward pass does not depend on ste and scale_grad: the first losses are equal, the second ones differ. The
    other settings change the first loss."""
    losses = {}
    for name, method in {"identity": {}, "round_only": {"ste": "STE_MODE_ROUND_ONLY"},
                         "scaled": {"ste": "STE_MODE_ROUND_ONLY", "scale_grad": True}, "clipped": {"ste": "STE_MODE_CLIPPED"},
                         "bits": {"act_bits": 4}, "wide": {"act_bits": 16}, "tensor": {"act_scale": "ACTIVATION_SCALE_PER_TENSOR"}}.items():
        events = create(shared, tmp_path / f"{name}.json", method, train_dataset="page", data={"max_seq_len": SEQ},
                        run={"max_steps": 2, "micro_batch": 2, "save_every": 0}, publish={"output_model": f"setting-{name}"})
        losses[name] = [event["loss"] for event in events if event.get("type") == "step"]
        if name == "tensor":
            assert any(event.get("type") == "warning" for event in events)
    assert len({losses[name][0] for name in ("identity", "round_only", "scaled", "clipped")}) == 1
    assert len({losses[name][1] for name in ("identity", "round_only", "scaled", "clipped")}) == 4
    assert len({losses[name][0] for name in ("identity", "bits", "wide", "tensor")}) == 4


@pytest.mark.parametrize("method, field", [({"act_bits": 5}, "act_bits"), ({"preset": "small"}, "preset"),
                                           ({"scale_grad": True}, "scale_grad"),
                                           ({"modules_to_not_convert": ["proj"]}, "modules_to_not_convert")])
def test_bad_settings_are_named(shared, tmp_path, method, field):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"base_model": "small", "train_dataset": "page", "bitnet_qat": method}))
    refused = shared.run("jobs", "create", "--spec", path, check=False)
    assert refused.returncode != 0 and f"bitnet_qat.{field}" in refused.stderr


def test_a_quantized_base_is_refused(shared, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"base_model": "small-int8", "train_dataset": "page", "bitnet_qat": {}}))
    refused = shared.run("jobs", "create", "--spec", path, check=False)
    assert refused.returncode != 0 and "base_model" in refused.stderr and "int8" in refused.stderr


@pytest.mark.full
def test_a_real_model_learns_the_quickstarts_text(tmp_path):
    """SmolLM2-135M, 200 steps on WordNet's glosses; its ternary form reproduces the record of the trainer bit for
    bit."""
    if not (ROOT / "build/deps/paths.cmake").exists():
        pytest.skip("no SmolLM2: run deploy/setup.sh")
    paths = (ROOT / "build/deps/paths.cmake").read_text()
    gguf = re.search(r'NIBBLE_SMOLLM2_GGUF\D*?"([^"]+)"', paths).group(1).replace("${CMAKE_CURRENT_LIST_DIR}", str(ROOT / "build/deps"))
    subprocess.run([sys.executable, ROOT / "deploy/wordnet_dataset.py", tmp_path / "data"], check=True)
    server = Server(tmp_path / "state").start()
    try:
        server.run("models", "import", gguf, "--name", "smollm2", "--dtype", "bf16")
        for part in ("train", "eval"):
            server.run("datasets", "upload", tmp_path / f"data/{part}.jsonl", "--name", part)
        events = server.lines("jobs", "create", "--method", "bitnet_qat", "--base", "smollm2", "--dataset", "train", "--eval-dataset",
                              "eval", "--output", "masters", "--max-steps", 200, "--micro-batch", 4, "--seq-len", 256, "--lr", "3e-4",
                              "--save-every", 0, "--eval-every", 50, "--watch", timeout=7200)
        losses = [event["loss"] for event in events if event.get("type") == "step"]
        evals = [event["eval_loss"] for event in events if event.get("type") == "eval" and event["subject"] == "trained"]
        steps = [event for event in events if event.get("type") == "step"]
        print(f"training loss {sum(losses[:10]) / 10:.3f} (first ten) to {sum(losses[-10:]) / 10:.3f} (last ten); evaluation {evals}; "
              f"{sorted(step['tokens_per_s'] for step in steps)[len(steps) // 2]:.0f} tokens/s, "
              f"peak {steps[-1]['peak_memory_bytes'] >> 20} MiB, {steps[-1]['kernel_launches']} launches a step")
        assert len(losses) == 200 and sum(losses[-10:]) < 0.8 * sum(losses[:10])
        assert evals[-1] < evals[1] < evals[0]
        server.run("models", "convert", "masters", "--to", "ternary", "--name", "ternary", timeout=1800)
        verdict = server.json("models", "verify", "ternary")
        assert verdict["equal"] is True and verdict["recorded_by"] == "trainer"
        print(server.json("chat", "ternary", "--message", "Define: lighthouse", "--max-tokens", 32)["text"])
    finally:
        server.stop()
