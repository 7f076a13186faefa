"""Effects of options of a job: on its losses, on the rows that it trains and evaluates, and on the served model."""
import json
import pathlib
import math

import pytest
import safetensors

from conftest import PAGE, Server

ROWS = [PAGE[i * 9: i * 9 + 30 + 17 * i] for i in range(8)]  # ragged: 30 to 142 tokens


class Trainings:
    """Jobs of one server, each with a model of its own."""

    def __init__(self, server, directory):
        self.server, self.path, self.count = server, directory / "spec.json", 0

    def job(self, spec):
        """Runs a job; returns the name of the trained model, and the events."""
        self.count += 1
        name = f"out-{self.count}"
        self.path.write_text(json.dumps({**spec, "publish": {"output_model": name}}))
        return name, self.server.lines("jobs", "create", "--spec", self.path, "--watch")

    def __call__(self, dataset, qlora=None, optim=None, eval_dataset=None, **options):
        """Runs a QLoRA job of six steps; returns its steps, or with `eval_dataset` its evaluations."""
        spec = {"base_model": "small", "train_dataset": dataset,
                "qlora": {"r": 4, "alpha": 8, "seed": 5, "compute_dtype": "COMPUTE_DTYPE_F32", **(qlora or {})},
                "data": {"max_seq_len": 160, "packing": "PACKING_MODE_NONE"},
                "optim": {"lr": 5e-3, "max_grad_norm": 0, "schedule": "LR_SCHEDULE_CONSTANT", "warmup_steps": 0, **(optim or {})},
                "run": {"max_steps": 6, **options}}
        if eval_dataset:
            spec["eval_dataset"] = eval_dataset
        return [event for event in self.job(spec)[1] if event.get("type") == ("eval" if eval_dataset else "step")]


@pytest.fixture(scope="module")
def train(tmp_path_factory, model_directory):
    directory = tmp_path_factory.mktemp("options")
    server = Server(directory / "state").start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("models", "import", model_directory, "--name", "small-bf16")
    server.run("models", "convert", "small", "--to", "nf4", "--name", "small-nf4")
    server.run("models", "convert", "small", "--to", "int8", "--name", "small-int8")
    for name, rows in (("ragged", ROWS), ("four", ROWS[:4])):
        path = directory / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        server.run("datasets", "upload", path, "--name", name)
    (directory / "pairs.jsonl").write_text(json.dumps({"prompt": PAGE[:60], "completion": PAGE[60:90]}) + "\n")
    server.run("datasets", "upload", directory / "pairs.jsonl", "--name", "pairs", "--format", "prompt_completion")
    yield Trainings(server, directory)
    server.stop()


def losses(steps):
    return [step["loss"] for step in steps]


def test_accumulated_micro_batches_weigh_by_tokens(train):
    """Rows have different lengths, so a mean of the means of micro-batches would be another loss."""
    whole = train("ragged", micro_batch=4)
    halves = train("ragged", micro_batch=2, grad_accum=2)
    singles = train("ragged", micro_batch=1, grad_accum=4)
    for parts in (halves, singles):
        assert [step["tokens"] for step in parts] == [step["tokens"] for step in whole]
        for a, b in zip(losses(parts), losses(whole)):
            assert math.isclose(a, b, rel_tol=1e-5)
        assert math.isclose(parts[0]["grad_norm"], whole[0]["grad_norm"], rel_tol=1e-4)


def test_recomputed_activations_change_no_bit(train):
    kept, again = train("ragged", micro_batch=2), train("ragged", micro_batch=2, activation_checkpointing=True)
    assert losses(kept) == losses(again)
    assert [step["grad_norm"] for step in kept] == [step["grad_norm"] for step in again]
    assert again[0]["kernel_launches"] > kept[0]["kernel_launches"]


QLORA = [
    *({"qlora": {"target_modules": [name]}} for name in ("k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")),
    {"qlora": {"use_rslora": True, "r": 1}}, {"qlora": {"r": 64, "alpha": 0.5, "lora_plus_ratio": 16}},
    {"qlora": {"compute_dtype": "COMPUTE_DTYPE_BF16"}},
    {"qlora": {"dropout": 0.3, "target_modules": ["q_proj", "down_proj"]}, "run": {"activation_checkpointing": True}},
    {"data": {"packing": "PACKING_MODE_SEGMENTED"}, "run": {"micro_batch": 1, "grad_accum": 3}},
    {"optim": {"schedule": "LR_SCHEDULE_COSINE", "warmup_ratio": 0.5, "min_lr_ratio": 0.1, "weight_decay": 0.1, "max_grad_norm": 0.5}},
    {"optim": {"schedule": "LR_SCHEDULE_LINEAR", "beta1": 0.0, "beta2": 0.5, "eps": 1e-3}},
    {"optim": {"optimizer": "OPTIMIZER_SGD", "schedule": "LR_SCHEDULE_WSD"}},
    {"train_dataset": "pairs", "eval_dataset": "ragged", "run": {"eval_every": 1, "save_every": 1, "keep_last": 1}},
    {"base_model": "small-nf4"}, {"base_model": "small-bf16"}, {"run": {"epochs": 0.5}},
    {"qlora": {"use_dora": True}},
    {"qlora": {"use_dora": True, "target_modules": ["v_proj", "up_proj"], "compute_dtype": "COMPUTE_DTYPE_F32"}},
    {"qlora": {"merge_aware_int8": True}}, {"qlora": {"merge_aware_int8": True, "modules_to_save": ["embed_tokens", "norm"]}},
    {"qlora": {"modules_to_save": ["embed_tokens", "input_layernorm"]}, "run": {"activation_checkpointing": True}},
    {"qlora": {"merge_aware_int8": True, "target_pattern": ".*[.][02][.].*_proj", "rank_pattern": {"q_proj": 2},
               "alpha_pattern": {"v_proj": 4}}},
    {"qlora": {"merge_aware_int8": True, "target_modules": ["q_proj", "down_proj"], "use_rslora": True}, "base_model": "small-nf4"},
]
BITNET = [
    *({"preset": name} for name in ("bitnet-tips", "bitnet-2b4t")), *({"act_bits": bits} for bits in (4, 16)),
    {"act_scale": "ACTIVATION_SCALE_PER_TENSOR"}, {"ste": "STE_MODE_ROUND_ONLY"}, {"ste": "STE_MODE_CLIPPED", "scale_grad": True},
    {"init": "WEIGHT_INIT_RANDOM"}, {"compute_dtype": "COMPUTE_DTYPE_F32"}, {"modules_to_not_convert": ["lm_head"]},
    {"preset": "hf", "act_bits": 4, "act_scale": "ACTIVATION_SCALE_PER_TENSOR", "ste": "STE_MODE_ROUND_ONLY", "scale_grad": True},
    {"modules_to_not_convert": ["q_proj", "down_proj"], "preset": "bitnet-2b4t", "warmup_lambda": {"steps": 1}},
    {"modules_to_not_convert": ["k_proj", "up_proj"], "preset": "bitnet-tips", "master_dtype": "COMPUTE_DTYPE_BF16"},
    {"master_dtype": "COMPUTE_DTYPE_BF16"}, {"master_dtype": "COMPUTE_DTYPE_BF16", "preset": "bitnet-2b4t", "ste": "STE_MODE_ROUND_ONLY"},
    {"warmup_lambda": {"steps": 1}},
    {"warmup_lambda": {"from": 0.5, "steps": 1}, "preset": "bitnet-tips", "ste": "STE_MODE_CLIPPED", "scale_grad": True},
]
FULL = [{"full": {"compute_dtype": "COMPUTE_DTYPE_F32"}}, {"full": {"param_dtype": "COMPUTE_DTYPE_BF16"}},
        {"full": {"init": "WEIGHT_INIT_RANDOM"}}, {"full": {}, "base_model": "small-bf16"},
        {"full": {}, "run": {"activation_checkpointing": True, "grad_accum": 2}},
        {"full": {}, "optim": {"optimizer": "OPTIMIZER_ADAMW_8BIT"}}, {"full": {}, "optim": {"optimizer": "OPTIMIZER_LION", "lr": 1e-4}}]

INT8_MIXED = [
    {}, {"act_outliers": 0}, *({"preset": name} for name in ("a8w8-qat", "switchback", "torchao")), {"exact_forward": False},
    {"forward": False}, {"act_scale": "ACTIVATION_SCALE_PER_TENSOR"}, {"grad_scale": "ACTIVATION_SCALE_PER_TENSOR"},
    {"stochastic_gradients": True}, {"stochastic_forward": True}, {"target_modules": ["q_proj", "down_proj"]},
    {"init": "WEIGHT_INIT_RANDOM"}, {"compute_dtype": "COMPUTE_DTYPE_F32"}, {"weight_scale": "INT8_SCALE_TENSOR"},
    *({"master_dtype": "COMPUTE_DTYPE_BF16", **more}
      for more in ({}, {"preset": "a8w8-qat", "init": "WEIGHT_INIT_RANDOM"}, {"preset": "switchback"})),
]
# Evaluates the model as trained, which reads bf16 parameters in float products.
INT8_MIXED_FAST = [{"int8_mixed": {"master_dtype": "COMPUTE_DTYPE_BF16", "preset": "torchao", "stochastic_gradients": True},
                    "eval_dataset": "four", "run": {"eval_every": 1}}]
LORA = [
    {}, {"compute_dtype": "COMPUTE_DTYPE_F32"}, {"target_modules": ["k_proj", "o_proj", "gate_proj"]}, {"use_rslora": True, "r": 1},
    {"r": 64, "alpha": 0.5, "lora_plus_ratio": 16}, {"dropout": 0.3, "seed": 9}, {"use_dora": True},
    {"modules_to_save": ["embed_tokens"]}, {"modules_to_save": ["norm"], "use_dora": True, "compute_dtype": "COMPUTE_DTYPE_F32"},
]
# On a base in bf16, with both types of compute; LORA has both on the base in f32.
LORA_BASES = [{"lora": {"r": 4, "compute_dtype": f"COMPUTE_DTYPE_{compute}"}, "base_model": "small-bf16"} for compute in ("BF16", "F32")]

INT8_QT = [
    {}, {"stochastic_rounding": False}, {"scale": "INT8_SCALE_TENSOR"}, {"act_outliers": 8}, {"init": "WEIGHT_INIT_RANDOM"},
    {"compute_dtype": "COMPUTE_DTYPE_F32"}, {"compute": "INT8_QT_COMPUTE_FLOAT"},
    {"compute": "INT8_QT_COMPUTE_FLOAT", "compute_dtype": "COMPUTE_DTYPE_F32", "scale": "INT8_SCALE_TENSOR"},
]


@pytest.mark.parametrize("changes", QLORA + [{"bitnet_qat": method} for method in BITNET] + FULL +
                         [{"int8_mixed": method} for method in INT8_MIXED] + INT8_MIXED_FAST + [{"int8_qt": method} for method in INT8_QT] +
                         [{"lora": method} for method in LORA] + LORA_BASES +
                         [{"lora": {"dropout": 0.2}, "run": {"activation_checkpointing": True, "grad_accum": 2}}], ids=json.dumps)
def test_model_trained_with_every_option_is_converted_and_served(train, changes):
    """Two steps with each option: every option that a user may choose ends in a model that gives the recorded bits. The
    trainer makes the record, except for bitnet_qat whose rows share a scale in training: only the conversion can record
    what such a model answers."""
    spec = {"base_model": "small", "train_dataset": "ragged", "data": {"max_seq_len": 160}, "optim": {"lr": 1e-3},
            "run": {"micro_batch": 2}}
    if not {"bitnet_qat", "full", "int8_mixed", "int8_qt", "lora"} & set(changes):
        spec["qlora"] = {"r": 4}
    for key, value in changes.items():
        spec[key] = {**spec.get(key, {}), **value} if isinstance(value, dict) else value
    if "epochs" not in spec["run"]:
        spec["run"]["max_steps"] = 2
    name, events = train.job(spec)
    steps = losses([event for event in events if event.get("type") == "step"])
    assert steps and all(math.isfinite(loss) for loss in steps)
    served = "ternary" if "bitnet_qat" in changes else "int8"
    train.server.run("models", "convert", name, "--to", served, "--name", f"{name}-{served}")
    verdict = train.server.json("models", "verify", f"{name}-{served}")
    assert verdict["equal"] is True and verdict["rows"] > 0
    shares_scales = changes.get("bitnet_qat", {}).get("act_scale") == "ACTIVATION_SCALE_PER_TENSOR"
    assert verdict["recorded_by"] == ("convert" if shares_scales else "trainer")
    # int8_qt writes the served model itself, with its record.
    trainer_record = train.server.state / f"models/{name}" / ("record.bin" if "int8_qt" in changes else f"{served}_record.bin")
    assert trainer_record.exists() is not shares_scales
    answer = train.server.json("generate", f"{name}-{served}", "--prompt", PAGE[:20], "--max-tokens", 3, "--ignore-eos")
    assert len(answer["token_ids"]) == 3


@pytest.mark.parametrize("method", [{"qlora": {"merge_aware_int8": True}}, {"int8_mixed": {}}, {"int8_qt": {}},
                                    {"int8_mixed": {"master_dtype": "COMPUTE_DTYPE_BF16"}},
                                    {"int8_qt": {"compute": "INT8_QT_COMPUTE_FLOAT"}}, {"bitnet_qat": {}}],
                         ids=json.dumps)
def test_evaluation_as_trained_is_that_of_the_served_model(train, method):
    """Training in the arithmetic of the served model: the losses before and after the conversion have the same bits."""
    spec = {"base_model": "small", "train_dataset": "ragged", "eval_dataset": "four", "data": {"max_seq_len": 160},
            "optim": {"lr": 2e-3}, "run": {"micro_batch": 2, "max_steps": 3}, **method}
    evaluations = [event for event in train.job(spec)[1] if event.get("type") == "eval"]
    losses_of = {}
    for event in evaluations:
        losses_of.setdefault(event["subject"], []).append(event["eval_loss"])
    served = losses_of["ternary" if "bitnet_qat" in method else "int8"]
    assert len(served) == 1 and len(losses_of["trained"]) >= 2
    assert served[0] == losses_of["trained"][-1] != losses_of["trained"][0]


# Launches of a step by the products and quantizers of the 21 linears of 3 layers, and of the head.
LINEARS = 21
ROWS_OF_A_LAYER = 2  # inputs of linears that no norm makes: those of o_proj and down_proj
LAUNCHES = [
    # Codes of the gradient g, as rows and transposed, of W^T and of x: three products. No linear multiplies floats; the one
    # matmul_dense is the head.
    ({"int8_mixed": {}}, {"matmul_int8": 3 * LINEARS, "matmul_dense": 1, "quantize_int8": LINEARS, "quantize_int8_transposed": 3 * LINEARS,
                          "rms_norm_quantize": 6, "quantize_activations": 3 * ROWS_OF_A_LAYER + LINEARS}),
    # Each linear quantizes its own rows.
    ({"int8_mixed": {"preset": "torchao"}}, {"matmul_int8": 3 * LINEARS, "matmul_bf16": 1, "quantize_int8": LINEARS,
                                             "quantize_int8_transposed": 3 * LINEARS, "quantize_activations": 2 * LINEARS}),
    ({"int8_mixed": {"preset": "switchback"}}, {"matmul_int8": 2 * LINEARS, "matmul_bf16": 1, "quantize_int8": LINEARS,
                                                "quantize_int8_transposed": LINEARS, "quantize_activations": 2 * LINEARS}),
    # Parameters are quantized once, when the optimizer stores them.
    ({"int8_qt": {}}, {"matmul_int8": LINEARS, "matmul_dense": 1, "quantize_int8": LINEARS, "rms_norm_quantize": 6,
                       "quantize_activations": 3 * ROWS_OF_A_LAYER}),
    ({"int8_qt": {"compute": "INT8_QT_COMPUTE_FLOAT"}}, {"matmul_int8_weight": LINEARS, "matmul_dense": 1, "quantize_int8": LINEARS}),
    # Every linear is merged once a step. The backward pass makes the rows again.
    ({"qlora": {"merge_aware_int8": True}}, {"dequantize_nf4": LINEARS, "matmul_dense": LINEARS + 1, "quantize_int8": LINEARS,
                                             "matmul_int8": LINEARS, "rms_norm_quantize": 12,
                                             "quantize_activations": 2 * 3 * ROWS_OF_A_LAYER}),
    ({"lora": {}}, {"matmul_bf16": LINEARS, "matmul_dense": 2 * LINEARS}),
    # The head has codes too.
    ({"lora": {}, "base_model": "small-int8"}, {"matmul_int8": LINEARS + 1, "matmul_dense": 2 * LINEARS, "rms_norm_quantize": 12,
                                                "quantize_activations": 2 * 3 * ROWS_OF_A_LAYER + 1}),
    ({"full": {}}, {"matmul_bf16": LINEARS + 1}),
]


@pytest.mark.parametrize(("changes", "wanted"), LAUNCHES, ids=[json.dumps(changes) for changes, _ in LAUNCHES])
def test_step_launches_the_kernels_of_its_method(train, changes, wanted):
    """Checks the second step, because the first has launches of the start of the job. The head's product of the 192 tokens
    is one launch."""
    spec = {"base_model": "small", "train_dataset": "ragged", "data": {"max_seq_len": 96}, "run": {"micro_batch": 2, "max_steps": 2},
            **changes}
    if "avx512_bf16" not in pathlib.Path("/proc/cpuinfo").read_text():
        wanted = {name: count for name, count in wanted.items() if name != "matmul_bf16"}  # torch multiplies instead
    step = [event for event in train.job(spec)[1] if event.get("type") == "step"][1]
    kernels = {launch["kernel"]: launch["count"] for launch in step["launches"]}
    assert {name: count for name, count in kernels.items()
            if name.startswith(("matmul_", "quantize_", "dequantize_")) or name.endswith("_quantize")} == wanted
    parameters = 2 * LINEARS if {"qlora", "lora"} & set(changes) else LINEARS + 8  # with seven norms and the embedding
    assert kernels["attention"] == kernels["attention_backward"] == 3 and kernels["adamw"] == parameters


def test_int8_qt_stores_as_its_options_say(train):
    """Rounding to nearest does not depend on the seed, stochastic rounding does; with one scale, all rows have it."""
    def weights(seed, **method):
        spec = {"base_model": "small", "train_dataset": "four", "int8_qt": method, "optim": {"lr": 1e-3},
                "data": {"packing": "PACKING_MODE_NONE", "shuffle_seed": 3}, "run": {"micro_batch": 4, "max_steps": 1, "seed": seed}}
        name, _ = train.job(spec)
        with safetensors.safe_open(train.server.state / f"models/{name}/model.safetensors", "numpy") as file:  # numpy has no bf16
            return {key: file.get_tensor(key) for key in file.keys() if file.get_slice(key).get_dtype() in ("I8", "F32")}

    def equal(a, b):
        return all((a[name] == b[name]).all() for name in a if a[name].dtype == "int8")

    assert equal(weights(1, stochastic_rounding=False), weights(2, stochastic_rounding=False))
    assert not equal(weights(1), weights(2))
    tensor = weights(1, scale="INT8_SCALE_TENSOR")
    scales = [values for name, values in tensor.items() if name.endswith("_scale")]
    assert scales and all((values == values[0]).all() for values in scales)
    assert not all((values == values[0]).all() for name, values in weights(1).items() if name.endswith("_scale"))


def test_model_trained_on_float_rows_is_served_weight_only(train):
    """The model has the form of its training, shows it, and converts only to itself."""
    name, _ = train.job({"base_model": "small", "train_dataset": "four", "int8_qt": {"compute": "INT8_QT_COMPUTE_FLOAT"},
                         "run": {"max_steps": 2}})
    model = train.server.json("models", "get", name)
    assert (model["format"], model["activations"], model["act_outliers"]) == ("int8", "bf16", 0)
    assert (model["determinism"], model["recorded_by"]) == ("EXACT", "trainer")
    train.server.run("models", "convert", name, "--to", "int8", "--activations", "bf16", "--name", f"{name}-copy")
    assert train.server.json("models", "get", f"{name}-copy")["digest"] == model["digest"]
    with pytest.raises(AssertionError, match="activations.*wanted bf16"):
        train.server.run("models", "convert", name, "--to", "int8", "--activations", "int8", "--name", f"{name}-other")


def test_any_float_model_converts_to_int8_with_float_rows(train):
    """The weights of both int8 models are equal; their losses differ, because only one rounds activations to int8."""
    losses_after = {}
    for activations in ("int8", "bf16"):
        name = f"rows-{activations}"
        made = train.server.json("models", "convert", "small", "--to", "int8", "--activations", activations, "--name", name,
                                 "--eval-dataset", "four")
        assert made["activations"] == activations
        losses_after[activations] = made["report"]["eval_loss_after"]
        assert train.server.json("models", "verify", name)["equal"] is True
        assert len(train.server.json("generate", name, "--prompt", PAGE[:20], "--max-tokens", 3, "--ignore-eos")["token_ids"]) == 3
    shown = [train.server.json("models", "get", f"rows-{activations}") for activations in ("int8", "bf16")]
    assert shown[0]["digest"] == shown[1]["digest"] and [model["act_outliers"] for model in shown] == [8, 0]
    assert losses_after["int8"] != losses_after["bf16"]


def test_overlong_rows_of_text_follow_the_policy(train):
    def tokens(policy):
        spec = {"base_model": "small", "train_dataset": "ragged", "qlora": {"r": 4}, "run": {"max_steps": 1, "micro_batch": 100},
                "data": {"max_seq_len": 64, "packing": "PACKING_MODE_NONE", "overlong": f"OVERLONG_POLICY_{policy}"}}
        return next(event["tokens"] for event in train.job(spec)[1] if event.get("type") == "step")

    lengths = [len(train.server.json("tokenize", "small", "--text", text)["token_ids"]) + 1 for text in ROWS]  # and the end token
    short = [length for length in lengths if length <= 64]
    assert 0 < len(short) < len(lengths)
    assert tokens("SPLIT") == sum(lengths), "no piece is a single token, which cannot be trained"
    assert tokens("TRUNCATE") == sum(min(length, 64) for length in lengths)
    assert tokens("DROP") == sum(short)
    with pytest.raises(AssertionError, match=f"line {len(short) + 1}.*max_seq_len is 64"):
        tokens("ERROR")


def test_an_epoch_ends_with_its_data(train):
    """8 rows in micro-batches of 1, five per step: one pass takes two steps, the second with three micro-batches."""
    spec = {"base_model": "small", "train_dataset": "ragged", "qlora": {"r": 4}, "run": {"epochs": 1, "micro_batch": 1, "grad_accum": 5},
            "data": {"max_seq_len": 160, "packing": "PACKING_MODE_NONE"}}
    name, events = train.job(spec)
    steps = [event for event in events if event.get("type") == "step"]
    lengths = [len(train.server.json("tokenize", "small", "--text", text)["token_ids"]) + 1 for text in ROWS]
    assert len(steps) == 2 and sum(step["tokens"] for step in steps) == sum(lengths)
    job = next(job for job in train.server.json("jobs", "list")["jobs"] if job["output_model"] == name)
    assert job["progress"]["epoch"] == 1.0


def test_only_chosen_linears_are_trained(train):
    """The other linears have no adapter: the first loss is the same, and the loss falls less than with all adapters."""
    alone = train("four", micro_batch=4, qlora={"target_modules": ["q_proj", "down_proj"]})
    all_of_them = train("four", micro_batch=4)
    assert losses(alone)[0] == losses(all_of_them)[0], "B is 0 at the start"
    assert losses(all_of_them)[-1] < losses(alone)[-1] < losses(alone)[0]
    assert 0 < alone[0]["grad_norm"] < all_of_them[0]["grad_norm"]


def test_clipping_limits_the_step(train):
    """Every step sees the same four rows. Adam divides by the size of the gradient plus eps: a gradient far below eps
    moves nothing."""
    free = train("four", micro_batch=4)
    held = train("four", micro_batch=4, optim={"max_grad_norm": 1e-12})
    assert losses(free)[0] == losses(held)[0]
    assert free[0]["grad_norm"] == held[0]["grad_norm"] > 1e-3, "the reported norm is that before clipping"
    assert losses(free)[-1] < losses(free)[0] * 0.99
    assert all(math.isclose(loss, losses(held)[0], rel_tol=1e-4) for loss in losses(held))
    wide = train("four", micro_batch=4, optim={"max_grad_norm": 1e9})
    assert losses(wide) == losses(free)


def test_bf16_is_near_fp32_and_not_the_same(train):
    exact, rounded = (losses(train("ragged", micro_batch=2, qlora={"compute_dtype": dtype}))
                      for dtype in ("COMPUTE_DTYPE_F32", "COMPUTE_DTYPE_BF16"))
    assert exact != rounded
    assert all(math.isclose(a, b, rel_tol=2e-2) for a, b in zip(exact, rounded))


def test_evaluation_set_may_have_another_format(train):
    """Trains on text and evaluates on pairs: the loss is that of the completions of the pairs."""
    evaluations = train("ragged", micro_batch=2, eval_dataset="pairs")
    losses = [event["eval_loss"] for event in evaluations]
    assert len(losses) >= 2 and 0 < losses[-1] < losses[0], losses


def test_held_out_rows_are_evaluated_and_not_trained(train, tmp_path):
    """A run with `eval_fraction` equals one with its trained and its held-out rows as two datasets. The number of
    evaluated tokens shows which rows were held out."""
    # No two pairs of rows have the same total number of tokens.
    rows = [PAGE[9 * i: 9 * i + 30 + extra] for i, extra in enumerate((1, 2, 4, 8, 13, 21, 31, 45))]

    def upload(name, chosen):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": rows[i]}) + "\n" for i in chosen))
        train.server.run("datasets", "upload", path, "--name", name)

    def predicted_tokens(i):  # all but the first of a row, and an end token
        return len(train.server.json("tokenize", "small", "--text", rows[i])["tokens"])

    upload("whole", range(8))
    spec = {"base_model": "small", "train_dataset": "whole", "eval_fraction": 0.25,
            "qlora": {"r": 4, "seed": 5, "compute_dtype": "COMPUTE_DTYPE_F32"},
            "data": {"max_seq_len": 160, "packing": "PACKING_MODE_NONE"},
            "run": {"max_steps": 6, "micro_batch": 2, "eval_every": 3}}
    name, events = train.job(spec)
    evaluations = [event for event in events if event.get("type") == "eval"]
    assert len(evaluations) >= 3, events
    tokens = [predicted_tokens(i) for i in range(8)]
    held_out = [{i, j} for i in range(8) for j in range(i) if tokens[i] + tokens[j] == evaluations[0]["tokens"]]
    assert len(held_out) == 1, (held_out, tokens)
    upload("kept", [i for i in range(8) if i not in held_out[0]])
    upload("held", sorted(held_out[0]))
    del spec["eval_fraction"]
    _, apart = train.job({**spec, "train_dataset": "kept", "eval_dataset": "held"})
    for kind, figure in (("step", "loss"), ("eval", "eval_loss")):
        losses_of = [[event[figure] for event in run if event.get("type") == kind] for run in (events, apart)]
        assert losses_of[0] == losses_of[1] and len(losses_of[0]) >= 3, kind
    # A conversion evaluates the rows that the job held out.
    converted = train.server.json("models", "convert", name, "--to", "int8", "--name", f"{name}-int8")
    assert converted["report"]["eval_tokens"] == evaluations[0]["tokens"], converted
