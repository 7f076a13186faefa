"""Reads weights without the code of the programs."""
import json

import numpy as np
from safetensors.numpy import load_file

# QLoRA, arXiv:2305.14314, appendix E, by scipy's normal quantiles as bitsandbytes lists them.
BOOK = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                 -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)


def dequantized(directory):
    """The NF4 artifact's tensors in f32, computed only from the formulas of docs/formats.md."""
    stored = load_file(directory / "model.safetensors")
    options = json.loads((directory / "nibble.json").read_text()).get("nf4", {})
    block = options.get("block", 64)
    tensors = {}
    for name, value in stored.items():
        if name.endswith(("_absmax", "_absmax_factor", "_absmax_offset")):
            continue
        if value.dtype != np.uint8:
            tensors[name] = value.astype(np.float32)
            continue
        scale = stored[name + "_absmax"]
        if options.get("double_quant", True):
            factor = np.repeat(stored[name + "_absmax_factor"], options.get("scaler_block", 256))[: scale.size].reshape(scale.shape)
            scale = scale.astype(np.float32) / factor + stored[name + "_absmax_offset"][0]
        codes = np.stack([value >> 4, value & 15], -1).reshape(value.shape[0], -1)
        tensors[name] = BOOK[codes] * np.repeat(scale, block, 1)[:, : codes.shape[1]]
    return tensors


def dequantized_int8(directory):
    """The int8 artifact's tensors in f32: codes times the scale of their row."""
    stored = load_file(directory / "model.safetensors")
    return {name: value.astype(np.float32) * stored[name + "_scale"][:, None] if value.dtype == np.int8 else value
            for name, value in stored.items() if not name.endswith("_scale")}


def to_bf16(values):
    """f32 values rounded to the nearest bf16, ties to even, as f32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def read_bf16(path):
    """The tensors of a safetensors file that holds only bf16, as f32; numpy has no such type."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", f"{name} is {entry['dtype']}"
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(data[start + begin:start + end], "<u2").astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors
