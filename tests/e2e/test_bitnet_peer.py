"""Compares twenty BitNet QAT steps of the presets native, bitnet-2b4t and bitnet-tips with a plain PyTorch model of
BitLinears: same start, same data, fp32."""
import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

import small_model
from conftest import PAGE, Server

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
from logprobs import straight, to_bf16  # noqa: E402 (registers the attention "rounded" too)

STEPS, SEQ = 20, 96
LR = {8: 1e-3, 16: 3e-4}  # by activation bits
TEXTS = [PAGE[i * 11: i * 11 + 90] for i in range(4)]
# With bitnet-tips: linear -> norm of the base from which the norm in this linear starts. Any other norm that the base
# lacks starts as ones.
BLOCK_NORM = {"q_proj": "input_layernorm", "k_proj": "input_layernorm", "v_proj": "input_layernorm",
              "gate_proj": "post_attention_layernorm", "up_proj": "post_attention_layernorm"}


def quantize(x, s, top, ste, scale_grad):
    """Codes times scale; docs/numerics.md 6."""
    s = s if scale_grad else s.detach()
    u = x / s
    if ste == "identity":
        return straight(x, torch.clamp(torch.round(u), -top, top) * s)
    return torch.clamp(straight(u, torch.round(u)), -top, top) * s


class BitLinear(torch.nn.Linear):
    share = 1.0  # quantized share of rows and weights of all linears, in the current step

    def __init__(self, linear, ste, scale_grad, bits, norm):
        super().__init__(linear.in_features, linear.out_features, bias=False)
        self.ste, self.scale_grad, self.top, self.rms_norm = ste, scale_grad, 2 ** (bits - 1) - 1, norm

    def forward(self, x):
        if self.rms_norm is not None:
            x = self.rms_norm(x)
        rows = quantize(x, x.abs().amax(-1, keepdim=True).clamp_min(1e-5) / self.top, self.top, self.ste, self.scale_grad)
        weight = quantize(self.weight, self.weight.abs().mean().clamp_min(1e-5), 1, self.ste, self.scale_grad)
        return torch.nn.functional.linear(self.partly(x, rows), self.partly(self.weight, weight), self.bias)

    def partly(self, x, quantized):
        return quantized if self.share == 1 else x + self.share * (quantized - x)


def plain_model(preset, ste, scale_grad, bits, ramp=None):
    """transformers' Llama with BitLinears for its linears, or BitNet b1.58 2B-4T as transformers implements it
    (sub-norms, relu^2); with bitnet-tips, a norm in every BitLinear and none before the blocks. `ramp` is ignored: it
    lets callers pass a whole case."""
    options = {key: value for key, value in small_model.CONFIG.items() if key not in ("architectures", "model_type", "torch_dtype")}
    options["attn_implementation"] = "rounded"  # keys and values as the cache holds them
    if preset == "bitnet-2b4t":
        model = transformers.BitNetForCausalLM(transformers.BitNetConfig(**{**options, "hidden_act": "relu2"}))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
    assert model.config.rope_parameters["rope_theta"] == small_model.CONFIG["rope_theta"]
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    norm = torch.nn.RMSNorm(linear.in_features, eps=model.config.rms_norm_eps) if preset == "bitnet-tips" else None
                    setattr(block, name, BitLinear(linear, ste, scale_grad, bits, norm))
        if preset == "bitnet-tips":
            layer.input_layernorm, layer.post_attention_layernorm = torch.nn.Identity(), torch.nn.Identity()
    return model


def load(model, tensors):
    """Loads every tensor of the model by its name; the head is the embedding."""
    state = {name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]}, strict=True)
    model.lm_head.weight = model.model.embed_tokens.weight


def start_of(model, tensors):
    """The state with which a job on this base begins, under the names of `model`."""
    state = {}
    for name, value in model.state_dict().items():
        path = name.split(".")
        if name.endswith(".rms_norm.weight") and path[-3] in BLOCK_NORM:
            state[name] = tensors[".".join([*path[:3], BLOCK_NORM[path[-3]], "weight"])]
        elif name in tensors:
            state[name] = tensors[name]
        elif name != "lm_head.weight":
            assert name.endswith("norm.weight"), name
            state[name] = np.ones(tuple(value.shape), np.float32)
    return state


def loss_of(model, ids, skipped=0):
    """Mean loss over the tokens of all rows, without the first `skipped` of each. Embedding and head are rounded to bf16, as in serving."""
    loss, table = 0, to_bf16(model.model.embed_tokens.weight)
    for row in ids:
        hidden = model.model(inputs_embeds=torch.nn.functional.embedding(torch.tensor([row]), table)).last_hidden_state
        logits = torch.nn.functional.linear(hidden, table)
        loss = loss + torch.nn.functional.cross_entropy(logits[0, skipped:-1], torch.tensor(row[1 + skipped:]), reduction="sum")
    return loss / sum(len(row) - 1 - skipped for row in ids)


def reference(model, ids, lr, ramp):
    """Losses of all steps, and gradients of step 1. `ramp`: None, or the quantized share of step 1 and the number of
    steps after which it is 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    losses, first = [], {}
    for step in range(STEPS):
        BitLinear.share = ramp[0] + (1 - ramp[0]) * step / ramp[1] if ramp and step < ramp[1] else 1.0
        loss = loss_of(model, ids)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            first = {name: parameter.grad.clone().numpy() for name, parameter in model.named_parameters()}
        optimizer.step()
    return losses, first


def spec(name, preset, ste, scale_grad, bits, ramp):
    return {"base_model": "base", "train_dataset": "four", "eval_dataset": "four",
            "bitnet_qat": {"preset": preset, "ste": f"STE_MODE_{ste.upper()}", "scale_grad": scale_grad, "act_bits": bits,
                           "compute_dtype": "COMPUTE_DTYPE_F32",
                           **({"warmup_lambda": {"from": ramp[0], "steps": ramp[1]}} if ramp else {})},
            "data": {"max_seq_len": SEQ, "packing": "PACKING_MODE_NONE"},
            "optim": {"lr": LR[bits], "max_grad_norm": 0, "schedule": "LR_SCHEDULE_CONSTANT", "warmup_steps": 0},
            "run": {"max_steps": STEPS, "micro_batch": len(TEXTS), "save_every": 1, "keep_last": 32},
            "publish": {"output_model": name}}


# Preset, STE, scale_grad, activation bits, ramp (see reference). A preset starts far from the form in which the base
# was trained, so its first losses show every activation that two orders of summation round to different codes. With 16
# bits, codes are 256 times finer, and the learning rate is lower.
CASES = [("native", "identity", False, 8, None), ("native", "round_only", False, 8, None), ("native", "round_only", True, 8, None),
         ("bitnet-2b4t", "identity", False, 16, None), ("bitnet-2b4t", "round_only", False, 16, None),
         ("bitnet-tips", "identity", False, 16, None),
         ("native", "identity", False, 8, (0.0, 10)), ("native", "round_only", True, 8, (0.25, 8))]


@pytest.fixture(scope="module", params=CASES,
                ids=lambda case: "-".join([*case[:2], *["scale_grad"] * case[2], str(case[3]), *["ramp"] * (case[4] is not None)]))
def compared(request, tmp_path_factory, model_directory):
    path = tmp_path_factory.mktemp("peer")
    server = Server(path / "state").start()
    server.run("models", "import", model_directory, "--name", "base", "--dtype", "f32")
    (path / "four.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    server.run("datasets", "upload", path / "four.jsonl", "--name", "four")
    (path / "spec.json").write_text(json.dumps(spec("ours", *request.param)))
    events = server.lines("jobs", "create", "--spec", path / "spec.json", "--watch", timeout=600)
    ids = [server.json("tokenize", "base", "--text", text)["token_ids"] + [small_model.CONFIG["eos_token_id"]] for text in TEXTS]
    model = plain_model(*request.param)
    load(model, start_of(model, load_file(model_directory / "model.safetensors")))
    theirs, first = reference(model, ids, LR[request.param[3]], request.param[4])
    yield SimpleNamespace(server=server, events=events, case=request.param, ids=ids, theirs=theirs, first=first)
    server.stop()


def test_losses_agree_with_pytorch(compared):
    ours, theirs = [event["loss"] for event in compared.events if event.get("type") == "step"], compared.theirs
    relative = [abs(a - b) / b for a, b in zip(ours, theirs, strict=True)]
    print(f"losses {theirs[0]:.4f} to {theirs[-1]:.4f}; relative differences: steps 1-3 {max(relative[:3]):.2e}, "
          f"4-20 {max(relative[3:]):.2e}")
    assert theirs[-1] <= 0.9 * theirs[0]
    assert max(relative[:3]) <= 1e-4
    assert max(relative[3:]) <= 1e-2  # roundings that flip after an optimizer step are legitimate


def test_gradients_of_step_1_agree_with_pytorch(compared):
    state = load_file(next(compared.server.state.glob("jobs/*/attempts/1/checkpoints/step-00000001/state.safetensors")))
    worst = 1.0
    for name, want in compared.first.items():
        got = state[name + ".exp_avg"].ravel().astype(np.float64) / 0.1  # the first moment after one step
        want = want.ravel().astype(np.float64)
        cosine = got @ want / (np.linalg.norm(got) * np.linalg.norm(want))
        worst = min(worst, cosine)
        assert cosine >= 0.9999, f"{name}: {cosine}"
    print(f"worst cosine of {len(compared.first)} gradients: {worst:.6f}")


def test_the_trained_masters_load_into_the_plain_model(compared):
    """Loads our tensors by name into PyTorch, where the next loss must be the evaluation loss that our trainer reports
    for these rows."""
    ours = load_file(compared.server.state / "models/ours/model.safetensors")
    assert set(compared.first) == set(ours)
    assert all(value.shape == compared.first[name].shape and value.dtype == np.float32 for name, value in ours.items())
    model = plain_model(*compared.case)
    load(model, ours)
    with torch.no_grad():
        theirs = loss_of(model, compared.ids).item()
    last = [event for event in compared.events if event.get("type") == "eval" and event["subject"] == "trained"][-1]
    print(f"loss after {last['step']} steps: ours {last['eval_loss']:.6f}, in PyTorch {theirs:.6f}")
    assert last["step"] == STEPS and last["eval_loss"] < 0.9 * compared.theirs[0]
    assert abs(theirs - last["eval_loss"]) <= 1e-4 * last["eval_loss"]
