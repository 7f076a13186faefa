"""Makes bit_linear.txt and bit_linear_state.safetensors, the golden values of the trainer's BitLinear.

    torch==2.11.0 safetensors==0.8.0

    python tests/golden/trainer/make_bit_linear_golden.py

An eager module in plain PyTorch: RMSNorm, absmax rows, absmean ternary weights (docs/numerics.md 2 and 6), gradients by
autograd of the straight-through formulas. Everything is seeded: the same versions write the same bytes. The mean of |w| is taken
in float64 and rounded once, a norm's sum of squares runs in the fixed order of Decided 9, and 1/s is formed before it multiplies, as Decided 2 has it; all else is float32 (or as named).
`y_codes` multiplies integer-valued codes in float32 and applies our epilogue; `y_dequantised` multiplies dequantised values in float64.
"""
import pathlib

import numpy as np
import safetensors.torch
import torch
from torch import nn

OUT = pathlib.Path(__file__).resolve().parent
lines = []


def put(name, tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        lines.append(f"{name} bfloat16 {tensor.view(torch.int16).numpy().astype('<i2').tobytes().hex()}")
    else:
        values = tensor.numpy()
        lines.append(f"{name} {values.dtype} {values.astype(values.dtype.newbyteorder('<')).tobytes().hex()}")


def straight(value, rounded):
    return value + (rounded - value).detach()


def quantise(x, s, low, high, ste, scale_grad):
    """codes * s with the estimator's gradient, and the codes."""
    if not scale_grad:
        s = s.detach()
    u = x * (1.0 / s)
    if ste == "identity":
        codes = torch.clamp(torch.round(u), low, high).detach()
        return straight(x, codes * s), codes
    if ste == "round_only":
        codes = torch.clamp(straight(u, torch.round(u)), low, high)
    else:  # clipped
        clipped = torch.clamp(u, low, high)
        codes = straight(clipped, torch.round(clipped))
    return codes * s, codes.detach()


class WithGradientOf(torch.autograd.Function):
    """`value`, whose gradient goes to `formula`, of which it is another rounding."""

    @staticmethod
    def forward(ctx, formula, value):
        return value

    @staticmethod
    def backward(ctx, g):
        return g, None


def fixed_order_rstd(x, eps):
    """1 / sqrt(mean(x^2) + eps) of each row in the order of Decided 9: 16 lanes by fused multiply-add, then a tree. A sum in float64
    of the exact square and the lane, rounded to float32, is the fused one."""
    x = x.detach().numpy()
    lanes = np.zeros((x.shape[0], 16), np.float32)
    for k in range(x.shape[1]):
        column = x[:, k].astype(np.float64)
        lanes[:, k % 16] = (column * column + lanes[:, k % 16]).astype(np.float32)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    one = np.float32(1)
    return torch.from_numpy(one / np.sqrt(lanes / np.float32(x.shape[1]) + np.float32(eps)))


class EagerBitLinear(nn.Module):
    def __init__(self, k, n, bias, norm, bits=8, ste="identity", scale_grad=False, per_tensor=False, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, k))
        self.bias = nn.Parameter(torch.empty(n)) if bias else None
        self.norm = nn.Parameter(torch.empty(k)) if norm else None
        self.bits, self.ste, self.scale_grad, self.per_tensor, self.eps = bits, ste, scale_grad, per_tensor, eps

    def rows(self, x):
        if self.norm is not None:
            formula = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm
            x = WithGradientOf.apply(formula, (x * fixed_order_rstd(x, self.eps) * self.norm).detach())
        return x

    def quantised_rows(self, x):
        x = self.rows(x.float())
        top = 2 ** (self.bits - 1) - 1
        absmax = x.abs().max() if self.per_tensor else x.abs().amax(-1, keepdim=True)
        s = absmax.clamp_min(1e-5) / top
        q, codes = quantise(x, s, -top, top, self.ste, self.scale_grad)
        return q, codes, s

    def quantised_weight(self):
        w = self.weight.float()
        s = w.abs().double().mean().float().clamp_min(1e-5)
        q, codes = quantise(w, s, -1, 1, self.ste, self.scale_grad)
        return q, codes, s

    def forward(self, x):
        y = self.quantised_rows(x)[0] @ self.quantised_weight()[0].t()
        return y if self.bias is None else y + self.bias


def case(name, shape, n, seed, dtype=torch.float32, bias=True, norm=False, scale=1.0, **options):
    torch.manual_seed(seed)
    k = shape[-1]
    module = EagerBitLinear(k, n, bias, norm, **options)
    with torch.no_grad():
        module.weight.copy_(torch.randn(n, k) * 0.05)
        if bias:
            module.bias.copy_(torch.randn(n))
        if norm:
            module.norm.copy_(1 + 0.3 * torch.randn(k))
    x = (torch.randn(*shape) * scale).to(dtype).requires_grad_()
    g = torch.randn(*shape[:-1], n).to(dtype).float()  # a gradient has the output's type
    y = module(x)
    (y * g).sum().backward()
    _, codes_x, scale_x = module.quantised_rows(x)
    q_w, codes_w, scale_w = module.quantised_weight()
    with torch.no_grad():
        # Exact while |sum| < 2^24; then our epilogue, each operation rounded.
        top = 2 ** (options.get("bits", 8) - 1) - 1
        if top * k < 2**24:
            y_codes = ((codes_x @ codes_w.t()) * scale_x) * scale_w
            if bias:
                y_codes = y_codes + module.bias
            put(f"{name}.y_codes", y_codes.to(dtype))
        y64 = (codes_x.double() * scale_x.double()) @ (codes_w.double() * scale_w.double()).t()
        put(f"{name}.y_dequantised", y64 + (module.bias.double() if bias else 0))
    put(f"{name}.x", x)
    put(f"{name}.g", g)
    put(f"{name}.weight", module.weight)
    put(f"{name}.codes_x", codes_x.to(torch.int16 if options.get("bits") == 16 else torch.int8))
    put(f"{name}.scale_x", scale_x.reshape(-1).expand(codes_x.numel() // k) if scale_x.numel() == 1 else scale_x.reshape(-1))
    put(f"{name}.codes_w", codes_w.to(torch.int8))
    put(f"{name}.scale_w", scale_w.reshape(1))
    put(f"{name}.grad_x", x.grad)
    put(f"{name}.grad_weight", module.weight.grad)
    if bias:
        put(f"{name}.bias", module.bias)
        put(f"{name}.grad_bias", module.bias.grad)
    if norm:
        put(f"{name}.norm", module.norm)
        put(f"{name}.grad_norm", module.norm.grad)
    return module


def main():
    case("bias_f32", (5, 40), 12, 1)
    case("plain_f32", (5, 40), 12, 2, bias=False)
    case("bias_bf16", (5, 40), 12, 3, dtype=torch.bfloat16)
    case("plain_bf16", (5, 40), 12, 4, dtype=torch.bfloat16, bias=False)
    case("norm", (5, 40), 12, 5, norm=True)
    case("shape_7x13", (5, 13), 7, 6)
    case("three_dimensions", (2, 3, 64), 16, 7)
    case("one_row", (1, 48), 8, 8)
    case("bits_4", (5, 40), 12, 9, bits=4)
    case("bits_16", (5, 40), 12, 10, bits=16)
    case("per_tensor", (5, 40), 12, 11, per_tensor=True)
    for ste in ("round_only", "clipped"):
        for scale_grad in (False, True):
            case(f"{ste}_{'scaled' if scale_grad else 'detached'}", (5, 40), 12, 12, norm=True, ste=ste, scale_grad=scale_grad)
    # Rows without a norm before them: the gradient of their own scale.
    case("rows_scaled", (5, 40), 12, 13, ste="round_only", scale_grad=True)
    # The same weights under both estimators: a larger layer, for the cosine.
    for ste in ("identity", "round_only"):
        case(f"cosine_{ste}", (16, 64), 32, 14, bias=False, ste=ste, scale_grad=ste != "identity")
    module = case("state", (4, 32), 8, 15, norm=True)
    safetensors.torch.save_file({name: value.detach() for name, value in module.state_dict().items()}, OUT / "bit_linear_state.safetensors")
    text = f"# make_bit_linear_golden.py: torch {torch.__version__.split('+')[0]}, numpy {np.__version__}\n"
    (OUT / "bit_linear.txt").write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
