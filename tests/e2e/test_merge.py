"""Merges an adapter into a bf16 model with the real programs. numpy and PEFT compute the same weights; transformers loads
the export."""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import small_model
from conftest import PAGE, TRAIN
from nf4 import dequantized, read_bf16, to_bf16


@pytest.fixture(scope="module")
def merged(shared, tmp_path_factory):
    """A server with the adapter of a job ("tuned") and the model that it is merged into ("merged"), and the exports of
    both."""
    shared.lines("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "tuned", "--max-steps", 12,
                 *TRAIN, "--watch")
    shared.run("models", "convert", "tuned", "--to", "bf16", "--name", "merged")
    path = tmp_path_factory.mktemp("export")
    shared.run("models", "export", "tuned", "--format", "peft", "--out", path / "peft")
    shared.run("models", "export", "merged", "--format", "hf", "--out", path / "hf")
    return shared, path


def test_merged_weights_are_the_base_plus_the_scaled_product(merged):
    server, path = merged
    model = server.json("models", "get", "merged")
    assert (model["format"], model["origin"]) == ("bf16", "convert")
    got = read_bf16(path / "hf/model.safetensors")
    want = dequantized(server.state / "models/tuned")
    adapter = load_file(path / "peft/adapter_model.safetensors")
    config = json.loads((path / "peft/adapter_config.json").read_text())
    assert got.keys() == want.keys()
    linears = 0
    for name, base in want.items():
        module = "base_model.model." + name.removesuffix(".weight")
        if module + ".lora_A.weight" in adapter:
            linears += 1
            product = adapter[module + ".lora_B.weight"].astype(np.float64) @ adapter[module + ".lora_A.weight"]
            assert np.abs(product).max() > 0
            base = (base + config["lora_alpha"] / config["r"] * product).astype(np.float32)
        # The orders of the f32 sums differ, which may change a rounding to bf16 by one step.
        assert np.abs(got[name] - base).max() <= np.abs(base).max() * 2.0 ** -7, name
        assert (got[name] == to_bf16(base)).mean() > 0.999, name
    assert linears == 21


def test_merged_model_answers_like_its_adapter(merged):
    server, _ = merged
    losses = {name: server.json("score", name, "--text", PAGE[:120])["mean_loss"] for name in ("small", "tuned", "merged")}
    assert abs(losses["merged"] - losses["tuned"]) < 0.1 * (losses["small"] - losses["tuned"]), losses


def test_export_of_an_adapter_as_hf_names_the_conversion(merged, tmp_path):
    server, _ = merged
    result = server.run("models", "export", "tuned", "--format", "hf", "--out", tmp_path / "out", check=False)
    assert result.returncode != 0
    assert "nibble models convert tuned --to bf16" in result.stderr


def test_compare_shows_the_answers_of_both_models(merged, tmp_path):
    server, _ = merged
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PAGE[:30]}) + "\n" + json.dumps({"messages": [{"role": "user", "content": "Who?"}]}) + "\n")
    arguments = ["models", "compare", "small", "tuned", "--prompts", prompts, "--max-tokens", 8]
    rows = server.lines(*arguments)
    assert [row["line"] for row in rows] == [1, 2]
    for key, model in (("a", "small"), ("b", "tuned")):
        alone = server.json("generate", model, "--prompt", PAGE[:30], "--max-tokens", 8)
        assert rows[0][key]["token_ids"] == alone["token_ids"]
    assert rows[0]["equal"] == (rows[0]["a"]["text"] == rows[0]["b"]["text"])
    shown = server.run(*arguments, "--width", 80).stdout
    assert shown.startswith("--- line 1") and "small".ljust(38) + " | tuned\n" in shown
    assert shown.splitlines()[-1].startswith("2 prompts, ")


@pytest.mark.full
def test_transformers_loads_the_merged_model_of_peft(merged):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    peft = pytest.importorskip("peft", exc_type=ImportError)
    server, path = merged
    ours, info = transformers.AutoModelForCausalLM.from_pretrained(path / "hf", dtype=torch.bfloat16, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **{key: value for key, value in small_model.CONFIG.items() if key not in ("architectures", "model_type", "torch_dtype")}))
    tensors = {name: torch.from_numpy(value.copy()) for name, value in dequantized(server.state / "models/tuned").items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    base.load_state_dict(tensors, strict=True)
    theirs = peft.PeftModel.from_pretrained(base, path / "peft").merge_and_unload().to(torch.bfloat16).state_dict()
    state = ours.state_dict()
    assert state.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (state[name] == value).float().mean() > 0.999, name
        assert (state[name].float() - value.float()).abs().max() <= value.float().abs().max() * 2.0 ** -7, name
