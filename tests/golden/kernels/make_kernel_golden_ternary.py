"""Makes ternary.txt, the golden values of BitNet's kernels: ternarise, dequantize_ternary, matmul_ternary, gated_mul,
quantize_int8 at 4, 8 and 16 bits, per tensor and with transformers' scales, rms_norm_backward's weight gradient, and
the straight-through backward passes.

    torch==2.11.0 transformers==5.23.0 torchao==0.18.0 numpy==2.4.6

    python tests/golden/kernels/make_kernel_golden_ternary.py

Everything is seeded: the same versions write the same bytes.
- ternarise: the formula of microsoft/BitNet's training tips (fig. 3) in torch float32, except the mean, which is
  computed in float64 and rounded once. The script checks that codes equal those of torchao's quantize_bitnet_weight and
  of transformers' WeightQuant with the same scale, and that transformers' float32 mean is within 4 units in the last
  place.
- activations: max(absmax, 1e-5) / max code in torch float32. Codes are compared here with transformers' ActQuant, which
  multiplies by 127 / absmax: they may differ by one at a near tie.
- reciprocal: the same rows and 24 more, and the same weights, quantized as in transformers' AutoBitLinear. Rows are
  multiplied by the factor max code / absmax, which torch computes as max code * (1 / absmax), and rounded to codes; the
  scale is 1 / factor. The script checks that codes / factor equal the values of transformers' ActQuant at 8 bits, codes
  of 4 and 8 bits those of BitLinear.activation_quant, and weights those of WeightQuant where its float32 mean is ours.
- matmul: numpy int64 product, float32 epilogue, bf16 by torch.
- relu2: transformers' ACT2FN["relu2"]. Gradients: torch's autograd in float64 of the formulas written with explicit
  straight-through estimators.
"""
import os
import pathlib

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # transformers' quantizers would be compiled

import numpy as np
import torch
import torchao
import transformers
from torchao.prototype.quantized_training.bitnet import quantize_bitnet_weight
from transformers.activations import ACT2FN
from transformers.integrations.bitnet import ActQuant, BitLinear, WeightQuant

OUT = pathlib.Path(__file__).resolve().parent / "ternary.txt"
F32 = np.float32
lines = []


def put(name, values):
    if isinstance(values, torch.Tensor):
        values = values.detach()
        values = values.view(torch.int16).numpy() if values.dtype == torch.bfloat16 else values.numpy()
    values = np.ascontiguousarray(values)
    lines.append(f"{name} {values.dtype} {values.astype(values.dtype.newbyteorder('<')).tobytes().hex()}")


def ternarise(w):
    """w (any float dtype) -> s (float32 scalar tensor), codes int8."""
    w = w.float()
    s = w.double().abs().mean().float().clamp(min=1e-5)
    return s, (w * (1.0 / s)).round().clamp(-1, 1).to(torch.int8)


def pack_rows(codes):
    """The first code of a byte is in its lowest bits, as code + 1; bits past K are 0."""
    n, k = codes.shape
    padded = np.zeros((n, (k + 3) // 4 * 4), np.uint8)
    padded[:, :k] = codes.numpy().astype(np.int16) + 1
    quads = padded.reshape(n, -1, 4)
    return quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6


def quantize(x, bits=8, per_tensor=False):
    top = 2 ** (bits - 1) - 1
    absmax = x.abs().amax() if per_tensor else x.abs().amax(dim=-1, keepdim=True)
    scale = absmax.clamp(min=1e-5) / top
    codes = (x * (1.0 / scale)).round().clamp(-top, top)
    return codes.to(torch.int16 if bits == 16 else torch.int8), scale.expand(x.shape[0], 1).reshape(-1).clone()


def round_through(u):
    return u + (u.round() - u).detach()


def weight_ste(w, ste, scale_grad):
    """code * s with the requested gradient, in w's dtype."""
    s = w.abs().mean().clamp(min=1e-5)
    if not scale_grad:
        s = s.detach()
    u = w / s
    if ste == "clipped":
        return round_through(u.clamp(-1, 1)) * s  # clamp passes where |u| <= 1
    return round_through(u).clamp(-1, 1) * s      # clamp passes where |round(u)| <= 1


def activation_ste(x, codes, bits, per_tensor):
    """codes * s with the gradient through the scale. The codes come from float32: at 16 bits u has few fractional bits
    there, and near a tie float64 would round to the next code."""
    top = 2 ** (bits - 1) - 1
    absmax = x.abs().max() if per_tensor else x.abs().max(dim=-1, keepdim=True).values
    s = absmax.clamp(min=1e-5) / top
    u = x / s
    assert (codes - u).detach().abs().max() < 0.51
    # u of the largest element may be top + 1e-16; no clamp is needed, because the scale prevents saturation.
    return (u + (codes - u).detach()) * s


def put_ternarise():
    torch.manual_seed(20261121)
    weights = {
        "plain": torch.randn(23, 45) * 0.02,
        "seven": torch.randn(7, 13),
        "zero": torch.zeros(5, 16),
        "tiny": torch.randn(6, 20) * 1e-6,
        # The mean is 1: elements at 0.5 and 1.5 are ties of rounding.
        "ties": torch.tensor([[0.5, -0.5, 1.5, -1.5, 1.0, -1.0, 0.0, 2.0] * 4] * 3),
        "wide": torch.randn(9, 130) * torch.logspace(-3, 1, 9)[:, None],
        "narrow": (torch.randn(33, 64) * 0.03).bfloat16(),
        "column": torch.randn(40, 1),
    }
    assert weights["ties"].abs().mean() == 1
    for name, w in weights.items():
        s, codes = ternarise(w)
        theirs = w.float().abs().mean().clamp(min=1e-5)
        assert abs(theirs - s) <= 4 * 2**-23 * s, name
        near = ((w.float() / s).abs() % 1 - 0.5).abs() < 1e-6
        agree = quantize_bitnet_weight(w, s) == codes
        assert bool((agree | near).all()), name
        reciprocal = 1.0 / s  # transformers' WeightQuant with our mean
        assert torch.equal(((w.float() * reciprocal).round().clamp(-1, 1)).to(torch.int8), codes), name
        put(f"ternarise.{name}.w", w)
        put(f"ternarise.{name}.scale", s.reshape(1))
        put(f"ternarise.{name}.codes", codes)
        put(f"ternarise.{name}.rows", pack_rows(codes))
        put(f"ternarise.{name}.dequantised", codes.float() * s)
    return weights


def put_activations():
    torch.manual_seed(7)
    x = torch.randn(7, 150)
    x[1, [3, 70]] = torch.tensor([900.0, -48000.0])
    x[2] = 0
    x[3] *= 1e-7                       # below the smallest absmax
    x[4] = torch.arange(150) % 255 - 74.5
    x[4, 0] = 127
    x[5] = 1e-5 * (1 - torch.arange(150) / 75)  # absmax equals the smallest allowed one
    put("activations.x", x)
    for bits in (4, 8, 16):
        for per_tensor in (False, True):
            codes, scale = quantize(x, bits, per_tensor)
            put(f"activations.{bits}.{int(per_tensor)}.codes", codes)
            put(f"activations.{bits}.{int(per_tensor)}.scale", scale)
    theirs = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-5)
    ours, _ = quantize(x)
    difference = ((x * theirs).round().clamp(-128, 127).to(torch.int8).int() - ours.int()).abs()
    assert difference.max() <= 1 and (difference != 0).float().mean() < 0.01
    return x


def put_reciprocal(rows, weights):
    put("reciprocal.x", rows)
    for bits in (4, 8, 16):
        for per_tensor in (False, True):
            top = 2 ** (bits - 1) - 1
            absmax = rows.abs().amax().reshape(1, 1) if per_tensor else rows.abs().amax(dim=-1, keepdim=True)
            factor = (top / absmax.clamp(min=1e-5)).expand(rows.shape[0], 1)
            codes = (rows * factor).round().clamp(-top - 1, top)
            assert codes.min() >= -top
            if not per_tensor and bits < 16:
                theirs, their_factor = BitLinear.activation_quant(None, rows, num_bits=bits)
                assert torch.equal(theirs.float(), codes) and torch.equal(their_factor, factor)
            if not per_tensor and bits == 8:
                assert torch.equal(ActQuant.apply(rows), codes / factor)
            put(f"reciprocal.{bits}.{int(per_tensor)}.codes", codes.to(torch.int16 if bits == 16 else torch.int8))
            put(f"reciprocal.{bits}.{int(per_tensor)}.scale", (1.0 / factor).reshape(-1).clone())
    checked = 0
    for name, w in weights.items():
        s, codes = ternarise(w)
        scale = 1.0 / (1.0 / s)
        assert 1.0 / scale == 1.0 / s
        if w.dtype == torch.float32 and w.abs().mean().clamp(min=1e-5) == s:
            assert torch.equal(WeightQuant.apply(w), codes.float() * scale), name
            checked += 1
        put(f"reciprocal.{name}.scale", scale.reshape(1))
    assert checked >= 4, checked


def put_matmul():
    torch.manual_seed(8)
    m, n, k = 6, 37, 100
    x = torch.randn(m, k) * 2
    w = torch.randn(n, k)
    bias = torch.randn(n)
    s, codes = ternarise(w)
    put("matmul.w", w)
    put("matmul.x", x)
    put("matmul.bias", bias)
    for bits in (4, 8, 16):
        x_codes, x_scale = quantize(x, bits)
        acc = x_codes.numpy().astype(np.int64) @ codes.numpy().astype(np.int64).T
        y = (acc.astype(F32) * x_scale.numpy()[:, None]) * F32(s)
        put(f"matmul.{bits}.y", y)
        put(f"matmul.{bits}.y_bias", y + bias.numpy())
        put(f"matmul.{bits}.y_bf16", torch.from_numpy(y + bias.numpy()).bfloat16())


def put_elementwise():
    torch.manual_seed(9)
    gate, up, grad = (torch.randn(5, 37) for _ in range(3))
    gate[0, :4] = torch.tensor([0.0, -0.0, 1e15, -1e15])
    put("relu2.gate", gate)
    put("relu2.up", up)
    put("relu2.grad_y", grad)
    put("relu2.y", ACT2FN["relu2"](gate) * up)
    g, u = gate.double().requires_grad_(), up.double().requires_grad_()
    (ACT2FN["relu2"](g) * u).backward(grad.double())
    put("relu2.grad_gate", g.grad)
    put("relu2.grad_up", u.grad)

    x = torch.randn(13, 53) * torch.logspace(-2, 2, 13)[:, None]
    weight, grad = torch.randn(53), torch.randn(13, 53)
    leaf = weight.double().requires_grad_()
    torch.nn.functional.rms_norm(x.double(), (53,), leaf, float(F32(1e-5))).backward(grad.double())
    for name, v in (("x", x), ("weight", weight), ("grad_y", grad), ("grad_weight", leaf.grad)):
        put(f"norm.{name}", v)


def put_backward():
    torch.manual_seed(10)
    for name, w in (("plain", torch.randn(19, 70) * 0.05), ("tiny", torch.randn(4, 12) * 1e-6)):
        grad = torch.randn_like(w)
        put(f"weight_ste.{name}.w", w)
        put(f"weight_ste.{name}.grad_y", grad)
        s, _ = ternarise(w)
        put(f"weight_ste.{name}.scale", s.reshape(1))
        for ste in ("round_only", "clipped"):
            for scale_grad in (False, True):
                leaf = w.double().requires_grad_()
                weight_ste(leaf, ste, scale_grad).backward(grad.double())
                # The masks equal those of float32.
                edge = 1.5 if ste == "round_only" else 1.0
                assert ((w / s).abs() - edge).abs().min() > 1e-5
                put(f"weight_ste.{name}.{ste}.{int(scale_grad)}", leaf.grad)

    x = torch.randn(6, 50)
    x[1] = 0
    x[2] *= 1e-8
    x[3, 40] = -9
    grad = torch.randn(6, 50)
    put("activation_ste.x", x)
    put("activation_ste.grad_y", grad)
    for bits in (4, 8, 16):
        for per_tensor in (False, True):
            leaf = x.double().requires_grad_()
            codes, _ = quantize(x, bits, per_tensor)
            activation_ste(leaf, codes.double(), bits, per_tensor).backward(grad.double())
            put(f"activation_ste.{bits}.{int(per_tensor)}", leaf.grad)


def main():
    weights = put_ternarise()
    rows = put_activations()
    put_matmul()
    put_elementwise()
    put_backward()
    torch.manual_seed(11)
    # Rows with every length of mantissa, so that the two scalings differ.
    put_reciprocal(torch.cat([rows, torch.randn(24, 150) * torch.logspace(-3, 3, 24)[:, None]]), weights)
    OUT.write_text("# make_kernel_golden_ternary.py: torch %s, transformers %s, torchao %s, numpy %s\n" % (
        torch.__version__.split("+")[0], transformers.__version__, torchao.__version__, np.__version__)
        + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
