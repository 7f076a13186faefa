"""Makes bit_linear.txt and the folder bit_linear_state, the golden values of the trainer's BitLinear.

    torch==2.11.0 safetensors==0.8.0

    python tests/golden/trainer/make_bit_linear_golden.py

An eager module in plain PyTorch: RMSNorm, absmax rows, absmean ternary weights (docs/numerics.md 2 and 6), gradients by
autograd of the straight-through formulas. Everything is seeded: the same versions write the same bytes, except for the
last bits of gradients: the order in which torch sums their products depends on processor and threads (the committed
file: AVX-512, two threads). The mean of |w| is computed in float64 and rounded once, a norm's sum of squares uses the
fixed order of docs/numerics.md 9, and 1/s is computed before the multiplication, as in section 2; everything else is
float32 (or as named). `y_codes` multiplies integer-valued codes in float32 and applies our epilogue; `y_dequantised`
multiplies dequantized values in float64.
bit_linear_state is the state dict of a decoder layer of such modules, with transformers' names, in the layout of
save_pretrained.
"""
import json
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


def quantize(x, s, low, high, ste, scale_grad):
    """Returns codes * s with the estimator's gradient, and the codes."""
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
    """Returns `value`, which is `formula` rounded differently; the gradient goes to `formula`."""

    @staticmethod
    def forward(ctx, formula, value):
        return value

    @staticmethod
    def backward(ctx, g):
        return g, None


def fixed_order_rstd(x, eps):
    """1 / sqrt(mean(x^2) + eps) of each row in the order of docs/numerics.md 9: 16 lanes by fused multiply-add, then a
    tree. The square is exact in float64; its sum with the lane is rounded twice, to float64 and then to float32. This
    equals the fused sum unless the first rounding ends halfway between two float32, which happens for about one sum in
    2^29; the assertion checks that none does."""
    x = x.detach().numpy()
    lanes = np.zeros((x.shape[0], 16), np.float32)
    for k in range(x.shape[1]):
        column = x[:, k].astype(np.float64)
        total = column * column + lanes[:, k % 16]
        # The 29 bits that float32 lacks; a one followed by zeros means that the value is in the middle.
        assert np.all((total.view(np.int64) & (2**29 - 1)) != 2**28)
        lanes[:, k % 16] = total.astype(np.float32)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    one = np.float32(1)
    return torch.from_numpy(one / np.sqrt(lanes / np.float32(x.shape[1]) + np.float32(eps)))


class Norm(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(k))


class EagerBitLinear(nn.Module):
    """The state dict has the names of transformers' BitLinear with use_rms_norm: weight, bias, rms_norm.weight."""

    def __init__(self, k, n, bias, norm, bits=8, ste="identity", scale_grad=False, per_tensor=False, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, k))
        self.bias = nn.Parameter(torch.empty(n)) if bias else None
        self.rms_norm = Norm(k) if norm else None
        self.bits, self.ste, self.scale_grad, self.per_tensor, self.eps = bits, ste, scale_grad, per_tensor, eps

    def rows(self, x):
        if self.rms_norm is not None:
            weight = self.rms_norm.weight
            formula = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight
            x = WithGradientOf.apply(formula, (x * fixed_order_rstd(x, self.eps) * weight).detach())
        return x

    def quantized_rows(self, x):
        x = self.rows(x.float())
        top = 2 ** (self.bits - 1) - 1
        absmax = x.abs().max() if self.per_tensor else x.abs().amax(-1, keepdim=True)
        s = absmax.clamp_min(1e-5) / top
        q, codes = quantize(x, s, -top, top, self.ste, self.scale_grad)
        return q, codes, s

    def quantized_weight(self):
        w = self.weight.float()
        s = w.abs().double().mean().float().clamp_min(1e-5)
        q, codes = quantize(w, s, -1, 1, self.ste, self.scale_grad)
        return q, codes, s

    def forward(self, x):
        y = self.quantized_rows(x)[0] @ self.quantized_weight()[0].t()
        return y if self.bias is None else y + self.bias


def drawn(k, n, bias=True, norm=False, **options):
    module = EagerBitLinear(k, n, bias, norm, **options)
    with torch.no_grad():
        module.weight.copy_(torch.randn(n, k) * 0.05)
        if bias:
            module.bias.copy_(torch.randn(n))
        if norm:
            module.rms_norm.weight.copy_(1 + 0.3 * torch.randn(k))
    return module


def y_of_codes(module, codes_x, scale_x, codes_w, scale_w):
    """Exact while |sum| < 2^24; then our epilogue, each operation rounded."""
    assert (2 ** (module.bits - 1) - 1) * codes_x.shape[-1] < 2**24
    y = ((codes_x @ codes_w.t()) * scale_x) * scale_w
    return y if module.bias is None else y + module.bias


def case(name, shape, n, seed, dtype=torch.float32, bias=True, norm=False, scale=1.0, **options):
    torch.manual_seed(seed)
    k = shape[-1]
    module = drawn(k, n, bias, norm, **options)
    x = (torch.randn(*shape) * scale).to(dtype).requires_grad_()
    g = torch.randn(*shape[:-1], n).to(dtype).float()  # a gradient has the output's type
    y = module(x)
    (y * g).sum().backward()
    _, codes_x, scale_x = module.quantized_rows(x)
    q_w, codes_w, scale_w = module.quantized_weight()
    with torch.no_grad():
        put(f"{name}.y_codes", y_of_codes(module, codes_x, scale_x, codes_w, scale_w).to(dtype))
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
        put(f"{name}.norm", module.rms_norm.weight)
        put(f"{name}.grad_norm", module.rms_norm.weight.grad)


# A Llama of one layer with a norm before every linear, biases, and a different size for each linear.
STATE_CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "vocab_size": 112,
                "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": True, "mlp_bias": True,
                "tie_word_embeddings": True, "nibble_norms": "linear"}


def state(seed):
    torch.manual_seed(seed)
    hidden, ffn = STATE_CONFIG["hidden_size"], STATE_CONFIG["intermediate_size"]
    kv = STATE_CONFIG["num_key_value_heads"] * STATE_CONFIG["head_dim"]
    root, layer = nn.Module(), nn.Module()
    root.model = nn.Module()
    root.model.embed_tokens = nn.Embedding(STATE_CONFIG["vocab_size"], hidden)
    root.model.layers = nn.ModuleList([layer])
    root.model.norm = Norm(hidden)
    with torch.no_grad():
        root.model.norm.weight.copy_(1 + 0.3 * torch.randn(hidden))
    layer.self_attn, layer.mlp = nn.Module(), nn.Module()
    for path, k, n in (("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", hidden, kv), ("self_attn.v_proj", hidden, kv),
                       ("self_attn.o_proj", hidden, hidden), ("mlp.gate_proj", hidden, ffn), ("mlp.up_proj", hidden, ffn),
                       ("mlp.down_proj", ffn, hidden)):
        block, name = path.split(".")
        module = drawn(k, n, norm=True)
        setattr(getattr(layer, block), name, module)
        x = torch.randn(4, k)
        with torch.no_grad():
            put(f"state.{path}.x", x)
            put(f"state.{path}.y_codes", y_of_codes(module, *module.quantized_rows(x)[1:], *module.quantized_weight()[1:]))
    directory = OUT / "bit_linear_state"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(STATE_CONFIG, indent=2) + "\n")
    values = {name: value.detach().contiguous() for name, value in root.state_dict().items()}
    safetensors.torch.save_file(values, directory / "model.safetensors", metadata={"format": "pt"})


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
    # Rows without a norm before them: the gradient of their own scale. With 16 bits, rows of both kinds.
    case("rows_scaled", (5, 40), 12, 13, ste="round_only", scale_grad=True)
    case("bits_16_rows_scaled", (5, 40), 12, 16, bits=16, ste="round_only", scale_grad=True)
    case("bits_16_norm_scaled", (5, 40), 12, 17, bits=16, norm=True, ste="round_only", scale_grad=True)
    # The same weights under both estimators: a larger layer, for the cosine.
    for name, options in {"identity": {}, "round_only": {"ste": "round_only", "scale_grad": True},
                          "round_only_detached": {"ste": "round_only"}}.items():
        case(f"cosine_{name}", (16, 64), 32, 14, bias=False, **options)
    state(15)
    text = f"# make_bit_linear_golden.py: torch {torch.__version__.split('+')[0]}, numpy {np.__version__}\n"
    (OUT / "bit_linear.txt").write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
