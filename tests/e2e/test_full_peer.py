"""Compares twenty steps of full fine-tuning with transformers and torch's AdamW: same start and data, fp32 compute."""
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

STEPS, LR, SEQ = 20, 1e-3, 96
TEXTS = [PAGE[i * 11: i * 11 + 90] for i in range(4)]


def train(server, path, output, compute="COMPUTE_DTYPE_F32", method="full", rows_alone=False, **options):
    """rows_alone: a micro-batch of its own for each row."""
    spec = {"base_model": "base", "train_dataset": "four", "eval_dataset": "four", method: {"compute_dtype": compute, **options},
            "data": {"max_seq_len": SEQ, "packing": "PACKING_MODE_NONE"},
            "optim": {"lr": LR, "max_grad_norm": 0, "schedule": "LR_SCHEDULE_CONSTANT", "warmup_steps": 0},
            "run": {"max_steps": STEPS, "micro_batch": 1 if rows_alone else len(TEXTS),
                    "grad_accum": len(TEXTS) if rows_alone else 1, "save_every": 1, "keep_last": 32},
            "publish": {"output_model": output}}
    (path / f"{output}.json").write_text(json.dumps(spec))
    return server.lines("jobs", "create", "--spec", path / f"{output}.json", "--watch", timeout=600)


def losses(events):
    return [event["loss"] for event in events if event.get("type") == "step"]


def load(directory):
    options = {key: value for key, value in small_model.CONFIG.items() if key not in ("architectures", "model_type", "torch_dtype")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
    state = {name: torch.from_numpy(np.array(value)) for name, value in load_file(directory / "model.safetensors").items()}
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]}, strict=True)
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def loss_of(model, ids, skipped=0):
    """Mean loss over the predicted tokens of all rows, without the first `skipped` of each row."""
    loss = 0
    for row in ids:
        logits = model(torch.tensor([row])).logits[0, skipped:-1]
        loss = loss + torch.nn.functional.cross_entropy(logits.float(), torch.tensor(row[1 + skipped:]), reduction="sum")
    return loss / sum(len(row) - 1 - skipped for row in ids)


def reference(directory, ids, lr=LR, skipped=0, autocast=False, prepare=lambda model: None):
    """Losses of all steps, gradients of step 1, and the final weights. `prepare` changes the model before the first step."""
    model = load(directory)
    prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    seen, first = [], {}
    for step in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, ids, skipped)
        optimizer.zero_grad()
        loss.backward()
        seen.append(loss.item())
        if step == 0:
            first = {name: parameter.grad.clone().numpy() for name, parameter in model.named_parameters()}
        optimizer.step()
    return SimpleNamespace(losses=seen, first=first, final={name: p.detach().numpy() for name, p in model.named_parameters()})


def worst(ours, theirs):
    return max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def compared(tmp_path_factory, model_directory):
    path = tmp_path_factory.mktemp("full")
    server = Server(path / "state").start()
    server.run("models", "import", model_directory, "--name", "base", "--dtype", "f32")
    (path / "four.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    server.run("datasets", "upload", path / "four.jsonl", "--name", "four")
    events = train(server, path, "ours")
    ids = [server.json("tokenize", "base", "--text", text)["token_ids"] + [small_model.CONFIG["eos_token_id"]] for text in TEXTS]
    yield SimpleNamespace(server=server, path=path, events=events, ids=ids, base=model_directory,
                          theirs=reference(model_directory, ids))
    server.stop()


def test_losses_agree_with_transformers(compared):
    ours, theirs = losses(compared.events), compared.theirs.losses
    print(f"losses {theirs[0]:.4f} to {theirs[-1]:.4f}; worst relative difference of {STEPS}: {worst(ours, theirs):.1e}")
    assert theirs[-1] <= 0.8 * theirs[0]
    assert worst(ours, theirs) <= 1e-3


def test_losses_in_bf16_agree_with_autocast(compared):
    """torch's autocast rounds the outputs of all linears to bf16; ours adds them to the residual stream in f32."""
    ours = losses(train(compared.server, compared.path, "bf16", "COMPUTE_DTYPE_BF16"))
    theirs = reference(compared.base, compared.ids, autocast=True).losses
    print(f"worst relative difference of {STEPS} losses in bf16: {worst(ours, theirs):.1e}; of autocast and fp32: "
          f"{worst(compared.theirs.losses, theirs):.1e}")
    assert worst(ours, theirs) <= 2e-2
    assert ours != losses(compared.events)


def test_wrong_settings_are_detected(compared):
    """The bound of test_losses_agree_with_transformers detects a learning rate 2 % higher, and another mask."""
    ours = losses(compared.events)
    assert worst(ours, reference(compared.base, compared.ids, lr=1.02 * LR).losses) > 1e-3
    assert worst(ours, reference(compared.base, compared.ids, skipped=1).losses) > 1e-3


def test_gradients_of_step_1_agree_with_transformers(compared):
    job = compared.server.state / "jobs" / compared.events[-1]["job_id"]
    state = load_file(job / "attempts/1/checkpoints/step-00000001/state.safetensors")
    cosines = {}
    for name, want in compared.theirs.first.items():
        got = state[name + ".exp_avg"].ravel().astype(np.float64) / 0.1  # the first moment after one step
        want = want.ravel().astype(np.float64)
        cosines[name] = got @ want / (np.linalg.norm(got) * np.linalg.norm(want))
        assert 0.999 <= np.linalg.norm(got) / np.linalg.norm(want) <= 1.001, name
    print(f"worst cosine of {len(cosines)} gradients: {min(cosines.values()):.7f}")
    assert min(cosines.values()) >= 0.9999, min(cosines, key=cosines.get)


def test_final_weights_agree_with_transformers(compared):
    ours, start = load_file(compared.server.state / "models/ours/model.safetensors"), load_file(compared.base / "model.safetensors")
    assert set(ours) == set(compared.theirs.final)
    for name, want in compared.theirs.final.items():
        moved = np.linalg.norm(want - start[name])
        assert ours[name].dtype == np.float32 and moved > 0
        assert np.linalg.norm(ours[name] - want) <= 0.02 * moved, name


def test_transformers_gives_the_loss_that_the_job_reports(compared):
    model = load(compared.server.state / "models/ours")
    with torch.no_grad():
        theirs = loss_of(model, compared.ids).item()
    last = [event for event in compared.events if event.get("type") == "eval" and event["subject"] == "trained"][-1]
    assert last["step"] == STEPS
    assert abs(theirs - last["eval_loss"]) <= 1e-4 * theirs
