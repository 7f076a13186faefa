"""Every method with every optimizer (docs/methods/README.md) runs some steps, and its checkpoint has the moments of the
optimizer beside values of the method's types. bf16 parameters with f32 products are refused before the queue."""
import json
import math

import pytest
import safetensors

BF16, F32 = "COMPUTE_DTYPE_BF16", "COMPUTE_DTYPE_F32"
# The method, its fields, and the types of its values in a checkpoint.
METHODS = [
    ("qlora", {"r": 4}, {"F32"}), ("lora", {"r": 4}, {"F32"}), ("full", {}, {"F32"}), ("full", {"param_dtype": BF16}, {"BF16"}),
    ("bitnet_qat", {}, {"F32"}), ("bitnet_qat", {"master_dtype": BF16}, {"BF16"}), ("int8_mixed", {}, {"F32"}),
    ("int8_mixed", {"master_dtype": BF16}, {"BF16"}), ("int8_qt", {}, {"I8", "F32"}),
]
# Parts of the state of a parameter. An 8-bit moment has codes, unsigned bytes.
MOMENTS = {"ADAMW": (".exp_avg", ".exp_avg_sq"), "ADAMW_8BIT": (".exp_avg", ".exp_avg_sq"), "SGD": (".exp_avg",), "LION": (".exp_avg",)}
STEPS = 3


def create(server, path, method, fields, optimizer, **options):
    path.write_text(json.dumps({
        "base_model": "small", "train_dataset": "page", method: fields, "data": {"max_seq_len": 64},
        "optim": {"optimizer": f"OPTIMIZER_{optimizer}", "lr": 1e-4}, "run": {"max_steps": STEPS, "save_every": STEPS, "micro_batch": 2}}))
    return server.run("--json", "jobs", "create", "--spec", path, **options)


@pytest.mark.parametrize("optimizer", MOMENTS)
@pytest.mark.parametrize("method, fields, types", METHODS, ids=lambda value: json.dumps(value, default=sorted))
def test_pair_trains(shared, tmp_path, method, fields, types, optimizer):
    job = json.loads(create(shared, tmp_path / "spec.json", method, fields, optimizer).stdout)["id"]
    losses = [event["loss"] for event in shared.lines("jobs", "watch", job) if event["type"] == "step"]
    assert len(losses) == STEPS and all(math.isfinite(loss) for loss in losses)
    assert shared.json("jobs", "get", job)["state"] == "SUCCEEDED"
    (path,) = (shared.state / "jobs" / job).glob(f"attempts/1/checkpoints/step-{STEPS:08}/state.safetensors")
    with safetensors.safe_open(path, "numpy") as file:
        type_of = {key: file.get_slice(key).get_dtype() for key in file.keys() if not key.endswith(".scales")}
    of_moments = {key: dtype for key, dtype in type_of.items() if key.endswith((".exp_avg", ".exp_avg_sq"))}
    of_values = {key: dtype for key, dtype in type_of.items() if key not in of_moments}
    assert set(of_values.values()) == types
    assert set(of_moments) == {f"{key}{part}" for key in of_values for part in MOMENTS[optimizer]}
    # Small tensors have f32 moments; adapters of this model have no large ones.
    large = optimizer == "ADAMW_8BIT" and method not in ("qlora", "lora")
    assert set(of_moments.values()) == ({"F32", "U8"} if large else {"F32"})


@pytest.mark.parametrize("optimizer", MOMENTS)
@pytest.mark.parametrize("method, field", [("full", "param_dtype"), ("int8_mixed", "master_dtype")])
def test_bf16_parameters_with_f32_products_are_refused_by_name(shared, tmp_path, method, field, optimizer):
    jobs = shared.json("jobs", "list")["jobs"]
    refused = create(shared, tmp_path / "spec.json", method, {field: BF16, "compute_dtype": F32}, optimizer, check=False)
    assert refused.returncode != 0 and f"{method}.{field}" in refused.stderr and "compute_dtype BF16" in refused.stderr
    assert shared.json("jobs", "list")["jobs"] == jobs
