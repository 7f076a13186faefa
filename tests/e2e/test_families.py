"""Imports, trains and scores random models of every family. Needs what `tests/run.sh --full` installs."""
import json

import pytest

import small_model
from conftest import PAGE, Server

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
gguf = pytest.importorskip("gguf", exc_type=ImportError)
from logprobs import TOP, compare, golden  # noqa: E402

TEXT = (PAGE * 2)[:256]  # one token a byte
SHAPE = dict(vocab_size=320, hidden_size=64, intermediate_size=176, num_hidden_layers=3, bos_token_id=256, eos_token_id=257,
             pad_token_id=None, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("families") / "state").start()
    yield server
    server.stop()


def random_model(family, **changes):
    """A random model. For Qwen3, whose heads may have any size, it has 4 heads of size 24 and a hidden size of 64."""
    return golden.make(family, **{**SHAPE, **({"head_dim": 24} if family == "qwen3" else {}), **changes})


def save(model, directory, **options):
    model.save_pretrained(directory, **options)
    (directory / "tokenizer.json").write_text(json.dumps(small_model.tokenizer(), ensure_ascii=False), encoding="utf-8")
    return directory


def score(server, name):
    return server.json("score", name, "--text", TEXT, "--top", TOP)


@pytest.mark.parametrize("shards", ["10GB", "100KB"])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_every_logprob_agrees_with_transformers(server, tmp_path, family, shards):
    """Compares the logprobs of 256 tokens, and of the 20 likeliest tokens at each position."""
    changes = {"sliding_window": 256} if family == "mistral" else {}
    model = random_model(family, seed=7, **changes)
    name = f"{family}-{shards}".lower()
    server.run("models", "import", save(model, tmp_path / "hf", max_shard_size=shards), "--name", name, "--dtype", "f32")
    compare(score(server, name), model, len(TEXT), TOP)


# "bitnet-2b4t" is the method bitnet_qat with this preset.
@pytest.mark.parametrize("method, served", [("qlora", "int8"), ("bitnet_qat", "ternary"), ("bitnet-2b4t", "ternary"), ("full", "int8"),
                                            ("int8_mixed", "int8"), ("int8_qt", "int8"), ("lora", "int8")])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_every_family_is_trained_and_served(server, tmp_path, text_file, family, method, served):
    base, name = f"{family}-{method}", f"{family}-{method}-trained"
    server.run("models", "import", save(random_model(family, seed=7), tmp_path / "hf"), "--name", base, "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", base)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"bitnet_qat": {"preset": method}} if method == "bitnet-2b4t" else {method: {}}))
    events = server.lines("jobs", "create", "--spec", spec, "--base", base, "--dataset", base, "--output", name, "--max-steps", 8,
                          "--micro-batch", 2, "--seq-len", 96, "--lr", "5e-3", "--watch")
    losses = [event["loss"] for event in events if event.get("type") == "step"]
    assert len(losses) == 8 and losses[-1] < losses[0] * 0.9, losses
    server.run("models", "convert", name, "--to", served, "--name", f"{name}-{served}")
    verdict = server.json("models", "verify", f"{name}-{served}")
    assert verdict["equal"] is True and verdict["rows"] > 0 and verdict["recorded_by"] == "trainer"
    assert len(server.json("generate", f"{name}-{served}", "--prompt", PAGE[:40], "--max-tokens", 4, "--ignore-eos")["token_ids"]) == 4


def test_a_text_beyond_the_sliding_window_is_refused_by_name(server, tmp_path):
    model = golden.make("mistral", **{**SHAPE, "sliding_window": 100})
    server.run("models", "import", save(model, tmp_path / "hf"), "--name", "windowed", "--dtype", "f32")
    assert len(server.json("score", "windowed", "--text", TEXT[:100])["logprobs"]) == 100
    result = server.run("score", "windowed", "--text", TEXT, check=False)
    assert result.returncode != 0 and "100 positions (its sliding window)" in result.stderr


@pytest.mark.parametrize("config_class", [transformers.Gemma2Config, transformers.Gemma3TextConfig, transformers.GPT2Config,
                                          transformers.MixtralConfig])
def test_other_architectures_are_refused_by_name(server, tmp_path, config_class):
    small = dict(vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=2, head_dim=16) if config_class is not transformers.GPT2Config else dict(
                     vocab_size=320, n_embd=32, n_layer=1, n_head=2)
    model = transformers.AutoModelForCausalLM.from_config(config_class(**small))
    result = server.run("models", "import", save(model, tmp_path / "hf"), "--name", "other", check=False)
    assert result.returncode != 0
    assert type(model).__name__ in result.stderr, result.stderr


def write_gguf(model, architecture, path, label=None):
    """Writes the file as llama.cpp's converter does for these architectures: names from gguf's table, rows
    unchanged."""
    config = model.config
    arch = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    writer = gguf.GGUFWriter(path, label or architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    vocabulary = small_model.tokenizer()
    tokens = [token for token, _ in sorted(vocabulary["model"]["vocab"].items(), key=lambda item: item[1])]
    specials = [token["content"] for token in vocabulary["added_tokens"]]
    tokens += specials + ["ĠĠ"]
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    # gguf.TokenType: 3 is CONTROL, 5 UNUSED, 1 NORMAL.
    writer.add_token_types([3 if t in specials else 5 if t.startswith("<unused") else 1 for t in tokens])
    writer.add_token_merges(["Ġ Ġ"])  # one merge that never applies, because the list must not be empty
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_gguf_file_has_the_logprobs_of_transformers(server, tmp_path, family):
    model = random_model(family, seed=9)
    server.run("models", "import", write_gguf(model, family, tmp_path / "model.gguf"), "--name", f"gguf-{family}", "--dtype", "f32")
    compare(score(server, f"gguf-{family}"), model, len(TEXT), TOP)


def test_other_gguf_architectures_are_refused_by_name(server, tmp_path):
    path = write_gguf(golden.make("qwen2", **SHAPE), "qwen2", tmp_path / "model.gguf", label="phi3")
    result = server.run("models", "import", path, "--name", "other", check=False)
    assert result.returncode != 0 and "phi3" in result.stderr
