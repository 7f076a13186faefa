#!/usr/bin/env python3
"""Writes the seed corpora of the fuzz targets: small valid files, and one file for each known kind of malformed input
(for GGUF: the kinds of llama.cpp's test-gguf, and more). Does not touch files named found-*, which libFuzzer
found. Needs only Python; the result is committed."""
import json
import pathlib
import struct

from constraint_corpus import make_constraint
from infer_request_corpus import make_infer_request, varint
from openai_corpus import make_http_request, make_openai_json

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
CORPUS = HERE / "corpus"


def write(target, name, content):
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# F1 -------------------------------------------------------------------------------------------------------------------
def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors(header, data=b"\0" * 8, length=None):
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else compact(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def make_safetensors():
    put = lambda name, *args, **more: write("safetensors", name, safetensors(*args, **more))
    valid = {"__metadata__": {"format": "pt"}, "a": tensor("BF16", [2, 2]), "b": tensor("F32", [0], [8, 8])}
    put("valid", valid)
    put("padded-header", compact(valid) + "   ")
    put("no-tensor", {}, b"")
    put("header-longer-than-file", valid, length=1 << 20)
    put("header-over-the-limit", valid, length=100_000_001)
    put("length-wraps", valid, length=(1 << 64) - 8)
    put("not-utf8", b'{"\xff\xfe":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}')
    put("deep", '{"a":' + '{"x":' * 70 + "1" + "}" * 71)
    put("duplicate-tensor", '{"a":' + compact(tensor()) + ',"a":' + compact(tensor()) + "}")
    put("duplicate-field", '{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}')
    put("hole", {"a": tensor("F32", [1], [4, 8])})
    put("overlap", {"a": tensor("F32", [1], [0, 4]), "b": tensor("F32", [2], [0, 8])})
    put("end-before-begin", {"a": tensor("F32", [2], [8, 0])})
    put("bytes-after-the-last", {"a": tensor("F32", [1], [0, 4])})
    put("truncated-data", {"a": tensor("F32", [2])}, b"\0" * 4)
    put("offset-wraps", {"a": tensor("F32", [2], [(1 << 64) - 8, 0])})
    put("shape-product-wraps", {"a": tensor("F32", [1 << 32, 1 << 32, 2], [0, 8])})
    put("shape-product-wraps-to-zero", {"a": tensor("F32", [1 << 62, 3, 0], [0, 0])}, b"")
    put("dimension-over-int64", {"a": tensor("F32", [1 << 63, 0], [0, 0])}, b"")
    put("zero-dimension", {"a": tensor("F32", [0, 5], [0, 0])}, b"")
    put("rank-0", {"a": tensor("F32", [], [0, 4])}, b"\0" * 4)
    put("rank-9", {"a": tensor("F32", [1] * 9, [0, 4])}, b"\0" * 4)
    put("unknown-dtype", {"a": tensor("F128", [2])})
    put("half-a-byte", {"a": tensor("F4", [3], [0, 2])}, b"\0" * 2)
    put("negative-offset", {"a": tensor("F32", [2], [-8, 0])})
    put("float-offsets", '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1e30]}}')
    put("shape-of-strings", '{"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}')
    put("name-with-nul", '{"a\\u0000b":' + compact(tensor()) + "}")
    put("nul-in-header", b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}\0{}')
    put("name-is-a-path", {"../../etc/passwd": tensor()})
    put("metadata-not-text", {"__metadata__": {"format": 1}, "a": tensor()})
    put("polyglot-tail", valid, b"\0" * 8 + b"PK\x05\x06" + b"\0" * 18)
    put("array", "[]")
    put("byte-order-mark", "\ufeff" + compact(valid))
    put("leading-space", " \n" + compact(valid))
    put("tensor-is-array", '{"a":["F32",[2],[0,8]]}')
    put("dtype-is-object", '{"a":{"dtype":{"F32":null},"shape":[2],"data_offsets":[0,8]}}')
    for dtype, elements in {"C64": 1, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}.items():
        put("dtype-" + dtype.lower(), {"a": tensor(dtype, [elements])})
    for size in (0, 7, 8):
        write("safetensors", f"first-{size}-bytes", safetensors(valid)[:size])


# F2 -------------------------------------------------------------------------------------------------------------------
def make_manifest():
    put = lambda name, value: write("manifest", name, value if isinstance(value, (str, bytes)) else compact(value))
    entry = {"name": "model.safetensors", "size": 8, "sha256": "0" * 64}
    put("valid", {"version": 1, "files": [entry, {**entry, "name": "a/b"}]})
    put("empty", {"version": 1, "files": []})
    put("version-is-text", {"version": "1", "files": []})
    put("version-2", {"version": 2, "files": []})
    put("files-is-text", {"version": 1, "files": "model.safetensors"})
    for name, change in {"parent": {"name": "../x"}, "parent-inside": {"name": "a/../../x"}, "absolute": {"name": "/etc/passwd"},
                         "dot": {"name": "a/./b"}, "nul": {"name": "a\0b"}, "itself": {"name": "manifest.json"},
                         "no-name": {"name": ""}, "negative-size": {"size": -1}, "huge-size": {"size": 1 << 64},
                         "float-size": {"size": 1e30}, "short-hash": {"sha256": "00"}, "upper-hash": {"sha256": "A" * 64}}.items():
        put("entry-" + name, {"version": 1, "files": [{**entry, **change}]})
    put("entry-twice", {"version": 1, "files": [entry, entry]})
    put("entry-is-text", {"version": 1, "files": ["model.safetensors"]})
    index = json.loads((GOLDEN / "model/hf_sharded_f32/model.safetensors.index.json").read_text())
    put("index-valid", index)
    shards = index["weight_map"]
    first = next(iter(shards))
    put("index-wrong-shard", {"weight_map": {**shards, first: sorted(set(shards.values()))[-1]}})
    put("index-missing-tensor", {"weight_map": {key: value for key, value in shards.items() if key != first}})
    for name, shard in {"path": "../x.safetensors", "absent": "x.safetensors", "not-safetensors": "pytorch_model.bin", "number": 7,
                        "nul": "a\0.safetensors"}.items():
        put("index-" + name, {"weight_map": {first: shard}})
    put("index-map-is-array", {"weight_map": []})
    put("peft", {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "bias": "none", "use_rslora": False,
                 "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"})
    put("peft-patterns", {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ".*\\.(q|v)_proj", "use_dora": True,
                          "rank_pattern": {"layers.1.self_attn.q_proj": 2, "(?=q)": 3}, "alpha_pattern": {"[qv]_proj$": 2.5}})
    put("peft-saved", {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "ensure_weight_tying": True,
                       "modules_to_save": ["norm", "model.embed_tokens", ".", "0.mlp"]})
    put("peft-rank-0", {"peft_type": "LORA", "r": 0, "lora_alpha": 1e308, "target_modules": "all-linear"})
    put("nibble-no-checksum", {"version": 1, "format": "int8", "act_outliers": 2, "kv_dtype": "BF16"})


# F3 -------------------------------------------------------------------------------------------------------------------
def make_json():
    put = lambda name, text: write("json", name, text)
    put("values", '{"a":[1,-2,3.5,1e300,true,false,null,"\\u00e9\\ud83d\\ude42\\n"],"b":{}}')
    for depth in (63, 64, 65, 5000):
        put(f"arrays-{depth}", "[" * depth + "]" * depth)
    put("objects-65", '{"a":' * 65 + "1" + "}" * 65)
    put("never-closed", "[" * 100_000)
    put("duplicate-key", '{"a":1,"a":2}')
    put("lone-surrogate", '"\\ud800"')
    put("not-utf8", b'"\xff\xfe"')
    put("huge-number", "1e999")
    put("huge-integer", "123456789012345678901234567890")
    put("min-int64", "[-9223372036854775808,-9223372036854775809,18446744073709551615]")
    put("nul", b"1\x002")
    put("trailing", "{} x")
    put("bom", b"\xef\xbb\xbf{}")
    put("nan", "[NaN]")
    config = json.loads((GOLDEN / "model/hf_tied_bf16/config.json").read_text())
    put("config", compact(config))
    for name, change in {"zero-heads": {"num_attention_heads": 0}, "negative": {"hidden_size": -32},
                         "huge": {"hidden_size": 1 << 62, "intermediate_size": 1 << 62, "vocab_size": 1 << 62},
                         "heads-do-not-divide": {"num_key_value_heads": 3}, "odd-head": {"head_dim": 7},
                         "text-for-number": {"vocab_size": "112"}, "float-for-number": {"num_hidden_layers": 2.5},
                         "eos-list": {"eos_token_id": [1, 2, -1]},
                         "theta-0": {"rope_parameters": {"rope_theta": 0, "rope_type": "default"}},
                         "llama3": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                        "high_freq_factor": 1.0, "original_max_position_embeddings": 8192}},
                         "rope-is-text": {"rope_parameters": "default"}, "eps-negative": {"rms_norm_eps": -1}}.items():
        put("config-" + name, compact({**config, **change}))


# F4 -------------------------------------------------------------------------------------------------------------------
def make_jsonl():
    put = lambda name, text: write("jsonl", name, text)
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    put("text", '{"text":"one"}\n{"text":"two \\u00e9"}\n')
    put("no-newline-at-end", '{"text":"one"}')
    put("crlf", '{"text":"one"}\r\n{"text":"two"}\r\n')
    put("blank-lines", '\n\n{"text":"one"}\n\n')
    put("pairs", '{"prompt":"a","completion":"b"}\n')
    put("chat", compact(chat) + "\n")
    put("mixed", '{"text":"one"}\n{"prompt":"a","completion":"b"}\n')
    put("bad-second-line", '{"text":"one"}\n{"text":3}\n{"text"\n')
    put("all-bad", "x\n" * 40)
    put("empty", "")
    put("only-newlines", "\n\n\n")
    put("array-line", "[1,2]\n")
    put("no-role", '{"messages":[{"content":"Hi"}]}\n')
    put("messages-not-a-list", '{"messages":{"role":"user"}}\n')
    put("no-messages", '{"messages":[]}\n')
    put("deep-message", '{"messages":[{"role":"user","content":' + "[" * 80 + "]" * 80 + "}]}\n")
    put("not-utf8", b'{"text":"\xff\xfe"}\n')
    put("nul", b'{"text":"a"}\0\n')
    put("bom", b'\xef\xbb\xbf{"text":"a"}\n')
    put("empty-text", '{"text":""}\n')


# F5 -------------------------------------------------------------------------------------------------------------------
def make_tokenizer():
    put = lambda name, text: write("tokenizer", name, text)
    byte_level = json.loads((GOLDEN / "model/hf_tied_bf16/tokenizer.json").read_text())
    put("byte-level", compact(byte_level))
    put("metaspace", compact(json.loads((GOLDEN / "text/hf_llama.json").read_text())) + "\0Tiny \u00e9t\u00e9")
    put("odd-text", compact(byte_level) + "\0\u200b\U0001f642\U0010ffff\u0301 \t\r\n</s><s>")
    vocabulary = {"a": 0, "b": 1, "ab": 2}
    def small(**more):
        return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                "decoder": None, "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]}, **more}
    put("small", compact(small()) + "\0abab")
    put("merge-unknown", compact(small(model={"type": "BPE", "vocab": vocabulary, "merges": ["a c"]})))
    put("negative-id", compact(small(model={"type": "BPE", "vocab": {"a": -1}, "merges": []})))
    put("huge-id", compact(small(model={"type": "BPE", "vocab": {"a": (1 << 32) - 1, "b": 1 << 31}, "merges": []})) + "\0ab")
    put("same-id", compact(small(model={"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []})) + "\0ab")
    put("unigram", compact(small(model={"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -1e300]]})) + "\0abc")
    put("unigram-no-unk", compact(small(model={"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]})) + "\0b")
    put("wordpiece", compact(small(model={"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                                          "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "##b": 2}})) + "\0ab c")
    bad_pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    put("slow-pattern", compact(small(pre_tokenizer=bad_pattern)) + "\0" + "a" * 60 + "!")
    put("broken-pattern", compact(small(pre_tokenizer={**bad_pattern, "pattern": {"Regex": "(?<"}})))
    put("empty-pattern", compact(small(pre_tokenizer={**bad_pattern, "pattern": {"String": ""}})) + "\0ab")
    put("nested-normalizers", '{"version":"1.0","normalizer":' + '{"type":"Sequence","normalizers":[' * 200 + "]}" * 200 + "}")
    put("growing-normalizer", compact(small(normalizer={"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}] * 6})) + "\0" + "a" * 64)
    put("added-token-empty", compact(small(added_tokens=[{"id": 3, "content": "", "single_word": False, "lstrip": False,
                                                          "rstrip": False, "normalized": False, "special": True}])) + "\0ab")
    put("template-processing-unknown", compact(small(post_processor={"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}], "pair": [], "special_tokens": {}})) + "\0ab")
    put("not-json", "tokenizer")
    put("not-utf8", b'{"version":"\xff"}')


# F6 -------------------------------------------------------------------------------------------------------------------
def make_job_spec():
    put = lambda name, value: write("job_spec", name, value if isinstance(value, (str, bytes)) else compact(value))
    base = {"method": "qlora", "base_model": "m", "train_dataset": "d"}
    put("smallest", base)
    full = {**base, "display_name": "n", "eval_dataset": "e", "output_model": "o", "device": "cpu",
            "data": {"format": "chat", "max_seq_len": 128, "packing": "none", "overlong": "truncate", "train_on_prompt": True,
                     "shuffle_seed": 3, "add_special_tokens": False},
            "qlora": {"r": 8, "alpha": 16, "dropout": 0.1, "target_modules": ["q_proj"], "use_rslora": True, "double_quant": False,
                      "compute_dtype": "fp32", "seed": 4},
            "optim": {"lr": 1e-3, "beta1": 0.5, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.1, "max_grad_norm": 0, "schedule": "linear",
                      "warmup_steps": 5, "min_lr_ratio": 0.1},
            "run": {"max_steps": 10, "micro_batch": 1, "grad_accum": 2, "activation_checkpointing": True, "eval_every": 5, "save_every": 5,
                    "keep_last": 1, "seed": 9, "priority": -3}, "labels": {"team": "x"}}
    put("full", full)
    for name, change in {"rank-0": {"qlora": {"r": 0}}, "rank-negative": {"qlora": {"r": -1}}, "rank-huge": {"qlora": {"r": 1 << 62}},
                         "lr-huge": {"optim": {"lr": 1e300}}, "lr-text": {"optim": {"lr": "1"}},
                         "epochs-and-steps": {"run": {"epochs": 1, "max_steps": 1}}, "steps-min": {"run": {"max_steps": -(1 << 63)}},
                         "batch-huge": {"run": {"micro_batch": 1 << 40, "grad_accum": 1 << 40}},
                         "unknown-key": {"optim": {"learning_rate": 1}}, "labels-many": {"labels": {str(i): "x" for i in range(17)}},
                         "labels-not-text": {"labels": {"a": 1}}, "device-odd": {"device": "cuda:-1"},
                         "device-huge": {"device": "cuda:99999999999"}, "method": {"method": "bitnet_qat"},
                         "name-path": {"output_model": "../x"}, "targets-empty": {"qlora": {"target_modules": []}},
                         "targets-unknown": {"qlora": {"target_modules": ["lm_head", 3]}}, "data-null": {"data": None},
                         "patterns": {"qlora": {"target_pattern": ".*[.](q|v)_proj", "use_dora": True, "rank_pattern": {"0.*q_proj": 2},
                                                "alpha_pattern": {"v_proj": 0.5}}},
                         "saved": {"qlora": {"modules_to_save": ["norm", "lm_head"]}},
                         "saved-bad": {"qlora": {"modules_to_save": ["", "."]}},
                         "patterns-bad": {"qlora": {"target_pattern": "(?i)(a{9}){9}[", "rank_pattern": {"": 0}}}}.items():
        put("json-" + name, {**base, **change})
    # Specs that the planner must plan or refuse.
    most = {"max_steps": 10**8, "micro_batch": 1 << 16, "grad_accum": 1 << 16}
    longest, shortest = {"data": {"max_seq_len": 1 << 20}}, {"data": {"max_seq_len": 2}}
    for name, change in {"most": {"run": most, **longest}, "most-epochs": {"run": {"epochs": 1e6, "micro_batch": 1}, **shortest},
                         "fewest-epochs": {"run": {"epochs": 5e-324, "grad_accum": 1 << 16}},
                         "shortest": {"run": {"micro_batch": 1}, **shortest},
                         "rank": {"qlora": {"r": 4096, "compute_dtype": "fp32"}, "run": {"activation_checkpointing": True}},
                         "pairs": {"data": {"format": "prompt_completion", "overlong": "drop", "max_seq_len": 12}},
                         "chat": {"data": {"format": "chat", "train_on_prompt": True, "packing": "none"}, "eval_dataset": "e"},
                         "error": {"data": {"format": "chat", "overlong": "error", "max_seq_len": 4}},
                         "bitnet": {"method": "bitnet_qat",
                         "bitnet_qat": {"preset": "bitnet-2b4t", "act_bits": 16, "act_scale": "per_tensor"}, "run": most},
                         "no-device": {"device": "cuda:7"}}.items():
        put("plan-" + name, {**base, **change})
    put("json-nan", '{"method":"qlora","optim":{"lr":NaN}}')
    text = lambda number, value: bytes([number << 3 | 2]) + varint(len(value)) + value
    put("message-empty", b"")
    for number in range(1, 16):  # fields whose tag is one byte, empty: cheap, and libFuzzer finds the others
        put(f"message-field-{number}", text(number, b""))
    put("message-truncated", b"\x0a\xff\xff\xff\xff\x0f")


# F7 -------------------------------------------------------------------------------------------------------------------
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def gstring(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def gvalue(kind, value):
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(gvalue(element, item) for item in items)
    return gstring(value) if kind == STRING else struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], value)


def gguf(keys, tensors, version=3, magic=b"GGUF", num_tensors=None, num_keys=None, alignment=32, tail=b""):
    """tensors: name, dims (fastest first), type, offset or None, bytes."""
    out = magic + struct.pack("<IQQ", version, len(tensors) if num_tensors is None else num_tensors,
                              len(keys) if num_keys is None else num_keys)
    for key, kind, value in keys:
        out += gstring(key) + struct.pack("<I", kind) + (value if isinstance(value, bytes) and kind != STRING else gvalue(kind, value))
    data = b""
    for name, dims, kind, offset, content in tensors:
        at = len(data) if offset is None else offset
        out += gstring(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", dim) for dim in dims)
        out += struct.pack("<IQ", kind, at)
        data += content + b"\0" * (-len(content) % alignment)
    return out + b"\0" * (-len(out) % alignment) + data + tail


def make_gguf():
    put = lambda name, *args, **more: write("gguf", name, gguf(*args, **more))
    tokens = ["<s>", "</s>", "a", "b", "ab", "c", "d", "e"]
    keys = [("general.architecture", STRING, "llama"), ("llama.block_count", U32, 1), ("llama.context_length", U32, 16),
            ("llama.embedding_length", U32, 4), ("llama.feed_forward_length", U32, 4), ("llama.attention.head_count", U32, 2),
            ("llama.attention.head_count_kv", U32, 1), ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
            ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "smollm"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3] + [1] * 6)), ("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"])),
            ("tokenizer.ggml.bos_token_id", U32, 0), ("tokenizer.ggml.eos_token_id", U32, 1), ("tokenizer.ggml.add_bos_token", BOOL, False),
            ("tokenizer.chat_template", STRING, "{{ messages }}")]
    zeros = lambda elements: b"\0" * (4 * elements)
    layer = [("attn_norm", [4]), ("attn_q", [4, 4]), ("attn_k", [4, 2]), ("attn_v", [4, 2]), ("attn_output", [4, 4]), ("ffn_norm", [4]),
             ("ffn_gate", [4, 4]), ("ffn_up", [4, 4]), ("ffn_down", [4, 4])]
    size = lambda dims: dims[0] * (dims[1] if len(dims) > 1 else 1)
    tensors = [("token_embd.weight", [4, 8], 0, None, zeros(32))]
    tensors += [(f"blk.0.{name}.weight", dims, 0, None, zeros(size(dims))) for name, dims in layer]
    tensors += [("output_norm.weight", [4], 0, None, zeros(4))]
    put("model", keys, tensors)
    put("rope-factors", keys, tensors + [("rope_freqs.weight", [1], 0, None, zeros(1))])
    change = lambda key, kind, value: [(k, kind, value) if k == key else (k, t, v) for k, t, v in keys]
    put("architecture-number", change("general.architecture", U32, 7), tensors)
    put("zero-heads", change("llama.attention.head_count", U32, 0), tensors)
    put("huge-blocks", change("llama.block_count", U32, (1 << 32) - 1), tensors)
    put("huge-embedding", change("llama.embedding_length", U64, 1 << 63), tensors)
    put("fewer-token-types", change("tokenizer.ggml.token_type", ARRAY, (I32, [3])), tensors)
    put("token-twice", change("tokenizer.ggml.tokens", ARRAY, (STRING, ["a"] * 8)), tensors)
    put("bos-out-of-range", change("tokenizer.ggml.bos_token_id", U32, (1 << 32) - 1), tensors)
    spm = change("tokenizer.ggml.model", STRING, "llama")
    put("spm", spm + [("tokenizer.ggml.scores", ARRAY, (F32, [float(-i) for i in range(8)]))], tensors)
    put("scores-nan", spm + [("tokenizer.ggml.scores", ARRAY, (F32, [float("nan")] * 8))], tensors)
    one = [("t", [32], 8, None, b"\0" * 34)]  # Q8_0: a block of 32 elements has 34 bytes
    architecture = keys[:1]
    put("q8", architecture, one)
    for kind, block in {1: 64, 2: 18, 3: 20, 30: 64}.items():  # F16, Q4_0, Q4_1, BF16: bytes of 32 elements
        put(f"type-{kind}", architecture, [("t", [32], kind, None, b"\0" * block)])
    put("magic", architecture, one, magic=b"GGML")
    put("version-1", architecture, one, version=1)
    put("big-endian", architecture, one, version=0x03000000)
    put("many-tensors", architecture, one, num_tensors=1 << 62)
    put("many-keys", architecture, one, num_keys=1 << 62)
    put("unknown-type", architecture, [("t", [32], 99, None, b"\0" * 34)])
    put("no-dimension", architecture, [("token_embd.weight", [], 0, None, b"\0" * 4)])
    put("five-dimensions", architecture, [("t", [1] * 5, 0, None, b"\0" * 4)])
    put("zero-dimension", architecture, [("t", [0, 4], 0, None, b"")])
    put("negative-dimension", architecture, [("t", [(1 << 64) - 1], 0, None, b"\0" * 4)])
    put("product-wraps", architecture, [("t", [1 << 32, 1 << 32], 0, None, b"\0" * 4)])
    put("half-a-block", architecture, [("t", [31], 8, None, b"\0" * 34)])
    put("offset-wraps", architecture, [("t", [32], 8, (1 << 64) - 32, b"\0" * 34)])
    put("offset-hole", architecture, [("t", [32], 8, 32, b"\0" * 34)])
    put("tensor-twice", architecture, one + one)
    put("tail", architecture, one, tail=b"PK\x05\x06" + b"\0" * 40)
    put("key-twice", architecture * 2, one)
    put("key-empty", [("", U32, 1)], one)
    put("key-type-13", [("a", 13, b"\0" * 4)], one)
    put("bool-2", [("a", BOOL, b"\2")], one)
    put("array-of-arrays", [("a", ARRAY, struct.pack("<IQ", ARRAY, 1) + struct.pack("<IQ", U32, 1) + b"\0" * 4)], one)
    put("array-count-wraps", [("a", ARRAY, struct.pack("<IQ", U64, 1 << 61))], one)
    put("strings-count", [("a", ARRAY, struct.pack("<IQ", STRING, 1 << 40))], one)
    put("string-length-wraps", [("a", ARRAY, struct.pack("<IQQ", STRING, 1, (1 << 64) - 1))], one)
    for value in (0, 3, 1 << 31):
        put(f"alignment-{value}", architecture + [("general.alignment", U32, value)], one)
    whole = gguf(architecture, one)
    for length in (0, 3, 4, 8, 16, 24, 32, 60, len(whole) - 1):
        write("gguf", f"first-{length}-bytes", whole[:length])


# F8 -------------------------------------------------------------------------------------------------------------------
def make_chat_template():
    put = lambda name, text: write("chat_template", name, text)
    for path in sorted((GOLDEN / "text/templates").glob("*.jinja")):
        put(path.stem, path.read_text())
    named = [{"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": "{{ bos_token }}"}]
    for name, value in {"config": "{{ messages }}", "config-list": named, "config-name-is-number": [{"name": 3, "template": "x"}],
                        "config-number": 7, "config-list-of-text": ["x"]}.items():
        put(name, compact({"chat_template": value, "bos_token": {"content": "<s>"}, "eos_token": 5}))
    put("messages-not-a-list", "{{ messages }}\0{}")
    put("messages-deep", "{{ messages | tojson }}\0" + "[" * 60 + "]" * 60)
    put("messages-broken", "{{ messages }}\0[")
    put("doubling", "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}")
    put("nested-loops", "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x"
        + "{% endfor %}" * 3)
    put("huge-range", "{% for a in range(99999999999) %}{{ a }}{% endfor %}")
    put("recursion", "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}")
    put("include", "{% include '/etc/passwd' %}{% import 'x' as y %}{% extends 'z' %}")
    put("dunder", "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ messages.__init__.__globals__ }}")
    put("raise", "{{ raise_exception('as told') }}")
    put("deep-expression", "{{ " + "(" * 500 + "1" + ")" * 500 + " }}")
    put("deep-blocks", "{% if true %}" * 300 + "{% endif %}" * 300)
    put("big-repeat", "{{ 'a' * 99999999 }}{{ 'a'.ljust(999999999) }}{{ '%999999999d' % 1 }}")
    put("division", "{{ 1 / 0 }}{{ 1 % 0 }}{{ 9223372036854775807 + 1 }}{{ -9223372036854775808 // -1 }}")
    put("slices", "{{ messages[-99:99:0] }}{{ 'abc'[::-1] }}{{ messages[9223372036854775807] }}")
    put("strftime", "{{ strftime_now('%Y %Q %-d') }}")
    put("unclosed", "{% for m in messages %}{{ m.content }}")
    put("not-utf8", b"{{ '\xff' }}")
    put("tojson-indent", "{{ messages | tojson(indent=99999999) }}")


# F9 -------------------------------------------------------------------------------------------------------------------
INT8, INT8_HEAD, NF4, TERNARY, NF4_FLOAT = range(5)  # packed_weights_fuzz.cc: the first byte
HIDDEN, Q, KV, FFN, VOCAB = 12, 16, 8, 10, 9  # as in SmallConfig there
LAYER = "model.layers.0."
LINEARS = {"self_attn.q_proj": (Q, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN),
           "self_attn.o_proj": (HIDDEN, Q),
           "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN)}
GATE = LAYER + "mlp.gate_proj.weight"


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def packed(name, kind, n, k, tensors):
    """Adds a weight of n rows and k columns as the format stores it (docs/formats.md)."""
    if kind == TERNARY:
        rows = b""
        for row in range(n):
            codes = [(row * 5 + i) % 3 for i in range(k)]
            rows += bytes(sum(code << 2 * at for at, code in enumerate(codes[i:i + 4])) for i in range(0, k, 4))
        tensors[name] = ("U8", [n, (k + 3) // 4], rows)
        tensors[name + "_scale"] = ("F32", [1], floats([0.05]))
    elif kind in (NF4, NF4_FLOAT):
        tensors[name] = ("U8", [n, (k + 1) // 2], bytes(i * 29 % 256 for i in range(n * ((k + 1) // 2))))
        if kind == NF4_FLOAT:
            tensors[name + "_absmax"] = ("F32", [n, 1], floats([0.01 * (i + 1) for i in range(n)]))
            return
        tensors[name + "_absmax"] = ("I8", [n, 1], bytes(i * 7 % 256 for i in range(n)))
        tensors[name + "_absmax_factor"] = ("F32", [1], floats([2500.0]))
        tensors[name + "_absmax_offset"] = ("F32", [1], floats([0.06]))
    else:
        tensors[name] = ("I8", [n, k], bytes((i * 37 % 255 - 127) % 256 for i in range(n * k)))
        tensors[name + "_scale"] = ("F32", [n], floats([0.001 * (i + 1) for i in range(n)]))


def packed_model(kind):
    """Name -> (dtype, shape, bytes)."""
    tensors = {}
    if kind == INT8_HEAD:
        packed("model.embed_tokens.weight", kind, VOCAB, HIDDEN, tensors)
    else:
        tensors["model.embed_tokens.weight"] = ("F32", [VOCAB, HIDDEN], floats([(i % 7 - 3) / 4 for i in range(VOCAB * HIDDEN)]))
    for norm in (LAYER + "input_layernorm", LAYER + "post_attention_layernorm", "model.norm"):
        tensors[norm + ".weight"] = ("F32", [HIDDEN], floats([1.0] * HIDDEN))
    for name, (n, k) in LINEARS.items():
        packed(LAYER + name + ".weight", kind, n, k, tensors)
    if kind == INT8:
        tensors["lm_head.weight"] = ("BF16", [VOCAB, HIDDEN], bytes([0, 0x3f, 0x80, 0xbe]) * (VOCAB * HIDDEN // 2))
    return tensors


def packed_file(kind, tensors, shift=0):
    """Orders wide types first, starting at a multiple of 8 (plus `shift` bytes), so that each is at a multiple of its
    size."""
    header, data = {}, b""
    for name, (dtype, shape, content) in sorted(tensors.items(), key=lambda item: {"F32": 0, "BF16": 1}.get(item[1][0], 2)):
        header[name] = tensor(dtype, shape, (len(data), len(data) + len(content)))
        data += content
    text = compact(header)
    return bytes([kind]) + safetensors(text + " " * (-len(text) % 8 + shift), data)


def make_packed_weights():
    put = lambda name, kind, tensors, **more: write("packed_weights", name, packed_file(kind, tensors, **more))
    models = {"int8": INT8, "int8-head": INT8_HEAD, "nf4": NF4, "ternary": TERNARY, "nf4-float": NF4_FLOAT}
    for name, kind in models.items():
        good = packed_model(kind)
        put(name, kind, good)
        put(name + "-as-another", (kind + 1) % 5, good)
        put(name + "-no-gate", kind, {key: value for key, value in good.items() if key != GATE})
        put(name + "-one-more", kind, {**good, "model.layers.1.mlp.gate_proj.weight": good[GATE]})
        put(name + "-misaligned", kind, good, shift=1)
        dtype, (n, k), content = good[GATE]
        for lie, value in {"transposed": (dtype, [k, n], content), "flat": (dtype, [n * k], content),
                           "short": (dtype, [n, k - 1], content[:n * (k - 1)]),
                           "empty": (dtype, [0, k], b""), "other-type": ("I8" if dtype == "U8" else "U8", [n, k], content),
                           "bool": ("BOOL", [n, k], content), "all-ones": (dtype, [n, k], b"\xff" * len(content)),
                           "lowest": (dtype, [n, k], b"\x80" * len(content)), "zero": (dtype, [n, k], b"\0" * len(content))}.items():
            put(f"{name}-gate-{lie}", kind, {**good, GATE: value})
        scale = GATE + {NF4: "_absmax_factor", NF4_FLOAT: "_absmax"}.get(kind, "_scale")
        shape = good[scale][1]
        size = shape[0]
        for lie, number in {"nan": float("nan"), "inf": float("inf"), "zero": 0.0, "negative": -1.0, "denormal": 1e-45,
                            "huge": 3e38}.items():
            put(f"{name}-scale-{lie}", kind, {**good, scale: ("F32", shape, floats([number] * size))})
        put(name + "-scale-short", kind, {**good, scale: ("F32", [size - 1], floats([1.0] * (size - 1)))})
        put(name + "-scale-f64", kind, {**good, scale: ("F64", [size], b"\0" * (8 * size))})
        put(name + "-no-scale", kind, {key: value for key, value in good.items() if key != scale})
        norm = "model.norm.weight"
        put(name + "-norm-nan", kind, {**good, norm: ("F32", [HIDDEN], floats([float("nan")] * HIDDEN))})
    down = LAYER + "mlp.down_proj.weight"  # ten columns: two codes in a row's last byte
    good = packed_model(TERNARY)
    dtype, shape, content = good[down]
    put("ternary-bits-past-the-row", TERNARY, {**good, down: (dtype, shape, content[:-1] + bytes([content[-1] | 0x10]))})
    put("ternary-code-3", TERNARY, {**good, down: (dtype, shape, bytes([content[0] | 3]) + content[1:])})
    write("packed_weights", "one-byte", b"\0")


# F10 ------------------------------------------------------------------------------------------------------------------
def make_metric_labels():
    for name, text in {"empty": "", "plain": "eos", "quote": 'a"b', "ends-the-label": 'a"} 1\nfake_total 5', "backslash": "\\",
                       "backslash-quote": '\\"',
                       "backslash-n": "\\n", "newline": "a\nb", "crlf": "\r\n", "nul": "a\0b", "nul-alone": "\0", "ansi": "\x1b[31m",
                       "tab": "\t",
                       "braces": "{}=,#", "comment": "# TYPE x counter\n", "accent": "caf\u00e9", "emoji": "\U0001f642",
                       "separator": "\u2028",
                       "surrogate": "\ud800", "not-utf8": b"\xff\xfe", "cut-utf8": b"a\xf0\x9f", "overlong": b"\xc0\xaf", "bom": "\ufeffa",
                       "known": "QUEUE_FULLQUEUE_FULL",
                       "other": "other", "long": "x" * 4096, "long-quotes": '"' * 5000, "infinity": "+Inf", "le": "0.01"}.items():
        write("metric_labels", name, text)


# F11 ------------------------------------------------------------------------------------------------------------------
def make_names():
    for name, text in {"plain": "my-model_1.0", "one": "a", "longest": "a" * 63, "too-long": "a" * 64, "empty": "", "dot": ".",
                       "dots": "..", "up": "../x",
                       "up-inside": "a..b", "hidden": ".a", "flag": "-a", "ends-in-dash": "a-", "slash": "a/b", "absolute": "/etc/passwd",
                       "encoded": "%2e%2e",
                       "backslash": "a\\b", "nul": "a\0b", "newline": "a\nb", "space": "a b", "ansi": "\x1b[31m", "accent": "caf\u00e9",
                       "wide-dot": "\u2024\u2024",
                       "not-utf8": b"\xff", "url": "http://169.254.169.254/", "device": "con", "temporary": "a.tmp.w-0123456789abcdef",
                       "nearly-temporary": "a.tmp.w-0123456789abcdeg", "temporary-of-nothing": ".tmp.w-0123456789abcdef",
                       "step": "step-00000010",
                       "step-long": "step-999999999999999999", "step-too-long": "step-9999999999999999999", "step-short": "step-1",
                       "step-negative": "step--0000001", "token": "after:a", "token-empty": "after:", "token-twice": "after:after:a",
                       "number": "42",
                       "number-negative": "-1", "number-huge": "9223372036854775808", "number-space": " 7"}.items():
        write("names", name, text)


# F12 ------------------------------------------------------------------------------------------------------------------
def make_multipart():
    def part(header, value=b"x", disposition="form-data; "):
        return b"--b\r\nContent-Disposition: " + (disposition + header).encode() + b"\r\n\r\n" + value + b"\r\n"
    end = b"--b--\r\n"
    purpose, file = part("name=purpose", b"fine-tune"), part('name="file"; filename="a.jsonl"', b'{"text": "a"}\r\n--\r\n--c')
    for name, body in {"valid": purpose + file + end, "file-first": file + purpose + end, "empty": b"", "no-end": purpose,
                       "preamble": b"text\r\n" + purpose + end + b"epilogue", "long-preamble": b"a" * 5000,
                       "padded": b"--b \t\r\n" + purpose[5:] + end, "padding-too-long": b"--b" + b" " * 100,
                       "no-header": b"--b\r\n\r\nx\r\n" + end,
                       "other-boundary": b"--bc\r\n" + purpose + end, "cut-boundary": purpose + b"--",
                       "empty-part": part("name=a", b"") + end,
                       "no-name": part("filename=a") + end, "open-quote": part('name="a') + end, "two-names": part("name=a; name=b") + end,
                       "escapes": part('name="a\\"b\\\\"; filename="%22%0D%0A%zz"') + end,
                       "extended": part("name=f; filename*=UTF-8''%e2%82%ac") + end,
                       "extended-latin": part("name=f; filename*=latin1''a") + end, "not-utf8": part("name=f; filename*=UTF-8''%ff") + end,
                       "attachment": part("name=a", disposition="attachment; ") + end, "header-too-long": b"--b\r\nA: " + b"a" * 9000,
                       "many-parts": part("name=a") * 40 + end}.items():
        for size in (1, 7, 255) if name in ("valid", "escapes") else (3,):
            write("multipart", f"{name}-{size}", bytes([size]) + body)


if __name__ == "__main__":
    for make in (make_safetensors, make_manifest, make_json, make_jsonl, make_tokenizer, make_job_spec, make_gguf, make_chat_template,
                 make_packed_weights, make_metric_labels, make_names, make_multipart):
        make()
    for make in (make_infer_request, make_http_request, make_openai_json, make_constraint):
        make(write)
    # Not files to parse: control_fuzz.cc obeys each word, so that the tests see one finding of each kind ("quiet": none).
    # "quotes" must cause none: an error may quote the client's text, even if that looks like internals.
    for order in ("quiet", "throw", "abort", "allocate", "hang", "leak"):
        write("control", order, order)
    write("control", "quotes", r'"\u0073td::string of app.cc:12 at x+0x7ffdeadbeef0: sqlite, SELECT a FROM b, x+\/etc\/passwd"')
