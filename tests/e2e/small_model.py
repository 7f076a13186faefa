"""A Llama model of 0.2 M parameters with a byte-level tokenizer, as a Hugging Face directory, made in a second."""
import json
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 320, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "rope_theta": 10000.0, "torch_dtype": "float32", "bos_token_id": 256, "eos_token_id": 257, "attention_bias": False,
    "mlp_bias": False,
}

CHAT_TEMPLATE = ("{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
                 "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}")


def bytes_to_unicode():
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return table


def tokenizer():
    table = bytes_to_unicode()
    special = ["<|begin|>", "<|end|>", "<|start|>"]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in enumerate(special)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {table[b]: b for b in range(256)}, "merges": []},
    }


def weights(seed=0, config=CONFIG):
    rng = np.random.default_rng(seed)
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    q, kv = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]

    def normal(*shape, std=0.08):
        return (rng.standard_normal(shape) * std).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden, std=0.5),
               "model.norm.weight": np.ones(hidden, np.float32)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = 1 + normal(hidden)
        tensors[prefix + "post_attention_layernorm.weight"] = 1 + normal(hidden)
        for name, shape in {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                            "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
                            "mlp.down_proj": (hidden, ffn)}.items():
            tensors[f"{prefix}{name}.weight"] = normal(*shape)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(config["vocab_size"], hidden, std=0.5)
    return tensors


def write(directory, seed=0, **changes):
    """Writes the model; `changes` override fields of CONFIG."""
    config = {**CONFIG, **changes}
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}))
    save_file(weights(seed, config), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def write_printing(directory, seed=0, **changes):
    """Writes a model whose texts are of ASCII's printable characters, differ from seed to seed and prompt to prompt, and do
    not end early."""
    directory = write(directory, seed, tie_word_embeddings=False, **changes)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"] *= 0.3  # so the layers, which see the prompt, decide more
    # No layer changes the first value of the hidden states, so that of a token's row in lm_head works as the token's bias.
    tensors["model.embed_tokens.weight"][:, 0] = 1
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0
    tensors["lm_head.weight"] *= 0.5
    tensors["lm_head.weight"][:, 0] = -20
    tensors["lm_head.weight"][32:127, 0] = 0
    tensors["lm_head.weight"][ord("\""), 0] = 1  # strings of JSON end
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
