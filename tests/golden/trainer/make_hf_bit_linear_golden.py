"""Makes hf_bit_linear.txt, the golden values of BitLinear with the scales of preset "hf".

    torch==2.11.0 transformers==5.23.0 numpy==2.4.6

    python tests/golden/trainer/make_hf_bit_linear_golden.py

transformers' own AutoBitLinear with online_quant, in float32: output and autograd's gradients. Each row holds one
element that native scales round to a different code, so that an output with native scales fails the test. The factor
of native scales is 1 / (absmax / 127); here it is 127 / absmax, which torch computes as 127 * (1 / absmax). Everything
is seeded: the same versions write the same bytes, except for the last bits of sums, whose order depends on the
processor.
"""
import os
import pathlib

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # transformers' quantizers would be compiled

import numpy as np
import torch
import transformers
from transformers.integrations.bitnet import AutoBitLinear

OUT = pathlib.Path(__file__).resolve().parent / "hf_bit_linear.txt"
ROWS, IN, N = 6, 40, 12
lines = []


def put(name, tensor):
    values = np.ascontiguousarray(tensor.detach().numpy())
    lines.append(f"{name} {values.dtype} {values.astype('<f4').tobytes().hex()}")


def near_a_tie(absmax):
    """An element that the two scalings round to different codes, or None."""
    factor, inverse = 127 / absmax, 1 / (absmax / 127)
    for code in range(1, 126):
        middle = (code + 0.5) / factor
        for value in (middle, torch.nextafter(middle, absmax), torch.nextafter(middle, -absmax)):
            if (value * factor).round() != (value * inverse).round():
                return value
    return None


def rows():
    found = []
    while len(found) < ROWS:
        row = torch.randn(IN) * 2
        absmax = row.abs().max()
        value = near_a_tie(absmax)
        if value is None:
            continue
        row[int((row.abs() == absmax).nonzero()) - 1] = value
        assert row.abs().max() == absmax
        found.append(row)
    return torch.stack(found)


def main():
    torch.manual_seed(20261128)
    x = rows().requires_grad_()
    linear = AutoBitLinear(IN, N, bias=True, online_quant=True)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(N, IN) * 0.05)
        linear.bias.copy_(torch.randn(N))
    g = torch.randn(ROWS, N)
    y = linear(x)
    (y * g).sum().backward()
    for name, value in {"x": x, "weight": linear.weight, "bias": linear.bias, "g": g, "y": y, "grad_x": x.grad,
                        "grad_weight": linear.weight.grad, "grad_bias": linear.bias.grad}.items():
        put(name, value)
    OUT.write_text(f"# make_hf_bit_linear_golden.py: torch {torch.__version__.split('+')[0]}, transformers "
                   f"{transformers.__version__}, numpy {np.__version__}\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
