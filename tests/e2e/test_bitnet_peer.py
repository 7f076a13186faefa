"""Twenty BitNet QAT steps beside a plain PyTorch model of BitLinears: same start, same data, fp32."""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import small_model
from conftest import PAGE, Server

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)

STEPS, LR, SEQ = 20, 1e-3, 96
TEXTS = [PAGE[i * 11: i * 11 + 90] for i in range(4)]


def straight(value, rounded):
    return value + (rounded - value).detach()


def to_bf16(value):
    return straight(value, value.to(torch.bfloat16).float())


def quantise(x, s, top, ste, scale_grad):
    """Codes times scale; docs/numerics.md 6."""
    s = s if scale_grad else s.detach()
    u = x / s
    if ste == "identity":
        return straight(x, torch.clamp(torch.round(u), -top, top) * s)
    return torch.clamp(straight(u, torch.round(u)), -top, top) * s


class BitLinear(torch.nn.Linear):
    ste, scale_grad = "identity", False

    def forward(self, x):
        rows = quantise(x, x.abs().amax(-1, keepdim=True).clamp_min(1e-5) / 127, 127, self.ste, self.scale_grad)
        weight = quantise(self.weight, self.weight.abs().mean().clamp_min(1e-5), 1, self.ste, self.scale_grad)
        return torch.nn.functional.linear(rows, weight, self.bias)


def attention(module, query, key, value, mask, **_):
    """Causal attention over keys and values rounded to bf16, as the cache holds them."""
    groups = query.shape[1] // key.shape[1]
    key, value = (to_bf16(t).repeat_interleave(groups, 1) for t in (key, value))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return out.transpose(1, 2).contiguous(), None


def reference(tensors, ids, ste, scale_grad):
    """Losses and gradients of step 1. Embedding and head are rounded to bf16, as they are served."""
    transformers.AttentionInterface.register("rounded", attention)
    config = transformers.LlamaConfig(**{key: value for key, value in small_model.CONFIG.items()
                                         if key not in ("architectures", "model_type", "torch_dtype")}, attn_implementation="rounded")
    model = transformers.LlamaForCausalLM(config)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    made = BitLinear(linear.in_features, linear.out_features, bias=False)
                    made.ste, made.scale_grad = ste, scale_grad
                    setattr(block, name, made)
    state = {name: torch.from_numpy(value.copy()) for name, value in tensors.items()}
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]}, strict=True)
    embedding = model.model.embed_tokens.weight
    model.lm_head.weight = embedding
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    losses, first = [], {}
    for step in range(STEPS):
        loss = 0
        for row in ids:
            table = to_bf16(embedding)
            hidden = model.model(inputs_embeds=torch.nn.functional.embedding(torch.tensor([row]), table)).last_hidden_state
            logits = torch.nn.functional.linear(hidden, table)
            loss = loss + torch.nn.functional.cross_entropy(logits[0, :-1], torch.tensor(row[1:]), reduction="sum")
        loss = loss / sum(len(row) - 1 for row in ids)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            first = {name: parameter.grad.clone().numpy() for name, parameter in model.named_parameters()}
        optimizer.step()
    return losses, first


def spec(name, ste, scale_grad):
    return {"base_model": "base", "train_dataset": "four",
            "bitnet_qat": {"ste": f"STE_MODE_{ste.upper()}", "scale_grad": scale_grad, "compute_dtype": "COMPUTE_DTYPE_F32"},
            "data": {"max_seq_len": SEQ, "packing": "PACKING_MODE_NONE"},
            "optim": {"lr": LR, "max_grad_norm": 0, "schedule": "LR_SCHEDULE_CONSTANT", "warmup_steps": 0},
            "run": {"max_steps": STEPS, "micro_batch": len(TEXTS), "save_every": 1, "keep_last": 32},
            "publish": {"output_model": name}}


@pytest.fixture(scope="module", params=[("identity", False), ("round_only", False), ("round_only", True)],
                ids=["identity", "round_only", "round_only_scale_grad"])
def raced(request, tmp_path_factory, model_directory):
    ste, scale_grad = request.param
    path = tmp_path_factory.mktemp("peer")
    server = Server(path / "state").start()
    server.run("models", "import", model_directory, "--name", "base", "--dtype", "f32")
    (path / "four.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    server.run("datasets", "upload", path / "four.jsonl", "--name", "four")
    (path / "spec.json").write_text(json.dumps(spec("ours", ste, scale_grad)))
    events = server.lines("jobs", "create", "--spec", path / "spec.json", "--watch", timeout=600)
    ids = [server.json("tokenize", "base", "--text", text)["token_ids"] + [small_model.CONFIG["eos_token_id"]] for text in TEXTS]
    tensors = load_file(model_directory / "model.safetensors")
    yield server, [event["loss"] for event in events if event.get("type") == "step"], reference(tensors, ids, ste, scale_grad)
    server.stop()


def test_losses(raced):
    _, ours, (theirs, _) = raced
    relative = [abs(a - b) / b for a, b in zip(ours, theirs, strict=True)]
    print(f"losses {theirs[0]:.4f} to {theirs[-1]:.4f}; relative differences: steps 1-3 {max(relative[:3]):.2e}, 4-20 {max(relative[3:]):.2e}")
    assert theirs[-1] <= 0.9 * theirs[0]
    assert max(relative[:3]) <= 1e-4
    assert max(relative[3:]) <= 1e-2  # roundings that flip after an optimiser step are legitimate


def test_gradients_of_step_1(raced):
    server, _, (_, first) = raced
    state = load_file(next(server.state.glob("jobs/*/attempts/1/checkpoints/step-00000001/state.safetensors")))
    worst = 1.0
    for name, want in first.items():
        got = state[name + ".exp_avg"].ravel().astype(np.float64) / 0.1  # the first moment after one step
        want = want.ravel().astype(np.float64)
        cosine = got @ want / (np.linalg.norm(got) * np.linalg.norm(want))
        worst = min(worst, cosine)
        assert cosine >= 0.9999, f"{name}: {cosine}"
    print(f"worst cosine of {len(first)} gradients: {worst:.6f}")


def test_the_trained_masters_load_into_the_plain_model(raced):
    """The state dict the other way: ours, by its names, into PyTorch."""
    server, _, (_, first) = raced
    ours = load_file(server.state / "models/ours/model.safetensors")
    assert set(first) == set(ours)
    assert all(ours[name].shape == first[name].shape and ours[name].dtype == np.float32 for name in first)
