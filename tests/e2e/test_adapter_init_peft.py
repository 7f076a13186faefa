"""Compares initial adapters (PiSSA, LoftQ) with those of PEFT: their values, and twenty training steps from them."""
import json

import numpy as np
import pytest

import small_model
from conftest import PAGE, Server
from nf4 import dequantized, read_bf16

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
peft = pytest.importorskip("peft", exc_type=ImportError)
bnb = pytest.importorskip("bitsandbytes", exc_type=ImportError)

from peft.utils.loftq_utils import _low_rank_decomposition  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from logprobs import worst_difference  # noqa: E402
from test_peft import ALPHA, LINEARS, LR, RANK, STEPS, TEXTS, agree, spec, transformers_model  # noqa: E402

# Method of the job, format and options of the base, and how to read it in f32.
STARTS = {
    "pissa-f32": ("lora", ["--to", "f32", "--adapter-init", "pissa"], lambda path: load_file(path / "model.safetensors")),
    "pissa-bf16": ("lora", ["--to", "bf16", "--adapter-init", "pissa"], lambda path: read_bf16(path / "model.safetensors")),
    "pissa-nf4": ("qlora", ["--to", "nf4", "--adapter-init", "pissa"], dequantized),
    "loftq-nf4": ("qlora", ["--to", "nf4", "--adapter-init", "loftq", "--iterations", "3"], dequantized),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory):
    path = tmp_path_factory.mktemp("init")
    running = Server(path / "state").start()
    running.run("models", "import", model_directory, "--name", "source", "--dtype", "f32")
    (path / "four.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    running.run("datasets", "upload", path / "four.jsonl", "--name", "four")
    yield running
    running.stop()


def train(model, ids):
    """Losses and final adapters of a PEFT model, trained as the job is."""
    parameters = {name.replace(".default", ""): parameter for name, parameter in model.named_parameters() if "lora_" in name}
    optimizer = torch.optim.AdamW(parameters.values(), lr=LR, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        loss = 0
        for row in ids:
            tokens = torch.tensor([row])
            loss = loss + torch.nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:], reduction="sum")
        loss = loss / sum(len(row) - 1 for row in ids)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses, {name: parameter.detach().numpy() for name, parameter in parameters.items()}


def rows(server):
    return [server.json("tokenize", "source", "--text", text)["token_ids"] + [small_model.CONFIG["eos_token_id"]] for text in TEXTS]


@pytest.fixture(scope="module", params=STARTS)
def trained(request, server, tmp_path_factory):
    """A job from the initial adapter, the same steps of PEFT, and both exports."""
    name = request.param
    method, options, read = STARTS[name]
    path = tmp_path_factory.mktemp(name)
    server.run("models", "convert", "source", "--name", name, "--adapter-name", f"{name}-start", "--rank", RANK, "--alpha", ALPHA, *options)
    job = {**spec(method, name, output=f"{name}-trained"), "warm_start_from": f"{name}-start"}
    (path / "job.json").write_text(json.dumps(job))
    events = server.lines("jobs", "create", "--spec", path / "job.json", "--watch")
    for model in ("start", "trained"):
        server.run("models", "export", f"{name}-{model}", "--format", "peft", "--out", path / model)
    base = read(server.state / "models" / name)
    model = peft.PeftModel.from_pretrained(transformers_model(base), path / "start", is_trainable=True)
    losses, final = train(model, rows(server))
    return {"name": name, "method": method, "path": path, "base": base, "final": final, "theirs": losses,
            "ours": [event["loss"] for event in events if event.get("type") == "step"]}


def test_training_agrees_with_peft_from_the_same_values(trained):
    ours, theirs = trained["ours"], trained["theirs"]
    print("worst relative difference of 20 losses:", max(abs(a - b) / b for a, b in zip(ours, theirs)))
    assert theirs[-1] <= 0.95 * theirs[0]
    assert agree(ours, theirs)
    adapter = load_file(trained["path"] / "trained/adapter_model.safetensors")
    assert adapter.keys() == trained["final"].keys()
    for name, value in trained["final"].items():
        assert np.linalg.norm(adapter[name] - value) <= 1e-2 * np.linalg.norm(value), name


def test_peft_loads_adapter_and_base_with_the_same_logprobs(server, trained):
    """The base is exported: as it is, or dequantized to bf16."""
    name, path = trained["name"], trained["path"]
    exported = name
    if name.endswith("nf4"):
        exported = f"{name}-bf16"
        server.run("models", "convert", name, "--to", "bf16", "--name", exported)
    server.run("models", "export", exported, "--format", "hf", "--out", path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(path / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, path / "trained").eval()
    score = server.json("score", f"{name}-trained", "--text", PAGE[:120])
    worst = worst_difference(score, model)
    print("worst difference of the logprobs:", worst)
    assert worst < (1e-3 if name == "pissa-f32" else 0.2)
    with model.disable_adapter():
        assert worst_difference(score, model) > 0.1


def test_merged_weights_are_those_of_peft(server, trained):
    name = f"{trained['name']}-trained"
    server.run("models", "convert", name, "--to", "bf16", "--name", f"{name}-bf16")
    ours = read_bf16(server.state / f"models/{name}-bf16/model.safetensors")
    model = peft.PeftModel.from_pretrained(transformers_model(trained["base"]), trained["path"] / "trained")
    theirs = model.merge_and_unload().to(torch.bfloat16).float().state_dict()
    for key, value in ours.items():
        want = theirs[key].numpy()
        # The sums differ in their last bits. Near the middle of two bf16 values, they round to different neighbours.
        assert (value == want).mean() > 0.995, key
        assert abs(value - want).max() <= abs(want).max() * 2.0 ** -7, key


def source_weights(server):
    return load_file(server.state / "models/source/model.safetensors")


@pytest.mark.parametrize("alpha, rslora", [(RANK, False), (ALPHA, False), (ALPHA, True)])
def test_pissa_matches_peft(server, tmp_path, alpha, rslora):
    """Base, adapter and twenty steps match those of PEFT, which makes its own initial values here."""
    name = f"peft-{alpha}-{rslora}"
    server.run("models", "convert", "source", "--to", "f32", "--name", name, "--adapter-init", "pissa", "--adapter-name", f"{name}-start",
               "--rank", RANK, "--alpha", alpha, *(["--rslora"] if rslora else []))
    config = peft.LoraConfig(r=RANK, lora_alpha=alpha, use_rslora=rslora, target_modules=LINEARS, init_lora_weights="pissa")
    model = peft.get_peft_model(transformers_model(source_weights(server)), config)
    scaling = alpha / RANK ** (0.5 if rslora else 1)
    base = load_file(server.state / f"models/{name}/model.safetensors")
    adapter = load_file(server.state / f"models/{name}-start/adapter_model.safetensors")
    theirs = model.state_dict()
    for key, value in source_weights(server).items():
        if not key.endswith("_proj.weight"):
            continue
        module = "base_model.model." + key.removesuffix(".weight")
        a, b = (theirs[f"{module}.lora_{letter}.default.weight"].numpy() for letter in "AB")
        ours_a, ours_b = (adapter[f"{module}.lora_{letter}.weight"] for letter in "AB")
        # Both sides round to f32. The smaller the gap between the last singular value that is kept and the next one, the
        # more the rounding mixes their vectors.
        values = np.linalg.svd(value.astype(np.float64), compute_uv=False)
        bound = 1e-6 * values[0] * (1 + values[RANK - 1] / (values[RANK - 1] - values[RANK]))
        assert np.linalg.norm(scaling * (ours_b @ ours_a - b @ a)) <= bound, key
        # A and B each take the square root of the singular values, so their rows and columns have equal lengths on both
        # sides. The common sign of a row of A and its column of B is free.
        assert np.allclose(np.linalg.norm(ours_a, axis=1), np.linalg.norm(a, axis=1), rtol=1e-4), key
        assert np.allclose(abs(ours_a), abs(a), atol=1e-3 * abs(a).max()), key
        assert np.linalg.norm(base[key] - theirs[f"{module}.base_layer.weight"].numpy()) <= bound, key
    job = {**spec("lora", name, output=f"{name}-trained", alpha=alpha, options={"use_rslora": rslora}), "warm_start_from": f"{name}-start"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    events = server.lines("jobs", "create", "--spec", tmp_path / "job.json", "--watch")
    ours = [event["loss"] for event in events if event.get("type") == "step"]
    losses, _ = train(model, rows(server))
    print("worst relative difference of 20 losses:", max(abs(x - y) / y for x, y in zip(ours, losses)))
    assert losses[-1] <= 0.95 * losses[0]
    assert agree(ours, losses)


@pytest.mark.parametrize("iterations", [1, 4])
def test_loftq_matches_peft(server, iterations):
    """peft.utils.loftq_utils.loftq_init needs a CUDA device, so this repeats its steps with the same functions on the
    CPU."""
    name = f"loftq-{iterations}"
    server.run("models", "convert", "source", "--to", "nf4", "--no-double-quant", "--name", name, "--adapter-init", "loftq",
               "--adapter-name", f"{name}-start", "--rank", RANK, "--alpha", RANK, "--iterations", iterations)
    base = dequantized(server.state / f"models/{name}")
    adapter = load_file(server.state / f"models/{name}-start/adapter_model.safetensors")
    for key, value in source_weights(server).items():
        # Blocks of bitsandbytes cross the ends of rows, ours do not: they agree only for rows of whole blocks.
        if not key.endswith("_proj.weight") or value.shape[1] % 64 != 0:
            continue
        weight = torch.from_numpy(value.copy())
        residual = weight.clone()
        for _ in range(iterations):
            quantized, state = bnb.functional.quantize_4bit(residual, quant_type="nf4", compress_statistics=False)
            values = bnb.functional.dequantize_4bit(quantized, state)
            parts = _low_rank_decomposition(weight - values, reduced_rank=RANK)
            residual = weight - parts["L"] @ parts["R"]
        module = "base_model.model." + key.removesuffix(".weight")
        ours = adapter[module + ".lora_B.weight"] @ adapter[module + ".lora_A.weight"]
        # From the second iteration on, both quantize slightly different residuals, so a weight near a threshold may get
        # another code.
        assert (np.isclose(base[key], values.numpy(), atol=1e-6)).mean() > (0.9999 if iterations == 1 else 0.98), key
        error = np.linalg.norm(base[key] + ours - value)
        want = torch.linalg.norm(values + parts["L"] @ parts["R"] - weight).item()
        assert abs(error - want) <= (1e-4 if iterations == 1 else 5e-3) * want, key
