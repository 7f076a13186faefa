"""Imports PEFT adapters and exports shards and compressed-tensors with the real programs; numpy or transformers reads
the exports."""
import json
import shutil
import struct

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import small_model
from conftest import PAGE, TRAIN

PROMPT = "The keeper of the light"


@pytest.fixture(scope="module")
def trained(shared, tmp_path_factory):
    """A server with the adapter of a job, and that adapter exported in the format of PEFT."""
    shared.lines("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "tuned", "--max-steps", 12,
                 *TRAIN, "--watch")
    adapter = tmp_path_factory.mktemp("export") / "adapter"
    shared.run("models", "export", "tuned", "--format", "peft", "--out", adapter)
    return shared, adapter


def test_reimported_adapter_is_the_same_model(trained):
    server, adapter = trained
    tuned = server.json("models", "get", "tuned")
    with safe_open(adapter / "adapter_model.safetensors", "np") as exported_adapter:
        assert exported_adapter.metadata()["nibble_base_digest"] == tuned["base_digest"]
    again = server.json("models", "import", adapter, "--name", "again", "--base", "small")
    assert again["format"] == "lora" and again["base_model"] == "small"
    assert again["origin"] == "import" and again["source"] == "peft"
    assert (again["digest"], again["base_digest"]) == (tuned["digest"], tuned["base_digest"])
    answers = [server.json("generate", name, "--prompt", PROMPT, "--max-tokens", 12, "--ignore-eos")["token_ids"]
               for name in ("tuned", "again")]
    assert answers[0] == answers[1] and len(answers[0]) == 12
    for name in ("tuned", "again"):
        server.run("models", "convert", name, "--to", "int8", "--name", f"{name}-int8")
    assert server.json("models", "get", "again-int8")["digest"] == server.json("models", "get", "tuned-int8")["digest"]
    assert server.json("models", "verify", "again-int8")["equal"] is True


def test_adapter_changes_the_answers_of_its_base(trained):
    server, adapter = trained
    server.run("models", "import", adapter, "--name", "changed", "--base", "small")
    scores = [server.json("score", name, "--text", PAGE[:80])["logprobs"][1:] for name in ("small", "changed")]
    assert sum(scores[1]) > sum(scores[0]), "it was trained on this page"


def edit_config(**changes):
    def edit(path):
        config = json.loads((path / "adapter_config.json").read_text())
        config.update(changes)
        (path / "adapter_config.json").write_text(json.dumps(config))
    return edit


def edit_tensors(change, **metadata):
    def edit(path):
        file = path / "adapter_model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt", **metadata})
    return edit


Q_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def wider(tensors):
    tensors[Q_A] = np.ones((4, 65), np.float32)


def missing(tensors):
    del tensors[Q_A]


def head(tensors):
    tensors["base_model.model.lm_head.weight"] = np.ones((320, 64), np.float32)


def truncated(path):
    file = path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def lying(path):
    """Makes the file claim a header of 1 TiB."""
    file = path / "adapter_model.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 40) + file.read_bytes()[8:])


SPOILED = {
    "other_weights": (edit_tensors(lambda tensors: None, nibble_base_digest="d" * 64), ["BASE_MISMATCH", "d" * 64]),
    "wider": (edit_tensors(wider), ["ADAPTER_SHAPE", Q_A, "[4, 65]", "[4, 64]"]),
    "missing": (edit_tensors(missing), ["ADAPTER_SHAPE", Q_A, "missing"]),
    "head": (edit_tensors(head), ["ADAPTER_SHAPE", "lm_head"]),
    "not_lora": (edit_config(peft_type="IA3"), ["MODEL_FORMAT", "IA3"]),
    "dora": (edit_config(use_dora=True), ["ADAPTER_SHAPE", "q_proj.lora_magnitude_vector", "missing"]),
    "bias": (edit_config(bias="all"), ["MODEL_FORMAT", "bias"]),
    "saved_head": (edit_config(modules_to_save=["lm_head"]), ["MODEL_FORMAT", "modules_to_save", "wanted embed_tokens"]),
    "saved_linear": (edit_config(modules_to_save=["down_proj"]), ["MODEL_FORMAT", "modules_to_save", "down_proj"]),
    "saved_apart": (edit_config(modules_to_save=["embed_tokens"]), ["MODEL_FORMAT", "modules_to_save", "ensure_weight_tying"]),
    "saved_missing": (edit_config(modules_to_save=["model.norm"]), ["ADAPTER_SHAPE", "model.norm", "missing"]),
    "ranks": (edit_config(rank_pattern={"q_proj": 2}), ["ADAPTER_SHAPE", Q_A, "[4, 64]", "[2, 64]"]),
    "pattern": (edit_config(rank_pattern={"(?=q)q_proj": 2}), ["MODEL_FORMAT", "rank_pattern"]),
    "classifier": (edit_config(task_type="SEQ_CLS"), ["MODEL_FORMAT", "task_type"]),
    "targets": (edit_config(target_modules=["q_proj", "router"]), ["MODEL_FORMAT", "target_modules"]),
    "truncated": (truncated, ["MODEL_FORMAT", "adapter_model.safetensors"]),
    "lying": (lying, ["MODEL_FORMAT", "adapter_model.safetensors"]),
}


@pytest.mark.parametrize("case", SPOILED)
def test_adapter_that_does_not_fit_is_refused_by_name_and_leaves_nothing(trained, tmp_path, case):
    server, adapter = trained
    spoil, names = SPOILED[case]
    path = shutil.copytree(adapter, tmp_path / "adapter")
    spoil(path)
    result = server.run("models", "import", path, "--name", "bad", "--base", "small", check=False)
    assert result.returncode != 0
    for name in names:
        assert name in result.stderr, result.stderr
    assert "bad" not in [model["name"] for model in server.json("models", "list")["models"]]


@pytest.mark.parametrize("flags, names", [([], ["base: is not set"]), (["--base", "small-ternary"], ["ADAPTER_BASE", "wanted nf4"]),
                                          (["--base", "nobody"], ["(MODEL)", "nobody"])], ids=["none", "ternary", "unknown"])
def test_base_that_cannot_carry_an_adapter_is_refused(trained, flags, names):
    server, adapter = trained
    result = server.run("models", "import", adapter, "--name", "bad", *flags, check=False)
    assert result.returncode != 0
    for name in names:
        assert name in result.stderr, result.stderr


def exported(path):
    """All tensors of a directory, and the files that they are in."""
    files = sorted(path.glob("*.safetensors"))
    tensors = {}
    for file in files:
        part = load_file(file)
        assert not tensors.keys() & part.keys()
        tensors.update(part)
    return tensors, files


def test_export_above_the_limit_is_sharded_with_an_index(shared, tmp_path):
    shared.run("models", "export", "small", "--format", "hf", "--max-shard-bytes", 100_000, "--out", tmp_path / "out")
    tensors, files = exported(tmp_path / "out")
    assert len(files) > 2
    assert [file.name for file in files] == [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert index["weight_map"] == {name: file.name for file in files for name in load_file(file)}
    want = small_model.weights()
    assert tensors.keys() == want.keys()
    for name, value in want.items():
        assert np.array_equal(tensors[name], value), name
    shared.run("models", "import", tmp_path / "out", "--name", "from-shards", "--dtype", "f32")
    assert shared.json("models", "get", "from-shards")["digest"] == shared.json("models", "get", "small")["digest"]


@pytest.fixture(scope="module")
def portable(shared):
    shared.run("models", "convert", "small", "--to", "int8", "--act-outliers", 0, "--head", "bf16", "--name", "portable")
    return shared


def test_compressed_tensors_hold_our_codes_and_scales(portable, tmp_path):
    portable.run("models", "export", "portable", "--format", "compressed-tensors", "--out", tmp_path / "out")
    quantization = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert quantization["quant_method"] == "compressed-tensors" and quantization["format"] == "int-quantized"
    assert quantization["ignore"] == ["lm_head"] and quantization["config_groups"]["group_0"]["targets"] == ["Linear"]
    floats = small_model.weights()
    linears = [name for name in floats if name.endswith("_proj.weight")]
    # numpy does not support bf16, the type of the embedding: compare only the linears.
    with safe_open(tmp_path / "out/model.safetensors", "np") as theirs, \
            safe_open(portable.state / "models/portable/model.safetensors", "np") as ours:
        assert set(theirs.keys()) == set(ours.keys())
        assert len(linears) == 21 and sum(name.endswith("_scale") for name in theirs.keys()) == 21
        for name in linears:
            codes, scale = theirs.get_tensor(name), theirs.get_tensor(name + "_scale")
            assert codes.dtype == np.int8 and scale.dtype == np.float32 and scale.shape == (codes.shape[0], 1)
            value = codes.astype(np.float32) * scale
            assert np.array_equal(value, ours.get_tensor(name).astype(np.float32) * ours.get_tensor(name + "_scale")[:, None]), name
            # Half a code is the error of rounding; 0.01 allows for the f32 operations.
            assert np.abs(value - floats[name]).max() <= 0.51 * scale.max(), name


def test_other_formats_are_not_exported_as_compressed_tensors(portable, tmp_path):
    for name, why in [("small", "f32"), ("small-int8", "outliers"), ("small-ternary", "ternary")]:
        result = portable.run("models", "export", name, "--format", "compressed-tensors", "--out", tmp_path / name, check=False)
        assert result.returncode != 0 and why in result.stderr, result.stderr


@pytest.mark.full
@pytest.mark.parametrize("saved", [{}, {"modules_to_save": ["embed_tokens", "norm"], "ensure_weight_tying": True}],
                         ids=["linears", "saved"])
def test_adapter_made_by_peft_has_the_logprobs_of_peft(shared, tmp_path, saved):
    """A random rsLoRA adapter saved by PEFT, alone or with copies of the embedding, which is the head too, and of all norms:
    the remaining difference comes from our rounding to bf16 before each linear."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    peft = pytest.importorskip("peft", exc_type=ImportError)
    from logprobs import worst_difference
    from nf4 import dequantized
    from test_peft import LINEARS
    four, imported = ("four-saved", "from-peft-saved") if saved else ("four", "from-peft")
    shared.run("models", "convert", "small", "--to", "nf4", "--name", four)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **{key: value for key, value in small_model.CONFIG.items() if key not in ("architectures", "model_type", "torch_dtype")}))
    tensors = {name: torch.from_numpy(value.copy()) for name, value in dequantized(shared.state / f"models/{four}").items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, strict=True)
    torch.manual_seed(5)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=4, use_rslora=True, target_modules=LINEARS,
                                                         task_type="CAUSAL_LM", **saved)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
        adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
        shared.run("models", "import", tmp_path / "adapter", "--name", imported, "--base", four)
        with_adapter, without = (worst_difference(shared.json("score", name, "--text", PAGE[:120]), adapted) for name in (imported, four))
    print(f"worst difference of a logprob: {with_adapter:.2e}, without the adapter {without:.2e}")
    assert with_adapter < 0.2 and without > 3 * with_adapter


@pytest.mark.full
def test_transformers_reads_shards(shared, tmp_path):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    shared.run("models", "export", "small", "--format", "hf", "--max-shard-bytes", 100_000, "--out", tmp_path / "out")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    state = model.state_dict()
    for name, value in small_model.weights().items():
        assert np.array_equal(state[name].numpy(), value), name
