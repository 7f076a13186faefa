"""Makes nf4.txt, the golden values of quantize_nf4, dequantize_nf4, double_quantize, double_dequantize, matmul_nf4.

The programs that we must match compute the values, on the CPU:

    bitsandbytes==0.50.0 torchao==0.18.0 torch==2.11.0 numpy==2.4.6

    python tests/golden/kernels/make_kernel_golden_nf4.py

Everything is seeded: the same versions write the same bytes. We follow the rule of bitsandbytes' CUDA tree
(docs/numerics.md 4). Its CPU path differs from that tree:
- it searches a value among midpoints with torch.bucketize (right=False): a tie takes the lower code, as in the tree.
  But it rounds a midpoint halfway between two float32 values to even, while a compiler rounds the tree's decimal
  constant: four of the fifteen boundaries are one step apart. `ties` has exact ties of the other eleven, and values two
  steps to both sides of all; the tree's own ties are tested with their formula;
- a zero block divides by 1e-38, so its zeros get code 7, as in our code; the tree sees NaN and gives code 0;
- the last, partial block is divided by its absmax instead of multiplied by 1 / absmax. A value within one rounding of a
  threshold may get the other code there, so the `tail` case has no such values;
- blocks continue over the flattened tensor, so a row whose length is not a multiple of 64 is quantized separately here.
Double quantization is torchao's NF4Tensor code, run in float32.
"""
import fractions
import pathlib
import types

import numpy as np
import torch
import torchao
import bitsandbytes
from bitsandbytes.functional import QuantState, dequantize_4bit, get_4bit_type, quantize_4bit
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import NF4Tensor

OUT = pathlib.Path(__file__).resolve().parent / "nf4.txt"
BOOK = get_4bit_type("nf4", device="cpu")
# bitsandbytes csrc/kernels.cu, dQuantizeNF4: the constants as written there.
TREE = ("-0.8480964004993439 -0.6106329262256622 -0.4599952697753906 -0.33967943489551544 -0.23460740596055984 "
        "-0.13791173323988914 -0.045525018125772476 0.03979014977812767 0.1202552504837513 0.2035212516784668 "
        "0.2920137718319893 0.3893125355243683 0.5016634166240692 0.6427869200706482 0.8614784181118011").split()
BLOCKS = (32, 128, 256)
lines = []


def put(name, values):
    """Writes one line; torch.bfloat16 as its 16 bits."""
    if isinstance(values, torch.Tensor):
        if values.dtype == torch.bfloat16:
            values, kind = values.contiguous().view(torch.uint16).numpy(), "bf16"
        else:
            values = values.contiguous().numpy()
            kind = str(values.dtype)
    else:
        kind = str(values.dtype)
    lines.append(f"{name} {kind} {values.astype(values.dtype.newbyteorder('<')).tobytes().hex()}")


def dequantize(packed, absmax, shape, dtype, block=64):
    return dequantize_4bit(packed, QuantState(absmax=absmax, shape=shape, dtype=dtype, blocksize=block, code=BOOK,
                                              quant_type="nf4"))


def nearest_float32(decimal):
    """The float32 that a compiler makes of `decimal`f: rounded once, while float32(float64(decimal)) rounds twice."""
    guess = np.float32(float(decimal))
    near = [np.nextafter(guess, np.float32(-2)), guess, np.nextafter(guess, np.float32(2))]
    return float(min(near, key=lambda f: abs(fractions.Fraction(float(f)) - fractions.Fraction(decimal))))


def step(values, towards):
    return torch.nextafter(values, torch.tensor(towards))


def codec(name, x, block=64):
    """x [rows, K]; K a multiple of the block or one row."""
    assert x.shape[1] % block == 0 or x.shape[0] == 1
    packed, state = quantize_4bit(x, blocksize=block, quant_type="nf4", compress_statistics=False)
    put(f"{name}.x", x)
    put(f"{name}.codes", packed.reshape(-1))
    put(f"{name}.absmax", state.absmax)
    for dtype in (torch.float32, torch.bfloat16):
        out = dequantize(packed, state.absmax, x.shape, dtype, block)
        put(f"{name}.{'f32' if dtype == torch.float32 else 'bf16'}", out)
    return packed, state.absmax


def main():
    torch.manual_seed(20240607)
    weight = torch.randn(6, 192) * 0.02
    packed, absmax = codec("weight", weight)
    codec("weight_bf16", (torch.randn(3, 128) * 0.02).bfloat16())

    # absmax is 1: thresholds, and values on both sides of them.
    bounds = (BOOK[:-1] + BOOK[1:]) / 2
    tree = torch.tensor([nearest_float32(t) for t in TREE])
    above, below = step(step(bounds, 2.0), 2.0), step(step(bounds, -2.0), -2.0)
    same = tree == bounds
    assert same.sum() == 11 and ((tree == step(bounds, 2.0)) | (tree == step(bounds, -2.0)))[~same].all()
    ties = torch.cat([torch.tensor([1.0, -1.0, 0.0, -0.0]), bounds[same], above, below, BOOK[1:15]])
    codec("ties", torch.nn.functional.pad(ties, (0, 64 - ties.numel())).reshape(1, 64))
    codec("zeros", torch.cat([torch.zeros(64), torch.randn(64)]).reshape(1, 128))

    tail = torch.randn(1, 100)
    scaled = (tail[0, 64:].double() / tail[0, 64:].abs().max().double())[:, None]
    assert (scaled - bounds.double()).abs().min() > 1e-6
    codec("tail", tail)

    # matmul_nf4: the product of the rounded weights and activations, in float64.
    x = torch.randn(5, 192)
    bias = torch.randn(6)
    put("matmul.x", x)
    put("matmul.bias", bias)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        w = dequantize(packed, absmax, weight.shape, dtype).double()
        a = x.to(dtype).double()
        put(f"matmul.{name}", a @ w.T + bias.double())
        put(f"matmul.{name}_abs", a.abs() @ w.abs().T + bias.double().abs())

    # Scales that are multiples of 2^-14: their sum is exact in float32, so torch's mean does not depend on its order.
    scales = torch.randint(100, 1000, (512,)).float() * 2.0**-14
    blocks = torch.zeros(512, 64)
    blocks[:, 5] = -scales
    codes, factor, mean = NF4Tensor.double_quantize_scalers(blocks.reshape(-1), 64, 256)
    tensor = types.SimpleNamespace(dtype=torch.float32, scaler_mean=mean)
    put("double.absmax", scales)
    put("double.codes", codes)
    put("double.factor", factor)
    put("double.offset", mean.reshape(1))
    put("double.out", NF4Tensor.dequantize_scalers(tensor, codes, factor, 256))

    # Other blocks, and double quantization with other blocks of scales.
    for block in BLOCKS:
        codec(f"block{block}", torch.randn(2, 2 * block) * 0.02, block)
    for scaler_block in (32, 128):
        codes, factor, mean = NF4Tensor.double_quantize_scalers(blocks.reshape(-1), 64, scaler_block)
        tensor = types.SimpleNamespace(dtype=torch.float32, scaler_mean=mean)
        put(f"double{scaler_block}.codes", codes)
        put(f"double{scaler_block}.factor", factor)
        put(f"double{scaler_block}.out", NF4Tensor.dequantize_scalers(tensor, codes, factor, scaler_block))

    OUT.write_text(f"# make_kernel_golden_nf4.py: bitsandbytes {bitsandbytes.__version__}, torchao {torchao.__version__}, "
                   f"torch {torch.__version__.split('+')[0]}\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
