"""int8_mixed on bf16 masters, the whole way: trained, killed, continued, published, converted, verified, served."""
import json
import math
import os
import signal

import pytest
import safetensors

from conftest import PAGE, trainers
from test_kill import wait_for_own_step

STEPS = 12
BF16 = {"master_dtype": "COMPUTE_DTYPE_BF16"}


@pytest.fixture(scope="module")
def train(shared, tmp_path_factory):
    """Returns a function that runs a job of STEPS steps, and returns its id and its events. `kill_at`: kills the first
    attempt after this step."""
    path = tmp_path_factory.mktemp("int8_mixed") / "spec.json"

    def run(name, method, kill_at=None, seed=5, **parts):
        path.write_text(json.dumps({
            "base_model": "small", "train_dataset": "page", "eval_dataset": "page", "int8_mixed": method, "data": {"max_seq_len": 96},
            "optim": {"lr": 2e-3, "schedule": "LR_SCHEDULE_CONSTANT", "warmup_steps": 0}, "publish": {"output_model": name},
            "run": {"micro_batch": 2, "max_steps": STEPS, "save_every": 3, "seed": seed}, **parts}))
        job = shared.json("jobs", "create", "--spec", path)["id"]
        if kill_at is not None:
            wait_for_own_step(shared, job, 1, kill_at)
            for pid in trainers(shared):
                os.kill(pid, signal.SIGKILL)
        events = shared.lines("jobs", "watch", job)
        assert shared.json("jobs", "get", job)["state"] == "SUCCEEDED"
        return job, events
    return run


def digest(server, model):
    return server.json("models", "get", model)["digest"]


def test_bf16_masters_train_what_is_served(shared, train):
    job, events = train("mixed", BF16)
    losses = {}
    for event in events:
        if event.get("type") == "eval":
            losses.setdefault(event["subject"], []).append(event["eval_loss"])
    assert losses["int8"][0] == losses["trained"][-1] < losses["trained"][0], "the served model has the loss of training"
    assert shared.json("jobs", "get", job)["spec"]["int8_mixed"]["master_dtype"] == "bf16"
    assert shared.json("models", "get", "mixed")["format"] == "bf16"
    with safetensors.safe_open(shared.state / "models/mixed/model.safetensors", "numpy") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}

    shared.run("models", "convert", "mixed", "--to", "int8", "--name", "mixed-int8")
    verdict = shared.json("models", "verify", "mixed-int8")
    assert verdict["equal"] is True and verdict["rows"] > 0 and verdict["recorded_by"] == "trainer"
    assert len(shared.json("generate", "mixed-int8", "--prompt", PAGE[:20], "--max-tokens", 3, "--ignore-eos")["token_ids"]) == 3

    assert shared.json("jobs", "publish", f"{job}/{STEPS}", "--name", "mixed-published")["digest"] == digest(shared, "mixed")
    train("mixed-continued", BF16, resume_from=f"{job}/{STEPS - 3}")
    assert digest(shared, "mixed-continued") == digest(shared, "mixed")


@pytest.mark.parametrize("preset", ["all", "torchao"])
def test_killed_job_has_the_masters_of_an_undisturbed_one(shared, train, preset):
    """Operands are rounded stochastically here. The seed decides the draws of products and masters."""
    method = {**BF16, "preset": preset, "stochastic_gradients": True}
    train(f"calm-{preset}", method)
    _, events = train(f"killed-{preset}", method, kill_at=7)
    resumed = [event["resumed_step"] for event in events if event["type"] == "state" and event["state"] == "RUNNING"]
    assert len(resumed) == 2 and resumed[0] == 0 < resumed[1]
    assert digest(shared, f"killed-{preset}") == digest(shared, f"calm-{preset}")
    train(f"other-seed-{preset}", method, seed=6)
    assert digest(shared, f"other-seed-{preset}") != digest(shared, f"calm-{preset}")


def test_bf16_masters_halve_the_values_of_a_checkpoint(shared, train):
    """Both checkpoints have the same moments in f32."""
    sizes = {}
    for name, method in (("small-masters", BF16), ("large-masters", {})):
        job, _ = train(name, method)
        (checkpoint,) = [one for one in shared.json("jobs", "checkpoints", job)["checkpoints"] if one["step"] == STEPS]
        path = next((shared.state / "jobs" / job).glob(f"attempts/1/checkpoints/step-{STEPS:08}/state.safetensors"))
        with safetensors.safe_open(path, "numpy") as file:
            values = [file.get_slice(key) for key in file.keys() if not key.endswith((".exp_avg", ".exp_avg_sq"))]
            assert {value.get_dtype() for value in values} == {"BF16" if method else "F32"}
            sizes[name] = checkpoint["bytes"], sum(math.prod(value.get_shape()) for value in values)
    assert sizes["large-masters"][1] == sizes["small-masters"][1]
    assert abs(sizes["large-masters"][0] - sizes["small-masters"][0] - 2 * sizes["small-masters"][1]) < 4096
