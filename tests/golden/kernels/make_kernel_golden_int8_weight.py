"""Makes int8_weight.txt, the golden values of matmul_int8_weight and of the gradients of int8_qt's linears.

    torch==2.11.0 torchao==0.18.0 numpy==2.4.6

    python tests/golden/kernels/make_kernel_golden_int8_weight.py

Everything is seeded: the same versions write the same bytes. torchao's Int8QuantizedTrainingLinearWeight quantizes the
weight. The stored products and gradients are those that it computes in float64, whose rounding is negligible beside
that of our f32. The script compares its product in bfloat16 with them.
"""
import pathlib

import numpy as np
import torch
import torchao
from torchao.prototype.quantized_training import Int8QuantizedTrainingLinearWeight

OUT = pathlib.Path(__file__).resolve().parent / "int8_weight.txt"
lines = []


def put(name, values):
    values = np.ascontiguousarray(values)
    lines.append(f"{name} {values.dtype} {values.astype(values.dtype.newbyteorder('<')).tobytes().hex()}")


def main():
    generator = torch.Generator().manual_seed(20261128)
    of_gradients = torch.Generator().manual_seed(20261129)
    for name, rows, outs, ins in (("odd", 7, 13, 77), ("one", 1, 37, 200), ("rows", 31, 19, 64)):
        x = torch.randn(rows, ins, generator=generator)
        x[:, 3] *= 500  # a column of outliers, as real models have
        x = x.bfloat16()
        original = torch.randn(outs, ins, generator=generator) * 0.02
        bias = torch.randn(outs, generator=generator)
        weight = Int8QuantizedTrainingLinearWeight.from_float(original)
        exact = Int8QuantizedTrainingLinearWeight(weight.int_data, weight.scale.double()).requires_grad_()
        leaf = x.double().requires_grad_()
        y = torch.nn.functional.linear(leaf, exact, bias.double())
        grad_y = torch.randn(rows, outs, generator=of_gradients)
        y.backward(grad_y.double())
        rounded = Int8QuantizedTrainingLinearWeight(weight.int_data, weight.scale.bfloat16())
        theirs = torch.nn.functional.linear(x, rounded, bias.bfloat16()).double()
        scale = (x.double().abs() @ weight.int_data.double().abs().T) * weight.scale.double()
        assert torch.all((theirs - y).abs() <= 2.0**-6 * (scale + bias.abs())), "torchao's bf16 product is far off"
        for key, values in (("x", x.float()), ("w", weight.int_data), ("scale", weight.scale), ("bias", bias), ("y", y),
                            ("sum_abs", scale), ("grad_y", grad_y), ("grad_x", leaf.grad), ("grad_w", exact.grad)):
            put(f"{name}.{key}", values.detach().numpy())
    OUT.write_text("# make_kernel_golden_int8_weight.py: torch %s, torchao %s, numpy %s\n" % (
        torch.__version__.split("+")[0], torchao.__version__.split("+")[0], np.__version__) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
