#!/usr/bin/env python3
"""Compares nibbled (int8) with llama.cpp (Q8_0) in decoding one stream: a Llama shape of 1.17 B random weights, 8-bit
heads, 2 threads.

usage: peers_decode.py TOKENIZER_SOURCE.gguf WORK_DIR [--bin build/release/bin] [--turns 5] [--tokens 48] [--json OUT.json]
Needs gguf, numpy, llama-cpp-python. WORK_DIR takes about 8 GB and keeps the models for a second run. The two programs
take turns; the results are medians over the turns after the first one. Checks that every answer of nibbled has all its
tokens, and the same tokens in every turn.
"""
import argparse
import ctypes
import json
import pathlib
import statistics
import subprocess
import sys
import time

import gguf
import llama_cpp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from soon import soon

HIDDEN, LAYERS, HEADS, KV, FFN = 2048, 16, 32, 8, 8192
HEAD_DIM = HIDDEN // HEADS


def write_f16(source, path):
    fields = gguf.GGUFReader(source).fields
    vocab = len(fields["tokenizer.ggml.tokens"].data)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for key, field in fields.items():
        if not key.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        elif kind == gguf.GGUFValueType.STRING:
            writer.add_string(key, value)
        elif kind == gguf.GGUFValueType.BOOL:
            writer.add_bool(key, value)
        else:
            writer.add_uint32(key, int(value))
    rng = np.random.default_rng(0)

    def normal(rows, cols):
        return (rng.standard_normal((rows, cols), dtype=np.float32) * 0.02).astype(np.float16)

    writer.add_tensor("token_embd.weight", normal(vocab, HIDDEN))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("output.weight", normal(vocab, HIDDEN))
    for layer in range(LAYERS):
        for name, rows, cols in (("attn_q", HIDDEN, HIDDEN), ("attn_k", KV * HEAD_DIM, HIDDEN), ("attn_v", KV * HEAD_DIM, HIDDEN),
                                 ("attn_output", HIDDEN, HIDDEN), ("ffn_gate", FFN, HIDDEN), ("ffn_up", FFN, HIDDEN),
                                 ("ffn_down", HIDDEN, FFN)):
            writer.add_tensor(f"blk.{layer}.{name}.weight", normal(rows, cols))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return vocab


class LlamaCpp:
    def __init__(self, path):
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 1024, 512, 512, 2, 2
        self.context = llama_cpp.llama_init_from_model(self.model, params)

    def decode(self, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        assert llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0

    def tokens_per_s(self, prompt, count):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.decode(prompt)
        llama_cpp.llama_synchronize(self.context)
        began = time.perf_counter()
        for i in range(count):
            self.decode([11 + i])  # any token costs the same
        llama_cpp.llama_synchronize(self.context)
        return count / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    llama_cpp.llama_backend_init()
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    f16, q8 = args.work / "f16.gguf", args.work / "q8_0.gguf"
    if not q8.exists():
        write_f16(args.source, f16)
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, 2
        params.output_tensor_type = params.token_embedding_type = 8  # Q8_0
        assert llama_cpp.llama_model_quantize(str(f16).encode(), str(q8).encode(), ctypes.byref(params)) == 0
    peer_bytes = sum(tensor.n_bytes for tensor in gguf.GGUFReader(q8).tensors if tensor.name != "token_embd.weight")
    state = args.work / "state"
    (state / "server.json").unlink(missing_ok=True)
    server = subprocess.Popen([args.bin / "nibbled", "--state_dir", state, "--grpc_address", "127.0.0.1:0", "--http_address", "127.0.0.1:0",
                               "--threads", "2"], stderr=subprocess.DEVNULL)
    try:
        soon(lambda: server.poll() is not None or (state / "server.json").exists(), "nibbled has started", 600)
        assert server.poll() is None, "nibbled did not start"
        nibble = [args.bin / "nibble", "--server", json.loads((state / "server.json").read_text())["grpc_address"], "--json"]

        def run(*arguments):
            return json.loads(subprocess.run(nibble + list(map(str, arguments)), check=True, capture_output=True, text=True).stdout)

        if "int8" not in [model["name"] for model in run("models", "list")["models"]]:
            run("models", "import", f16, "--name", "float", "--dtype", "bf16")
            run("models", "convert", "float", "--to", "int8", "--name", "int8")
        # The bytes that each token reads: codes and scales of every linear layer and of the head, and the norms.
        widths = [(HIDDEN, HIDDEN), (KV * HEAD_DIM, HIDDEN), (KV * HEAD_DIM, HIDDEN), (HIDDEN, HIDDEN),  # q, k, v, o
                  (FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)]  # gate, up, down
        vocab = run("models", "get", "int8")["architecture"]["vocab_size"]
        our_bytes = sum(n * k + 4 * n for n, k in widths) * LAYERS + vocab * HIDDEN + 4 * vocab + 4 * HIDDEN * (2 * LAYERS + 1)
        peer = LlamaCpp(q8)
        prompt = "the keeper of the light walked down to the harbour"
        ids = run("tokenize", "int8", "--text", prompt)["token_ids"]
        ours, theirs, answers = [], [], set()
        for turn in range(args.turns + 1):
            answer = run("generate", "int8", "--prompt", prompt, "--max-tokens", args.tokens, "--ignore-eos")
            assert len(answer["token_ids"]) == args.tokens
            answers.add(tuple(answer["token_ids"]))
            rate = (args.tokens - 1) / answer["usage"]["decode_ms"] * 1000
            peer_rate = peer.tokens_per_s(ids, args.tokens)
            if turn > 0:  # the first turn warms both
                ours.append(rate)
                theirs.append(peer_rate)
        assert len(answers) == 1, "the same prompt gave different tokens"
    finally:
        server.terminate()
        server.wait()
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    for name, rates, size in (("nibbled int8", ours, our_bytes), ("llama.cpp Q8_0", theirs, peer_bytes)):
        rate = statistics.median(rates)
        print(f"{name}: {rate:.1f} tokens/s (median of {len(rates)}, {min(rates):.1f}-{max(rates):.1f}), "
              f"reads {size / 1e9:.3f} GB per token = {rate * size / 1e9:.1f} GB/s")
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    print(f"{cpu}: {ratio:.2f}x llama.cpp (median of the turns' ratios)")
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu, "ours": ours, "peer": theirs, "our_bytes": our_bytes, "peer_bytes": peer_bytes,
                                         "ratio": ratio}, indent=1))


if __name__ == "__main__":
    main()
