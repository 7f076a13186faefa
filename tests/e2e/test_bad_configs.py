"""Invalid specs: each is refused before it takes a place in the queue, and the message names the field and the wanted
value."""
import json

import pytest

TENSOR = "ACTIVATION_SCALE_PER_TENSOR"
QLORA = {"qlora": {}}

# The spec (base_model and train_dataset have defaults), the field that the message names, and the value that it wants.
CASES = [
    ({}, "method", "--method"),
    ({"qlora": {"r": 0}}, "qlora.r", "1 to 4096"),
    ({"qlora": {"r": 4097}}, "qlora.r", "1 to 4096"),
    ({"qlora": {"alpha": 0}}, "qlora.alpha", "above 0"),
    ({"qlora": {"alpha": 2e6}}, "qlora.alpha", "at most 1e+06"),
    ({"qlora": {"dropout": 1}}, "qlora.dropout", "0 <= dropout < 1"),
    ({"qlora": {"dropout": 0.1, "merge_aware_int8": True}}, "qlora.dropout", "0 with merge_aware_int8"),
    ({"qlora": {"dropout": 0.1, "use_dora": True}}, "qlora.dropout", "0 with use_dora"),
    ({"qlora": {"merge_aware_int8": True, "use_dora": True}}, "qlora.use_dora", "false with merge_aware_int8"),
    ({"qlora": {"dropout": -0.1}}, "qlora.dropout", "0 <= dropout < 1"),
    ({"qlora": {"target_modules": ["lm_head"]}}, "qlora.target_modules", "q_proj, k_proj"),
    ({"qlora": {"target_modules": ["q_proj", "q_proj"]}}, "qlora.target_modules", "twice"),
    ({"qlora": {"seed": -1}}, "qlora.seed", "at least 0"),
    ({"qlora": {"lora_plus_ratio": 0.5}}, "qlora.lora_plus_ratio", "1 to 1000"),
    ({"qlora": {"target_pattern": "q_proj"}}, "qlora.target_pattern", "a match of a path such as model.layers"),
    ({"qlora": {"target_pattern": ".*"}}, "qlora.target_pattern", "only linears of the decoder"),
    ({"qlora": {"target_pattern": "(?i).*Q_PROJ"}}, "qlora.target_pattern", "regular expression without \"(?i\""),
    ({"lora": {"target_pattern": ".*(q_proj"}}, "lora.target_pattern", "missing )"),
    ({"lora": {"target_pattern": ".*q_proj", "target_modules": ["q_proj"]}}, "lora.target_pattern", "at most one of the two"),
    ({"qlora": {"rank_pattern": {"q_proj": 0}}}, "qlora.rank_pattern", "1 to 4096"),
    ({"lora": {"rank_pattern": {"q_proj": 4097}}}, "lora.rank_pattern", "1 to 4096"),
    ({"qlora": {"rank_pattern": {"layers.99.q_proj": 4}}}, "qlora.rank_pattern", "a match of a path such as model.layers"),
    ({"lora": {"rank_pattern": {"q_proj": 4, "[qk]_proj": 8}}}, "lora.rank_pattern", "at most one pattern for a linear"),
    ({"qlora": {"alpha_pattern": {"q_proj": 0}}}, "qlora.alpha_pattern", "above 0"),
    ({"qlora": {"alpha_pattern": {"lm_head": 8}}}, "qlora.alpha_pattern", "a match of a path such as model.layers"),
    ({"lora": {"modules_to_save": ["lm_head"]}}, "lora.modules_to_save", "wanted embed_tokens, which trains both"),
    ({"qlora": {"modules_to_save": ["norm", "q_proj"]}}, "qlora.modules_to_save", "wanted only embed_tokens, lm_head and norms"),
    ({"qlora": {"modules_to_save": ["classifier"]}}, "qlora.modules_to_save", "matches no module"),
    ({"lora": {"modules_to_save": ["norm", "norm"]}}, "lora.modules_to_save", "twice"),
    ({"lora": {"modules_to_save": [""]}}, "lora.modules_to_save", "1 to 256"),
    ({"lora": {"modules_to_save": ["embed_tokens"]}, "base_model": "small-int8"}, "lora.modules_to_save", "a base with a float head"),
    ({"qlora": {"compute_dtype": 7}}, "qlora.compute_dtype", "bf16, f32"),
    ({**QLORA, "base_model": "small-int8"}, "base_model", "f32, bf16 or nf4"),
    ({**QLORA, "base_model": "nothing"}, "model", "there is no model named \"nothing\""),
    ({**QLORA, "train_dataset": "nothing"}, "dataset", "there is no dataset named \"nothing\""),
    ({**QLORA, "base_model": "../small"}, "base_model", "letter"),
    ({"bitnet_qat": {"act_bits": 5}}, "bitnet_qat.act_bits", "4, 8 or 16"),
    ({"bitnet_qat": {"preset": "tips"}}, "bitnet_qat.preset", "native, bitnet-tips, bitnet-2b4t, hf"),
    ({"bitnet_qat": {"modules_to_not_convert": ["mlp"]}}, "bitnet_qat.modules_to_not_convert", "down_proj, lm_head"),
    ({"bitnet_qat": {"modules_to_not_convert": ["o_proj", "o_proj"]}}, "bitnet_qat.modules_to_not_convert", "twice"),
    ({"bitnet_qat": {"modules_to_not_convert": [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]}},
     "bitnet_qat.modules_to_not_convert", "method full"),
    ({"bitnet_qat": {"scale_grad": True}}, "bitnet_qat.scale_grad", "round_only or clipped"),
    ({"bitnet_qat": {"ste": 9}}, "bitnet_qat.ste", "identity, round_only, clipped"),
    ({"bitnet_qat": {}, "base_model": "small-int8"}, "base_model", "f32 or bf16"),
    ({"full": {"compute_dtype": "COMPUTE_DTYPE_F32", "param_dtype": "COMPUTE_DTYPE_BF16"}}, "full.param_dtype", "compute_dtype BF16"),
    ({"full": {"init": 5}}, "full.init", "pretrained, random"),
    ({"full": {}, "base_model": "small-int8"}, "base_model", "f32 or bf16"),
    ({"int8_mixed": {"preset": "fast"}}, "int8_mixed.preset", "all, a8w8-qat, switchback, torchao"),
    ({"int8_mixed": {"act_outliers": 17}}, "int8_mixed.act_outliers", "0 to 16"),
    ({"int8_mixed": {"act_outliers": -1}}, "int8_mixed.act_outliers", "0 to 16"),
    ({"int8_mixed": {"forward": False, "grad_input": False, "grad_weight": False}}, "int8_mixed.forward", "method full"),
    ({"int8_mixed": {"forward": False, "act_outliers": 4}}, "int8_mixed.act_outliers", "0 with forward false"),
    ({"int8_mixed": {"act_outliers": 4, "act_scale": TENSOR}}, "int8_mixed.act_outliers", "0 with act_scale PER_TENSOR"),
    ({"int8_mixed": {"forward": False, "act_scale": TENSOR}}, "int8_mixed.act_scale", "PER_TOKEN with forward false"),
    ({"int8_mixed": {"forward": False, "grad_input": False, "weight_scale": "INT8_SCALE_TENSOR"}}, "int8_mixed.weight_scale",
     "no weight_scale with forward and grad_input false"),
    ({"int8_mixed": {"preset": "a8w8-qat", "grad_scale": TENSOR}}, "int8_mixed.grad_scale",
     "PER_TOKEN with grad_input and grad_weight false"),
    ({"int8_mixed": {"forward": False, "stochastic_forward": True}}, "int8_mixed.stochastic_forward", "false with forward false"),
    ({"int8_mixed": {"preset": "a8w8-qat", "stochastic_gradients": True}}, "int8_mixed.stochastic_gradients",
     "false with grad_input and grad_weight false"),
    ({"int8_mixed": {"exact_forward": True, "weight_scale": "INT8_SCALE_TENSOR"}}, "int8_mixed.exact_forward", "weight_scale CHANNEL"),
    ({"int8_mixed": {"exact_forward": True, "act_scale": TENSOR}}, "int8_mixed.exact_forward", "act_scale PER_TOKEN"),
    ({"int8_mixed": {"exact_forward": True, "forward": False}}, "int8_mixed.exact_forward", "forward true"),
    ({"int8_mixed": {"exact_forward": True, "stochastic_forward": True}}, "int8_mixed.exact_forward", "stochastic_forward false"),
    ({"int8_mixed": {"exact_forward": True, "target_modules": ["q_proj"]}}, "int8_mixed.exact_forward", "all seven"),
    ({"int8_mixed": {"target_modules": ["mlp"]}}, "int8_mixed.target_modules", "gate_proj"),
    ({"int8_mixed": {"compute_dtype": "COMPUTE_DTYPE_F32", "master_dtype": "COMPUTE_DTYPE_BF16"}}, "int8_mixed.master_dtype",
     "compute_dtype BF16"),
    ({"int8_mixed": {"master_dtype": 7}}, "int8_mixed.master_dtype", "bf16, f32"),
    ({"int8_qt": {"act_outliers": 17}}, "int8_qt.act_outliers", "0 to 16"),
    ({"int8_qt": {"scale": 3}}, "int8_qt.scale", "channel, tensor"),
    ({"int8_qt": {"init": 5}}, "int8_qt.init", "pretrained, random"),
    ({"int8_qt": {"compute": 3}}, "int8_qt.compute", "int8, float"),
    ({"int8_qt": {"compute": "INT8_QT_COMPUTE_FLOAT", "act_outliers": 4}}, "int8_qt.act_outliers", "0 with compute FLOAT"),
    ({"int8_qt": {}, "base_model": "small-int8"}, "base_model", "f32 or bf16"),
    ({**QLORA, "optim": {"lr": 0}}, "optim.lr", "above 0"),
    ({**QLORA, "optim": {"lr": -1e-3}}, "optim.lr", "above 0"),
    ({**QLORA, "optim": {"beta1": 1}}, "optim.beta1", "0 <= beta1 < 1"),
    ({**QLORA, "optim": {"beta2": -0.5}}, "optim.beta2", "0 <= beta2 < 1"),
    ({**QLORA, "optim": {"eps": 1e-60}}, "optim.eps", "32-bit float"),
    ({**QLORA, "optim": {"weight_decay": -1}}, "optim.weight_decay", "at least 0"),
    ({**QLORA, "optim": {"max_grad_norm": -1}}, "optim.max_grad_norm", "at least 0"),
    ({**QLORA, "optim": {"warmup_ratio": 1.5}}, "optim.warmup_ratio", "0 to 1"),
    ({**QLORA, "optim": {"min_lr_ratio": 2}}, "optim.min_lr_ratio", "0 to 1"),
    ({**QLORA, "optim": {"optimizer": 44}}, "optim.optimizer", "adamw, adamw_8bit, sgd, lion"),
    ({**QLORA, "run": {"epochs": 0}}, "run.epochs", "above 0"),
    ({**QLORA, "run": {"max_steps": 0}}, "run.max_steps", "1 to 100000000"),
    ({**QLORA, "run": {"micro_batch": 0}}, "run.micro_batch", "1 to 65536"),
    ({**QLORA, "run": {"grad_accum": 70000}}, "run.grad_accum", "1 to 65536"),
    ({**QLORA, "run": {"keep_last": 0}}, "run.keep_last", "1 to 1000"),
    ({**QLORA, "run": {"save_every": -1}}, "run.save_every", "0 to 100000000"),
    ({**QLORA, "run": {"eval_every": 5}}, "run.eval_every", "eval_dataset or eval_fraction"),
    ({**QLORA, "run": {"priority": 1001}}, "run.priority", "-1000 to 1000"),
    ({**QLORA, "data": {"max_seq_len": 1}}, "data.max_seq_len", "2 to 1048576"),
    ({**QLORA, "data": {"max_seq_len": 5000}}, "data.max_seq_len", "1024 positions"),
    ({**QLORA, "eval_fraction": 0.9}, "eval_fraction", "at most 0.5"),
    ({**QLORA, "eval_fraction": 0.1, "eval_dataset": "page"}, "eval_fraction", "at most one of the two"),
    ({**QLORA, "resume_from": "job-1"}, "resume_from", "JOB/STEP"),
    ({**QLORA, "resume_from": "job-1/5"}, "checkpoint", "there is no checkpoint \"job-1/5\""),
    ({**QLORA, "warm_start_from": "job-1/five"}, "warm_start_from", "JOB/STEP"),
    ({**QLORA, "warm_start_from": "nothing"}, "model", "there is no model named \"nothing\""),
    ({**QLORA, "warm_start_from": "small"}, "warm_start_from", "wanted an adapter"),
    ({**QLORA, "resume_from": "job-1/5", "warm_start_from": "small"}, "warm_start_from", "at most one of the two"),
    ({**QLORA, "device": {"kind": "CUDA", "ordinal": 7}}, "device", "wanted one of cpu"),
]


def test_at_least_sixty_specs_are_tried():
    assert len(CASES) >= 60


@pytest.mark.parametrize("spec, field, wanted", CASES, ids=lambda value: json.dumps(value) if isinstance(value, dict) else None)
def test_spec_is_refused_before_the_queue(shared, tmp_path, spec, field, wanted):
    jobs = shared.json("jobs", "list")["jobs"]
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"base_model": "small", "train_dataset": "page", **spec}))
    result = shared.run("jobs", "create", "--spec", path, check=False)
    assert result.returncode != 0
    assert field in result.stderr and wanted in result.stderr, result.stderr
    assert shared.json("jobs", "list")["jobs"] == jobs
