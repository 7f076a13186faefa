"""Options of adapters, from training to the next import: twenty steps beside PEFT with the same option, a checkpoint,
the export in PEFT, the merged weights and the same adapter imported again."""
import json

import numpy as np
import pytest

import small_model
from conftest import PAGE, Server
from nf4 import dequantized, dequantized_int8, read_bf16

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
peft = pytest.importorskip("peft", exc_type=ImportError)

from safetensors.numpy import load_file  # noqa: E402

from logprobs import worst_difference  # noqa: E402
from test_peft import STEPS, TEXTS, agree, reference, train, transformers_model  # noqa: E402

TARGETS = r".*\.layers\.[02]\.(self_attn\.(q|v)_proj|mlp\.(?:up|down)_proj)"
RANKS = {"rank_pattern": {"layers.2.self_attn.q_proj": 2, "(up|down)_proj": 8},
         "alpha_pattern": {"down_proj": 40, r"^model.*0\.self_attn.v_proj": 2}}
SAVED = ["norm", "embed_tokens", "lm_head"]  # "norm" names all norms
# The options of Nibble, the same ones of PEFT, and a change that must change the losses.
OPTIONS = {
    "patterns": ({"target_pattern": TARGETS, **RANKS}, {"target_modules": TARGETS, **RANKS},
                 {"alpha_pattern": {**RANKS["alpha_pattern"], "down_proj": 80}}),
    "dora": ({"use_dora": True}, {"use_dora": True}, {"use_dora": False}),
    # PEFT trains vectors with the learning rate of B.
    "dora_plus": ({"use_dora": True, "lora_plus_ratio": 8, "r": 2}, {"use_dora": True, "lora_plus_ratio": 8, "r": 2}, {"alpha": 16}),
    "blocks": ({}, {}, {"alpha": 16}),
    "blocks_of_512": ({}, {}, {"alpha": 16}),
    "blocks_of_4096": ({}, {}, {"alpha": 16}),
    "rslora": ({"use_rslora": True}, {"use_rslora": True}, {"use_rslora": False}),
    "names": ({"target_modules": ["down_proj", "q_proj"]}, {"target_modules": ["down_proj", "q_proj"]}, {"target_modules": ["q_proj"]}),
    # PEFT draws other masks. It trains without dropout here, so only the job with the change has its losses.
    "dropout": ({"dropout": 0.2}, {}, {"dropout": 0}),
    "ranks": (RANKS, RANKS, {"rank_pattern": {**RANKS["rank_pattern"], "(up|down)_proj": 4}}),
    "saved": ({"modules_to_save": SAVED}, {"modules_to_save": SAVED}, {"modules_to_save": SAVED[:2]}),
    # PEFT trains vectors with the learning rate of B, and matrices with that of A.
    "saved_plus": ({"modules_to_save": SAVED, "lora_plus_ratio": 4, "use_dora": True},
                   {"modules_to_save": SAVED, "lora_plus_ratio": 4, "use_dora": True}, {"lora_plus_ratio": 1}),
    # One trained matrix is both embedding and head.
    "saved_tied": ({"modules_to_save": ["model.norm", "embed_tokens"]},
                   {"modules_to_save": ["model.norm", "embed_tokens"], "ensure_weight_tying": True}, {"modules_to_save": ["model.norm"]}),
}
# Reads each base as it is stored. lora trains on `float` and `untied`, qlora on the others, which are nf4. `untied` and
# `untied4` have a separate head. In `base512` and `base4096`, the rows of down_proj are longer than a block.
BASES = {"float": lambda server: load_file(server.state / "models/float/model.safetensors"),
         "base": lambda server: dequantized(server.state / "models/base"),
         "base32": lambda server: dequantized(server.state / "models/base32"),
         "untied": lambda server: load_file(server.state / "models/untied/model.safetensors"),
         "untied4": lambda server: dequantized(server.state / "models/untied4"),
         "base512": lambda server: dequantized(server.state / "models/base512"),
         "base4096": lambda server: dequantized(server.state / "models/base4096")}
CASES = [(method, base, option) for option in ("patterns", "dora", "dora_plus", "ranks", "saved_tied", "rslora", "names", "dropout")
         for method, base in [("lora", "float"), ("qlora", "base")]]
CASES += [("qlora", "base32", "blocks"), ("lora", "untied", "saved"), ("qlora", "untied4", "saved"), ("lora", "untied", "saved_plus"),
          ("qlora", "base512", "blocks_of_512"), ("qlora", "base4096", "blocks_of_4096")]


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory):
    path = tmp_path_factory.mktemp("options")
    with_data = Server(path / "state").start()
    with_data.run("models", "import", model_directory, "--name", "float", "--dtype", "f32")
    with_data.run("models", "convert", "float", "--to", "nf4", "--name", "base")
    with_data.run("models", "convert", "float", "--to", "nf4", "--name", "base32", "--nf4-block", "32", "--no-double-quant")
    untied = small_model.write(path / "untied", tie_word_embeddings=False)
    with_data.run("models", "import", untied, "--name", "untied", "--dtype", "f32")
    with_data.run("models", "convert", "untied", "--to", "nf4", "--name", "untied4")
    wide = small_model.write(path / "wide", intermediate_size=4608)
    with_data.run("models", "import", wide, "--name", "wide", "--dtype", "f32")
    for block, scaler_block in ((512, 64), (4096, 32)):
        with_data.run("models", "convert", "wide", "--to", "nf4", "--name", f"base{block}", "--nf4-block", block,
                      "--scaler-block", scaler_block)
    (path / "four.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with_data.run("datasets", "upload", path / "four.jsonl", "--name", "four")
    yield with_data
    with_data.stop()


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def trained(request, server, tmp_path_factory):
    """A job with the option, its export for PEFT, and what PEFT computed."""
    method, base, option = request.param
    path = tmp_path_factory.mktemp(f"{method}-{option}")
    tensors = BASES[base]
    name = f"{method}-{option}"
    ours, theirs, wrong = OPTIONS[option]
    got = train(server, path, method=method, base=base, output=name, options=ours)
    eos = small_model.CONFIG["eos_token_id"]
    ids = [server.json("tokenize", base, "--text", text)["token_ids"] + [eos] for text in TEXTS]
    losses, _, final = reference(tensors(server), ids, **theirs)
    server.run("models", "export", name, "--format", "peft", "--out", path / "peft")
    changed = train(server, path, method=method, base=base, output=f"{name}-wrong", options={**ours, **wrong})
    return {"name": name, "base": base, "method": method, "option": option, "path": path, "tensors": tensors(server),
            "losses": (got, losses), "wrong": changed, "final": final}


def test_losses_and_adapter_agree_with_peft(trained):
    got, want = trained["losses"]
    if trained["option"] == "dropout":
        assert agree(got[:1], want[:1]), "B is 0 at the start"
        assert agree(trained["wrong"], want) and not agree(got, want)
        assert json.loads((trained["path"] / "peft/adapter_config.json").read_text())["lora_dropout"] == 0.2
        return
    print("worst relative difference of 20 losses:", max(abs(a - b) / b for a, b in zip(got, want)))
    assert want[-1] <= 0.95 * want[0]
    assert agree(got, want)
    assert not agree(trained["wrong"], want)
    adapter = load_file(trained["path"] / "peft/adapter_model.safetensors")
    assert adapter.keys() == trained["final"].keys()
    for name, value in trained["final"].items():
        assert adapter[name].shape == value.shape, name
        # Not element by element: AdamW makes a whole step of a gradient that is nearly 0, in either direction.
        assert np.linalg.norm(adapter[name] - value) <= 1e-2 * np.linalg.norm(value), name


def test_peft_loads_the_export_with_the_same_logprobs(server, trained):
    model = peft.PeftModel.from_pretrained(transformers_model(trained["tensors"]), trained["path"] / "peft").eval()
    score = server.json("score", trained["name"], "--text", PAGE[:120])
    with model.disable_adapter():
        assert worst_difference(score, model) > 0.1
    # A linear of qlora reads rows in bf16.
    assert worst_difference(score, model) < (1e-3 if trained["method"] == "lora" else 0.2)


def test_merged_weights_are_those_of_peft(server, trained):
    name = trained["name"]
    server.run("models", "convert", name, "--to", "bf16", "--name", f"{name}-bf16")
    ours = read_bf16(server.state / f"models/{name}-bf16/model.safetensors")
    model = peft.PeftModel.from_pretrained(transformers_model(trained["tensors"]), trained["path"] / "peft")
    theirs = model.merge_and_unload().to(torch.bfloat16).float().state_dict()
    assert len(ours) > 20
    for key, value in ours.items():
        want = theirs[key].numpy()
        assert (value == want).mean() > 0.995, key
        assert abs(value - want).max() <= abs(want).max() * 2.0 ** -7, key
    server.run("models", "convert", name, "--to", "int8", "--name", f"{name}-int8")
    verdict = server.json("models", "verify", f"{name}-int8")
    assert verdict["equal"] is True and verdict["recorded_by"] == "trainer"


def test_checkpoint_and_export_are_the_same_model(server, trained):
    name = trained["name"]
    want = server.json("models", "get", name)
    [job] = [job for job in server.json("jobs", "list")["jobs"] if job["spec"]["publish"]["output_model"] == name]
    server.run("jobs", "publish", f"{job['id']}/{STEPS}", "--name", f"{name}-checkpoint")
    server.run("models", "import", trained["path"] / "peft", "--name", f"{name}-again", "--base", trained["base"])
    for copy in ("checkpoint", "again"):
        assert server.json("models", "get", f"{name}-{copy}")["digest"] == want["digest"], copy


@pytest.mark.parametrize("options", [{}, {"use_dora": True, "lora_plus_ratio": 4},
                                     {"dropout": 0.2, "target_modules": ["down_proj", "q_proj"]},
                                     {"target_pattern": TARGETS, **RANKS, "use_rslora": True}],
                         ids=["plain", "dora", "dropout", "patterns"])
@pytest.mark.parametrize("activations", ["int8", "bf16"])
def test_adapter_of_an_int8_base_goes_to_peft_and_back(server, tmp_path, activations, options):
    """PEFT applies the adapter to the base's codes times their scales, without codes of rows."""
    base, name = f"rows-{activations}", f"{activations}-{'-'.join(options) or 'plain'}"
    if base not in [model["name"] for model in server.json("models", "list")["models"]]:
        server.run("models", "convert", "float", "--to", "int8", "--name", base, "--activations", activations)
    train(server, tmp_path, method="lora", base=base, output=name, options=options)
    server.run("models", "export", name, "--format", "peft", "--out", tmp_path / "peft")
    tensors = dequantized_int8(server.state / f"models/{base}")
    model = peft.PeftModel.from_pretrained(transformers_model(tensors), tmp_path / "peft").eval()
    score = server.json("score", name, "--text", PAGE[:120])
    adapted = worst_difference(score, model)
    with model.disable_adapter():
        plain = worst_difference(score, model)
    print(f"worst difference to PEFT {adapted:.1e}, without the adapter {plain:.1e}")
    assert adapted <= (0.2 if activations == "int8" else 0.05) < plain
    server.run("models", "convert", name, "--to", "bf16", "--name", f"{name}-bf16")
    theirs = model.merge_and_unload().to(torch.bfloat16).float().state_dict()
    for key, value in read_bf16(server.state / f"models/{name}-bf16/model.safetensors").items():
        want = theirs[key].numpy()
        assert (value == want).mean() > 0.995, key
        assert abs(value - want).max() <= abs(want).max() * 2.0 ** -7, key
    server.run("models", "import", tmp_path / "peft", "--name", f"{name}-again", "--base", base)
    assert server.json("models", "get", f"{name}-again")["digest"] == server.json("models", "get", name)["digest"]
