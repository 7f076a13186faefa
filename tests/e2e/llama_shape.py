"""llama_shape.py ADDRESS NAME [--shape 8b] [--seed 0] [--layers N ...]: uploads a Llama of this shape with random bf16
weights to a server and imports it. Its files (config.json, tokenizer, shards and their index) exist only as a stream:
each chunk is generated when it is sent.

Weights are N(0, 0.02), by an inverse CDF over 2^16 equally likely values; norms are 1. The numbers come from
Philox-4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), keyed by seed and tensor, so that any block
of any tensor can be generated without the blocks before it."""
import argparse
import dataclasses
import functools
import hashlib
import json
import math
import statistics
import time

import numpy as np

import small_model
from wire import Api, message, wait_for

BLOCK_BYTES = 1 << 20  # the API's limit of a chunk
STD = 0.02
ONE = 0x3F80  # in bf16


@dataclasses.dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    positions: int
    shard_bytes: int

    def config(self):
        return {**small_model.CONFIG, "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
                "vocab_size": self.vocab, "max_position_embeddings": self.positions, "rope_theta": 500000.0,
                "tie_word_embeddings": False, "torch_dtype": "bfloat16"}

    def tensors(self):
        """Name -> shape, in the order of the files."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            found[prefix + "input_layernorm.weight"] = (self.hidden,)
            for name, shape in {"self_attn.q_proj": (q, self.hidden), "self_attn.k_proj": (kv, self.hidden),
                                "self_attn.v_proj": (kv, self.hidden), "self_attn.o_proj": (self.hidden, q)}.items():
                found[f"{prefix}{name}.weight"] = shape
            found[prefix + "post_attention_layernorm.weight"] = (self.hidden,)
            for name, shape in {"mlp.gate_proj": (self.ffn, self.hidden), "mlp.up_proj": (self.ffn, self.hidden),
                                "mlp.down_proj": (self.hidden, self.ffn)}.items():
                found[f"{prefix}{name}.weight"] = shape
        return {**found, "model.norm.weight": (self.hidden,), "lm_head.weight": (self.vocab, self.hidden)}

    def parameters(self):
        return sum(map(math.prod, self.tensors().values()))

    def largest_bytes(self):
        """Size of the largest tensor in bf16."""
        return 2 * max(map(math.prod, self.tensors().values()))


SHAPES = {
    # Llama 3 8B: 8.03 B parameters.
    "8b": Shape(hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, positions=8192,
                shard_bytes=5_000_000_000),
    # 0.50 B parameters: memory that grows with the weights exceeds that of the programs themselves.
    "middle": Shape(hidden=1536, layers=16, heads=12, kv_heads=4, head_dim=128, ffn=4096, vocab=32000, positions=2048,
                    shard_bytes=400_000_000),
    # 51 M parameters: a test takes about a minute.
    "small": Shape(hidden=512, layers=12, heads=8, kv_heads=4, head_dim=64, ffn=1792, vocab=8192, positions=1024, shard_bytes=40_000_000),
}


@functools.lru_cache(maxsize=None)
def inverse_cdf():
    """2^16 equally likely bf16 values."""
    normal = statistics.NormalDist(0, STD)
    exact = np.array([normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)], np.float32)
    bits = exact.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)  # rounds to nearest even


def blocks(seed, index, name, shape):
    """Yields the bytes of a tensor, at most 1 MiB at a time."""
    left = 2 * math.prod(shape)
    draws = BLOCK_BYTES // 8  # 64-bit draws per block; one step of Philox's counter yields four
    block = 0
    while left > 0:
        size = min(left, BLOCK_BYTES)
        if name.endswith("norm.weight"):
            values = np.full(size // 2, ONE, np.uint16)
        else:
            raw = np.random.Philox(key=seed << 64 | index, counter=block * (draws // 4)).random_raw(draws)
            values = inverse_cdf().take(raw.view(np.uint16)[:size // 2])
        yield values.astype("<u2", copy=False).tobytes()
        left -= size
        block += 1


def shards(shape):
    """Maps the name of each file to its tensors."""
    files, size = [{}], 0
    for name, dims in shape.tensors().items():
        size += 2 * math.prod(dims)
        if size > shape.shard_bytes and files[-1]:
            files.append({})
            size = 2 * math.prod(dims)
        files[-1][name] = dims
    return {f"model-{i:05}-of-{len(files):05}.safetensors": file for i, file in enumerate(files, 1)}


def header(tensors):
    """Returns the length and the header of a safetensors file, as bytes, and the size of its data."""
    at, entries = 0, {"__metadata__": {"format": "pt"}}
    for name, dims in tensors.items():
        end = at + 2 * math.prod(dims)
        entries[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def files(shape, seed=0):
    """Yields (name, size, iterator over the bytes) for each file."""
    order = {name: index for index, name in enumerate(shape.tensors())}
    parts = shards(shape)
    index = {"metadata": {"total_size": 2 * shape.parameters()}, "weight_map": {name: file for file in parts for name in parts[file]}}
    texts = {"config.json": shape.config(), "tokenizer.json": small_model.tokenizer(), "model.safetensors.index.json": index,
             "tokenizer_config.json": {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": small_model.CHAT_TEMPLATE}}
    for name, value in texts.items():
        data = json.dumps(value).encode()
        yield name, len(data), iter([data])
    for file, tensors in parts.items():
        head, size = header(tensors)

        def content(tensors=tensors, head=head):
            yield head
            for name, dims in tensors.items():
                yield from blocks(seed, order[name], name, dims)
        yield file, len(head) + size, content()


def upload(api, shape, seed=0, timeout=7200):
    """Returns the upload's id and the number of bytes sent."""
    invoke, request = api.bind(api.channel.stream_unary, "ModelService", "UploadModel")
    digest, sent = hashlib.sha256(), 0

    def messages():
        nonlocal sent
        yield request(header={"name": "llama_shape", "size_bytes": sum(size for _, size, _ in files(shape, seed))})
        for name, size, content in files(shape, seed):
            yield request(file={"path": name, "size_bytes": size})
            for chunk in content:
                digest.update(chunk)
                sent += len(chunk)
                yield request(chunk=chunk)
        yield request(finish={"sha256": digest.hexdigest()})

    return invoke(messages(), timeout=timeout).upload_id, sent


def send(api, name, shape, seed=0):
    """Uploads and imports the model; returns the bytes sent and the seconds of each step."""
    began = time.monotonic()
    upload_id, sent = upload(api, shape, seed)
    uploaded = time.monotonic()
    wait_for(api, api.call("ModelService", "ImportModel", message("ImportModelRequest", upload_id=upload_id, name=name)))
    return sent, uploaded - began, time.monotonic() - uploaded


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT of nibbled")
    parser.add_argument("name", help="name for the model on the server")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--seed", type=int, default=0)
    for field in dataclasses.fields(Shape):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, help="override this field of the shape")
    given = vars(parser.parse_args())
    changes = {field.name: given[field.name] for field in dataclasses.fields(Shape) if given[field.name] is not None}
    shape = dataclasses.replace(SHAPES[given["shape"]], **changes)
    api = Api(given["address"])
    sent, upload_s, import_s = send(api, given["name"], shape, given["seed"])
    print(f"{shape.parameters() / 1e9:.2f} B parameters: {sent} bytes sent in {upload_s:.1f} s, imported in {import_s:.1f} s")
    api.close()


if __name__ == "__main__":
    main()
