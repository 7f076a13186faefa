"""Makes attention.txt (attention, rope, gated_mul, and the backward passes of attention and gated_mul) and sampling.txt (log_softmax_gather, sample).

    torch==2.11.0 transformers==5.23.0 numpy==2.4.6

    python tests/golden/kernels/make_kernel_golden_attention.py

Everything is seeded: the same versions write the same bytes. Inputs are values of bfloat16 where that makes the file
smaller; results are computed in float64, except transformers' float32 rope tables. The order of the sampling filters is
not defined here: it is the order in transformers' generate().
"""
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

HERE = pathlib.Path(__file__).resolve().parent


class File:
    def __init__(self, name):
        self.path = HERE / name
        self.lines = [f"# make_kernel_golden_attention.py: torch {torch.__version__.split('+')[0]}, "
                      f"transformers {transformers.__version__}"]

    def put(self, name, values):
        """Writes one line; torch.bfloat16 as its 16 bits."""
        if isinstance(values, torch.Tensor):
            values = values.detach().contiguous()
            kind = str(values.dtype).removeprefix("torch.")
            values = (values.view(torch.uint16) if values.dtype == torch.bfloat16 else values).numpy()
        else:
            values = np.asarray(values)
            kind = str(values.dtype)
        data = values.astype(values.dtype.newbyteorder("<")).tobytes().hex()
        self.lines.append(f"{name} {kind} {data}")

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")


def normal(seed, *shape, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(torch.bfloat16)


def attention(out, name, kv_heads, group, d, length, rows, q_scale):
    """Causal attention of some rows of one sequence by torch's scaled_dot_product_attention."""
    q = normal(1, len(rows), kv_heads * group, d, scale=q_scale)
    k = normal(2, length, kv_heads, d)
    v = normal(3, length, kv_heads, d)
    mask = torch.tensor([[j <= row for j in range(length)] for row in rows])
    qd, kd, vd = (x.double().transpose(0, 1) for x in (q, k, v))
    y = F.scaled_dot_product_attention(qd[None], kd[None], vd[None], attn_mask=mask[None, None], enable_gqa=True)[0]
    scores = (qd @ kd.repeat_interleave(group, 0).transpose(1, 2)) / math.sqrt(d)
    scores = scores.masked_fill(~mask[None], -math.inf)
    out.put(f"{name}.shape", np.array([kv_heads, group, d, length], np.int64))
    out.put(f"{name}.rows", np.array(rows, np.int32))
    for key, value in (("q", q), ("k", k), ("v", v), ("out", y.transpose(0, 1)),
                       ("logsumexp", torch.logsumexp(scores, -1).transpose(0, 1))):
        out.put(f"{name}.{key}", value)


def attention_backward(out, name, kv_heads, group, d, segments, q_scale):
    """Gradients by torch's autograd of causal attention within each segment."""
    rows = segments[-1]
    q = normal(10, rows, kv_heads * group, d, scale=q_scale)
    k, v = normal(11, rows, kv_heads, d), normal(12, rows, kv_heads, d)
    grad_out = normal(13, rows, kv_heads * group, d)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    for begin, end in zip(segments, segments[1:]):
        parts = [x[begin:end].transpose(0, 1)[None] for x in leaves]
        y = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)[0]
        y.backward(grad_out[begin:end].double().transpose(0, 1))
    out.put(f"{name}.shape", np.array([kv_heads, group, d], np.int64))
    out.put(f"{name}.segments", np.array(segments, np.int64))
    for key, value in (("q", q), ("k", k), ("v", v), ("grad_out", grad_out)):
        out.put(f"{name}.{key}", value)
    for key, leaf in zip("qkv", leaves):
        out.put(f"{name}.grad_{key}", leaf.grad)


def rope(out):
    """transformers' Llama: inverse frequencies, float32 tables, and the rotation in float64 with these tables."""
    heads, d = 2, 16
    config = LlamaConfig(hidden_size=heads * d, num_attention_heads=heads, head_dim=d,
                         rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    module = LlamaRotaryEmbedding(config)
    positions = [0, 1, 31, 1000, 8191, 131071]
    x = normal(4, 1, heads, len(positions), d)
    cos, sin = module(x.float(), torch.tensor([positions]))
    y, _ = apply_rotary_pos_emb(x.double(), x.double(), cos.double(), sin.double())
    half = d // 2
    out.put("rope.positions", np.array(positions, np.int32))
    out.put("rope.inv_freq", module.inv_freq.float())
    out.put("rope.cos", cos[0, :, :half])
    out.put("rope.sin", sin[0, :, :half])
    out.put("rope.x", x[0].transpose(0, 1))
    out.put("rope.y", y[0].transpose(0, 1))


def silu(out):
    gate = torch.cat([normal(5, 200, scale=4.0), torch.tensor([0.0, -0.0, 90.0, -90.0, 30.0, -30.0], dtype=torch.bfloat16)])
    up, grad = normal(6, len(gate)), normal(7, len(gate))
    a, b = (x.double().requires_grad_() for x in (gate, up))
    y = F.silu(a) * b
    y.backward(grad.double())
    for key, value in (("gate", gate), ("up", up), ("grad", grad), ("y", y), ("grad_gate", a.grad), ("grad_up", b.grad)):
        out.put(f"silu.{key}", value)


def log_softmax(out):
    vocabulary = 300
    logits = torch.stack([normal(8, vocabulary, scale=s).float() for s in (0.1, 3.0, 40.0)])
    target = torch.tensor([5, 299, 0])
    logprobs = torch.log_softmax(logits.double(), -1)
    top = torch.topk(logprobs, 4)
    out.put("log_softmax.logits", logits.to(torch.bfloat16))
    out.put("log_softmax.target", target.to(torch.int32))
    out.put("log_softmax.logprob", logprobs.gather(-1, target[:, None])[:, 0])
    out.put("log_softmax.logsumexp", torch.logsumexp(logits.double(), -1))
    out.put("log_softmax.top_logprob", top.values)


def sampling(out):
    """The ids that transformers' processors keep of one row, in ascending order, and their probabilities."""
    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    model = LlamaForCausalLM(config)
    vocabulary = 500
    # Distinct values except for pairs of equal ones, to test ties at the k-th value.
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(9)) * 2.0
    logits[100:200] = logits[200:300]
    out.put("sample.logits", logits)
    cases = []
    for temperature in (0.5, 1.0, 1.7):
        for top_k in (0, 1, 7, 40):
            for top_p in (1.0, 0.9, 0.35):
                for min_p in (0.0, 0.02, 0.3):
                    cases.append((temperature, top_k, top_p, min_p))
    kept_cases = []
    for temperature, top_k, top_p, min_p in cases:
        if top_k == 0 and top_p == 1.0 and min_p == 0.0 and temperature != 1.0:
            continue
        generation = GenerationConfig(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p,
                                      min_p=min_p or None)
        processors = model._get_logits_processor(generation, input_ids_seq_length=1, device="cpu")
        names = [type(p).__name__.removesuffix("LogitsWarper") for p in processors]
        assert names == sorted(names, key=["Temperature", "TopK", "TopP", "MinP"].index), names
        scores = logits.double()[None].clone()
        for processor in processors:
            if type(processor).__name__ == "TopPLogitsWarper":
                # Rounding could put a sum near the threshold on either side, and torch sorts equal logits in an
                # unspecified order: neither may decide a case.
                order = torch.sort(scores[0], descending=True)
                sums = order.values.softmax(-1).cumsum(-1)
                edge = int(torch.searchsorted(sums, torch.tensor(top_p, dtype=torch.float64)))
                assert float((sums - top_p).abs().min()) > 1e-6, (temperature, top_k, top_p)
                tie = edge + 1 < vocabulary and order.values[edge] == order.values[edge + 1]
                if tie and torch.isfinite(order.values[edge]):
                    print("left out, a tie at the nucleus' edge:", temperature, top_k, top_p, min_p)
                    scores = None
                    break
            if type(processor).__name__ == "MinPLogitsWarper":
                ratio = (scores - scores.max()).exp()
                assert float((ratio - min_p).abs().min()) > 1e-6
            scores = processor(torch.zeros(1, 1, dtype=torch.long), scores)
        if scores is None:
            continue
        probabilities = scores.softmax(-1)[0]
        ids = torch.nonzero(torch.isfinite(scores[0]))[:, 0]
        name = f"sample.case{len(kept_cases)}"
        kept_cases.append((temperature, top_k, top_p, min_p))
        out.put(f"{name}.ids", ids.to(torch.int16))
        out.put(f"{name}.probabilities", probabilities[ids].float())
    out.put("sample.params", torch.tensor(kept_cases, dtype=torch.float32))


def main():
    out = File("attention.txt")
    attention(out, "grouped", kv_heads=2, group=3, d=40, length=70, rows=[0, 31, 32, 69], q_scale=1.0)
    attention(out, "sharp", kv_heads=1, group=1, d=16, length=100, rows=[1, 63, 99], q_scale=30.0)
    attention_backward(out, "backward", kv_heads=2, group=3, d=20, segments=[0, 5, 38, 39], q_scale=1.0)
    attention_backward(out, "backward_sharp", kv_heads=1, group=1, d=16, segments=[0, 70], q_scale=30.0)
    rope(out)
    silu(out)
    out.write()
    out = File("sampling.txt")
    log_softmax(out)
    sampling(out)
    out.write()


main()
