"""Makes tests/golden/model/bitnet and bitnet_bias: tiny models in transformers' "bitnet" checkpoint format, with both
linear classes, and the logprobs that transformers computes with them in f32. Run it in a virtual environment with

    transformers==5.23.0 accelerate==1.15.0 safetensors==0.8.0 tokenizers==0.23.3 numpy==2.4.6 torch==2.11.0

    TORCHDYNAMO_DISABLE=1 python tests/golden/model/make_bitnet_golden.py [OUT]

Writes both folders to OUT (default: the script's folder). In bitnet all models have the same weights, in the form of
BitNet b1.58 2B-4T (sub-norms, relu^2), except "rms_...": a Llama with a norm before every linear. In bitnet_bias each
model is a Llama whose linears all have a bias. Everything is seeded: the same versions write the same bytes.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.bitnet import pack_weights

import make_family_golden as family_golden
from make_model_golden import tokenizer_json

HERE = pathlib.Path(__file__).resolve().parent

# linear_class, quantization_mode, weights packed
CLASSES = {"bitlinear": ("bitlinear", "offline", True), "auto_packed": ("autobitlinear", "offline", True),
           "auto_float": ("autobitlinear", "offline", False), "auto_online": ("autobitlinear", "online", False),
           "rms_norm": ("bitlinear", "offline", True), "rms_online": ("autobitlinear", "online", False),
           "bias_bitlinear": ("bitlinear", "offline", True), "bias_packed": ("autobitlinear", "offline", True),
           "bias_float": ("autobitlinear", "offline", False), "bias_online": ("autobitlinear", "online", False)}

# By folder. tests/e2e/test_hf_bitnet.py makes the others: "..._float" have the codes of "..._packed", "..._online"
# their masters.
GOLDEN = {"bitnet": ("bitlinear", "auto_packed", "auto_online", "rms_norm"), "bitnet_bias": ("bias_bitlinear", "bias_packed")}
# Of the first 3000 seeds, those whose activations stay furthest from a border between two codes (1.5e-6 and 2.3e-6 of
# their size), so that no order of sums changes a code.
BIAS_SEEDS = {"bias_bitlinear": 2120, "bias_packed": 612}


def ternarise(weight):
    """The formula of the training tips: the codes and their scale."""
    scale = weight.float().abs().mean().clamp(min=1e-5)
    return (weight.float() / scale).round().clamp(-1, 1), scale


def is_linear(name):
    return "_proj." in name and name.endswith(".weight") and "rms_norm" not in name


def has_norms(name):
    return name.startswith("rms_")


def has_biases(name):
    return name.startswith("bias_")


def state_of(model, name):
    """The masters of `model`, in the form of a checkpoint of this class."""
    linear_class, mode, packed = CLASSES[name]
    state = {}
    for key, value in model.state_dict().items():
        if not is_linear(key) or mode == "online":
            state[key] = value.clone()
            continue
        codes, scale = ternarise(value)
        state[key] = pack_weights(codes.clone()) if packed else codes
        state[key + "_scale"] = (1 / scale if linear_class == "bitlinear" else scale).reshape(1)
    if has_norms(name) and not any(".rms_norm." in key for key in state):  # a model trained with them has its own norms
        generator = torch.Generator().manual_seed(5)
        for key, value in model.state_dict().items():
            if is_linear(key):
                state[key.removesuffix("weight") + "rms_norm.weight"] = torch.rand(value.shape[1], generator=generator) + 0.5
    return {key: value.contiguous() for key, value in state.items()}


def save(model, name, directory, eps=1e-5, dtype=torch.float32):
    directory.mkdir(parents=True)
    linear_class, mode, _ = CLASSES[name]
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [type(model).__name__]
    config["dtype"] = str(dtype).removeprefix("torch.")
    config["quantization_config"] = {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": mode,
                                     "modules_to_not_convert": ["lm_head"], "use_rms_norm": has_norms(name), "rms_norm_eps": eps}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = {key: value.to(dtype) if value.is_floating_point() else value for key, value in state_of(model, name).items()}
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


def load(directory, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, device_map="cpu").eval()


def make(name, **changes):
    if has_norms(name):
        changes = {"mlp_bias": False, **changes}
    elif has_biases(name):
        changes = {"attention_bias": True, "mlp_bias": True, "seed": BIAS_SEEDS.get(name, 0), **changes}
    return family_golden.make("llama" if has_norms(name) or has_biases(name) else "bitnet", **changes)


def main(out):
    ids = family_golden.token_ids()
    for group, names in GOLDEN.items():
        shutil.rmtree(out / group, ignore_errors=True)
        answers = {}
        for name in names:
            save(make(name), name, out / group / name)
            answers[name] = {"token_ids": ids, "logprobs": [round(x, 6) for x in family_golden.logprobs(load(out / group / name), ids)]}
        tokenizer_json().save(str(out / group / "tokenizer.json"))
        (out / group / "logprobs.json").write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
