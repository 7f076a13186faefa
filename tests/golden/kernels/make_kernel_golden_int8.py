"""Makes int8.txt, the golden values of quantize_int8, quantize_int8_transposed, rms_norm, rms_norm_backward, matmul_int8
and matmul_dense.

    torch==2.11.0 torchao==0.18.0 transformers==5.23.0 bitsandbytes==0.50.0 numpy==2.4.6

    python tests/golden/kernels/make_kernel_golden_int8.py

Everything is seeded: the same versions write the same bytes.
- quantize_int8: docs/numerics.md 1, in numpy float32; codes and scales of rows without outliers are also compared with
  bitsandbytes' int8_vectorwise_quant here (it multiplies by 127 / absmax, so a code may differ by one at a near tie).
  mean|x| is summed in float64; an assertion checks that no element is near six times the mean.
- quantize_int8_transposed: torchao's quantize_int8_rowwise of the transpose, as its int8 training calls it; torchao's
  limit of small scales is another, so the column of zeros has the scale of docs/numerics.md 1. With one scale for all
  columns: numpy float32.
- rms_norm: transformers' LlamaRMSNorm in float32. rms_norm_backward: torch's autograd of rms_norm in float64.
- matmul_int8: numpy int64 product, float32 epilogue; the chain of outliers in exact fractions, rounded once per step.
- matmul_dense: numpy float64.
"""
import fractions
import pathlib

import bitsandbytes
import numpy as np
import torch
import torchao
import transformers
from torchao.prototype.quantized_training import quantize_int8_rowwise
from transformers.models.llama.modeling_llama import LlamaRMSNorm

OUT = pathlib.Path(__file__).resolve().parent / "int8.txt"
F32 = np.float32
lines = []


def put(name, values):
    values = np.ascontiguousarray(values)
    lines.append(f"{name} {values.dtype} {values.astype(values.dtype.newbyteorder('<')).tobytes().hex()}")


def quantize(x, max_outliers):
    """x [M, K] float32 -> codes, scale and, per row, (index, value) of the outliers."""
    codes, scales, outliers = [], [], []
    for row in x:
        magnitude = np.abs(row)
        mean = np.abs(row.astype(np.float64)).mean()
        assert not np.any(np.abs(magnitude - 6 * mean) < 1e-4 * mean), "too near the threshold to be independent"
        order = sorted(np.flatnonzero(magnitude > 6 * mean), key=lambda k: (-magnitude[k], k))
        taken = sorted(order[:max_outliers])
        rest = row.copy()
        rest[taken] = 0
        scale = np.maximum(np.abs(rest).max(), F32(1e-12)) / F32(127)
        codes.append(np.clip(np.rint(rest * (F32(1) / scale)), -127, 127).astype(np.int8))
        scales.append(scale)
        outliers.append([(k, row[k]) for k in taken])
    return np.stack(codes), np.array(scales, F32), outliers


def padded(outliers):
    index = np.zeros((len(outliers), 16), np.int32)
    value = np.zeros((len(outliers), 16), F32)
    for r, row in enumerate(outliers):
        for i, (k, v) in enumerate(row):
            index[r, i], value[r, i] = k, v
    return np.array([len(row) for row in outliers], np.int32), index, value


def round_f32(x):
    """Rounds a fraction once to float32, to nearest, ties to even (normal range)."""
    if x == 0:
        return F32(0)
    exponent = 0
    magnitude = abs(x)
    while magnitude >= 1 << 24:
        magnitude /= 2
        exponent += 1
    while magnitude < 1 << 23:
        magnitude *= 2
        exponent -= 1
    whole = round(magnitude)  # Python rounds fractions half to even
    return F32(np.ldexp(float(whole if x > 0 else -whole), exponent))


def main():
    rng = np.random.default_rng(20260730)

    x = rng.standard_normal((7, 150)).astype(F32)
    x[1, [3, 70, 149]] = [900.0, -48000.0, 77.5]           # outliers far above the row
    x[2, ::11] = np.where(np.arange(14) % 2, -31.0, 31.0)  # 14 equal values: the lower indices are taken
    x[3] = 0
    x[4] *= F32(1e-16)                                     # below the smallest absmax
    x[5] = np.arange(150) % 255 - 74.5                     # halves: ties of rounding
    x[5, 0] = 127
    x[6] *= F32(1e30)
    put("quantize.x", x)
    for max_outliers in (0, 2, 8):
        codes, scale, outliers = quantize(x, max_outliers)
        count, index, value = padded(outliers)
        for name, v in (("codes", codes), ("scale", scale), ("count", count), ("index", index), ("value", value)):
            put(f"quantize.{max_outliers}.{name}", v)
    theirs, their_absmax, _ = bitsandbytes.functional.int8_vectorwise_quant(torch.from_numpy(x[[0, 1, 2, 5]]).half())
    ours, our_scale, _ = quantize(x[[0, 1, 2, 5]].astype(np.float16).astype(F32), 0)
    assert np.allclose(their_absmax.numpy() / 127, our_scale, rtol=1e-3)
    assert np.abs(theirs.numpy().astype(int) - ours).max() <= 1 and (theirs.numpy() != ours).mean() < 0.01

    x = (rng.standard_normal((5, 97)) * np.array([[1], [30], [1e-3], [0], [2]])).astype(F32)
    weight = rng.standard_normal(97).astype(F32)
    norm = LlamaRMSNorm(97, eps=1e-5)
    norm.weight.data = torch.from_numpy(weight)
    put("norm.x", x)
    put("norm.weight", weight)
    put("norm.y", norm(torch.from_numpy(x)).detach().numpy())
    grad_y = rng.standard_normal((5, 97)).astype(F32)
    leaf = torch.from_numpy(x).double().requires_grad_()
    torch.nn.functional.rms_norm(leaf, (97,), torch.from_numpy(weight).double(), float(F32(1e-5))).backward(
        torch.from_numpy(grad_y).double())
    put("norm.grad_y", grad_y)
    put("norm.grad_x", leaf.grad.numpy())

    x = (rng.standard_normal((6, 100)) * 2).astype(F32)
    x[1, [0, 99]] = [60, -75.25]
    x[2, [5, 6, 7, 51]] = [300, 300, -1e4, 55]
    x[4, 10] = 1e5
    codes, scale, outliers = quantize(x, 8)
    count, index, value = padded(outliers)
    w = rng.integers(-127, 128, (37, 100)).astype(np.int8)
    w_scale = rng.uniform(1e-4, 1e-2, 37).astype(F32)
    bias = rng.standard_normal(37).astype(F32)
    acc = codes.astype(np.int64) @ w.astype(np.int64).T
    y = (acc.astype(F32) * scale[:, None]) * w_scale
    for r, row in enumerate(outliers):
        if row:
            for n in range(37):
                o = F32(0)
                for k, v in row:
                    o = round_f32(fractions.Fraction(float(v)) * int(w[n, k]) + fractions.Fraction(float(o)))
                y[r, n] = y[r, n] + o * w_scale[n]
    for name, v in (("x", x), ("w", w), ("w_scale", w_scale), ("bias", bias), ("y", y + bias)):
        put(f"matmul.{name}", v)

    x = rng.standard_normal((3, 200)).astype(F32)
    w = rng.standard_normal((19, 200)).astype(F32)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    for name, v in (("x", x), ("w", w), ("y", exact), ("sum_abs", np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T)):
        put(f"dense.{name}", v)

    x = (rng.standard_normal((70, 37)) * np.exp(rng.uniform(-9, 9, 37))).astype(F32)
    x[:, 4] = 0
    x[:, 9] = np.arange(70) - 34.5  # halves: ties of rounding
    x[0, 9] = 127
    codes, scale = (values.numpy() for values in quantize_int8_rowwise(torch.from_numpy(x.T)))
    assert scale[4] == 0
    scale = np.maximum(scale, F32(1e-12) / F32(127))
    one = np.abs(x).max() / F32(127)
    for name, v in (("x", x), ("codes", codes), ("scale", scale),
                    ("tensor.codes", np.clip(np.rint(x.T * (F32(1) / one)), -127, 127).astype(np.int8)), ("tensor.scale", one)):
        put(f"transposed.{name}", v)

    OUT.write_text("# make_kernel_golden_int8.py: torch %s, torchao %s, transformers %s, bitsandbytes %s, numpy %s\n" % (
        torch.__version__.split("+")[0], torchao.__version__.split("+")[0], transformers.__version__, bitsandbytes.__version__,
        np.__version__)
        + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
