"""Compares twenty QLoRA steps with PEFT on the dequantized base, and twenty LoRA steps with PEFT on the float base: same
data, same initial adapters, fp32 compute."""
import json
import math
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

import small_model
from conftest import PAGE, Server
from nf4 import dequantized, read_bf16

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
peft = pytest.importorskip("peft", exc_type=ImportError)
loraplus = pytest.importorskip("peft.optimizers.loraplus", exc_type=ImportError)

STEPS, RANK, ALPHA, LR, SEQ, SEED = 20, 4, 8, 5e-3, 96, 11
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TEXTS = [PAGE[i * 11: i * 11 + 90] for i in range(4)]


def spec(method="qlora", base="base", **changes):
    return {"base_model": base, "train_dataset": "four",
            method: {"r": RANK, "alpha": changes.get("alpha", ALPHA), "seed": SEED, "compute_dtype": "COMPUTE_DTYPE_F32",
                     "lora_plus_ratio": changes.get("lora_plus_ratio", 1), **changes.get("options", {})},
            "data": {"max_seq_len": SEQ, "packing": "PACKING_MODE_NONE"},
            "optim": {"lr": changes.get("lr", LR), "max_grad_norm": 0, "schedule": "LR_SCHEDULE_CONSTANT", "warmup_steps": 0},
            "run": {"max_steps": STEPS, "micro_batch": len(TEXTS), "save_every": 1, "keep_last": 32},
            "publish": {"output_model": changes["output"]}}


def train(server, tmp_path, **changes):
    path = tmp_path / f"{changes['output']}.json"
    path.write_text(json.dumps(spec(**changes)))
    events = server.lines("jobs", "create", "--spec", path, "--watch")
    return [event["loss"] for event in events if event.get("type") == "step"]


def philox_uniform(seed, index, stream):
    """Philox4x32-10 (Salmon et al., SC'11) as the trainer draws adapters: 53 bits of the first two words."""
    mask = np.uint64(0xFFFFFFFF)
    index = np.asarray(index, np.uint64)
    c = [index & mask, index >> np.uint64(32), np.full_like(index, stream & 0xFFFFFFFF), np.full_like(index, stream >> 32)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), p1 & mask, (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p0 & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return ((c[0] << np.uint64(32) | c[1]) >> np.uint64(11)).astype(np.float64) * 2.0 ** -53


def transformers_model(base):
    """A model of transformers with the tensors of `base`, tied if `base` has no head."""
    options = {key: value for key, value in small_model.CONFIG.items() if key not in ("architectures", "model_type", "torch_dtype")}
    options["intermediate_size"] = base["model.layers.0.mlp.up_proj.weight"].shape[0]
    config = transformers.LlamaConfig(**{**options, "tie_word_embeddings": "lm_head.weight" not in base})
    model = transformers.LlamaForCausalLM(config)
    tensors = {name: torch.from_numpy(value.copy()) for name, value in base.items()}
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    model.load_state_dict(tensors, strict=True)
    return model


def reference(base, ids, mask_first=False, lora_plus_ratio=1, **options):
    """PEFT on transformers, on the tensors of `base`: losses, gradients of step 1, final adapters. `mask_first`: a wrong
    mask, without the loss of the first predicted token of each row. `options`: of peft.LoraConfig."""
    options = {"r": RANK, "lora_alpha": ALPHA, "target_modules": LINEARS, "lora_dropout": 0.0, **options}
    model = peft.get_peft_model(transformers_model(base), peft.LoraConfig(**options))
    parameters = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if "lora_A" in name:
            parts = name.split(".")
            layer, module = int(parts[parts.index("layers") + 1]), parts[-4]
            values = philox_uniform(SEED, np.arange(parameter.numel()), layer * 7 + LINEARS.index(module))
            bound = 1.0 / math.sqrt(parameter.shape[1])
            parameter.data = torch.from_numpy(((2.0 * values - 1.0) * bound).astype(np.float32)).reshape(parameter.shape)
        # PEFT saves the magnitudes of DoRA under a name without ".weight", and the copies of modules_to_save under their
        # own names.
        saved_as = name.replace(".modules_to_save.default", "").replace(".default", "")
        parameters[saved_as.replace("magnitude_vector.weight", "magnitude_vector")] = parameter
    if lora_plus_ratio == 1:
        optimizer = torch.optim.AdamW(parameters.values(), lr=LR, weight_decay=0.0)
    else:
        optimizer = loraplus.create_loraplus_optimizer(model=model, optimizer_cls=torch.optim.AdamW, lr=LR, weight_decay=0.0,
                                                       loraplus_lr_ratio=lora_plus_ratio)
    losses, first = [], {}
    for step in range(STEPS):
        total = sum(len(row) - 1 for row in ids) - (len(ids) if mask_first else 0)
        loss = 0
        for row in ids:
            tokens = torch.tensor([row])
            labels = tokens[0, 1:].clone()
            if mask_first:
                labels[0] = -100
            loss = loss + torch.nn.functional.cross_entropy(model(tokens).logits[0, :-1], labels, reduction="sum")
        loss = loss / total
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            first = {name: parameter.grad.clone().numpy() for name, parameter in parameters.items()}
        optimizer.step()
    final = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    if options.get("ensure_weight_tying"):
        final["base_model.model.lm_head.weight"] = final["base_model.model.model.embed_tokens.weight"]
    return losses, first, final


def agree(ours, theirs):
    return all(abs(a - b) <= 1e-3 * abs(b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def compared(tmp_path_factory, model_directory):
    path = tmp_path_factory.mktemp("peft")
    server = Server(path / "state").start()
    server.run("models", "import", model_directory, "--name", "float", "--dtype", "f32")
    server.run("models", "import", model_directory, "--name", "float-bf16", "--dtype", "bf16")
    server.run("models", "convert", "float", "--to", "nf4", "--name", "base")
    (path / "four.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    server.run("datasets", "upload", path / "four.jsonl", "--name", "four")
    ours = train(server, path, output="ours")
    eos = small_model.CONFIG["eos_token_id"]
    ids = [server.json("tokenize", "base", "--text", text)["token_ids"] + [eos] for text in TEXTS]
    yield server, path, ours, ids, reference(dequantized(server.state / "models/base"), ids)
    server.stop()


def test_losses_agree_with_peft(compared):
    _, _, ours, _, (theirs, _, _) = compared
    print("worst relative difference of 20 losses:", max(abs(a - b) / b for a, b in zip(ours, theirs)))
    assert theirs[-1] <= 0.9 * theirs[0]
    assert agree(ours, theirs)


def test_lora_plus_agrees_with_peft(compared):
    server, path, ours, ids, _ = compared
    plus = train(server, path, output="lora-plus", lora_plus_ratio=8)
    theirs, _, _ = reference(dequantized(server.state / "models/base"), ids, lora_plus_ratio=8)
    assert agree(plus, theirs)
    assert not agree(plus, ours)


def test_gradients_of_step_1_agree_with_peft(compared):
    server, _, _, _, (_, first, _) = compared
    checkpoint = next(server.state.glob("jobs/*/attempts/1/checkpoints/step-00000001/state.safetensors"))
    state = load_file(checkpoint)
    for name, want in first.items():
        got = state[name + ".exp_avg"].ravel().astype(np.float64) / 0.1  # the first moment after one step
        want = want.ravel().astype(np.float64)
        if "lora_A" in name:  # B is 0 at the start, and so is A's gradient
            assert np.abs(want).max() == 0 and np.abs(got).max() == 0
            continue
        cosine = got @ want / (np.linalg.norm(got) * np.linalg.norm(want))
        assert cosine >= 0.9999, f"{name}: {cosine}"


def test_final_adapters_agree_with_peft(compared):
    server, path, _, _, (_, _, final) = compared
    server.run("models", "export", "ours", "--format", "peft", "--out", path / "adapter")
    ours = load_file(path / "adapter" / "adapter_model.safetensors")
    assert ours.keys() == final.keys()
    for name, want in final.items():
        difference = np.linalg.norm(ours[name] - want) / np.linalg.norm(want)
        assert difference <= 1e-2, f"{name}: {difference}"


def test_export_loads_on_the_base_that_it_names_without_a_warning(compared, tmp_path, model_directory):
    server, _, _, ids, _ = compared
    server.run("models", "export", "ours", "--format", "peft", "--out", tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(model_directory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FutureWarning)  # PEFT calls deprecated functions of transformers
        model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert model.base_model.model.config.hidden_size == small_model.CONFIG["hidden_size"]
    row = torch.tensor([ids[0]])
    with torch.no_grad():
        adapted = model(row).logits
        with model.disable_adapter():
            assert not torch.equal(adapted, model(row).logits)


@pytest.mark.parametrize("changes", [{"alpha": 2 * ALPHA}, {"lr": 1.1 * LR}], ids=["alpha", "lr"])
def test_wrong_setting_is_detected(compared, tmp_path, changes):
    server, _, _, _, (theirs, _, _) = compared
    assert not agree(train(server, tmp_path, output="wrong-" + next(iter(changes)), **changes), theirs)


def test_wrong_mask_is_detected(compared):
    server, _, ours, ids, _ = compared
    assert not agree(ours, reference(dequantized(server.state / "models/base"), ids, mask_first=True)[0])


@pytest.mark.parametrize("base, read, lora_plus_ratio", [("float", load_file, 1), ("float", load_file, 8), ("float-bf16", read_bf16, 1)])
def test_lora_on_a_float_base_agrees_with_peft(compared, base, read, lora_plus_ratio):
    """PEFT reads the base as it is stored, without NF4."""
    server, path, _, ids, _ = compared
    output = f"lora-{base}-{lora_plus_ratio}"
    ours = train(server, path, method="lora", base=base, output=output, lora_plus_ratio=lora_plus_ratio)
    theirs, _, final = reference(read(server.state / "models" / base / "model.safetensors"), ids, lora_plus_ratio=lora_plus_ratio)
    print("worst relative difference of 20 losses:", max(abs(a - b) / b for a, b in zip(ours, theirs)))
    assert theirs[-1] <= 0.9 * theirs[0]
    assert agree(ours, theirs)
    server.run("models", "export", output, "--format", "peft", "--out", path / output)
    trained = load_file(path / output / "adapter_model.safetensors")
    assert trained.keys() == final.keys()
    if lora_plus_ratio == 1:
        for name, want in final.items():
            difference = np.linalg.norm(trained[name] - want) / np.linalg.norm(want)
            assert difference <= 1e-2, f"{name}: {difference}"
