"""BitNet checkpoints between transformers and Nibble, both linear classes, both ways. Needs what `tests/run.sh --full` installs."""
import json
import os

import pytest

import small_model
from conftest import PAGE, Server

pytestmark = pytest.mark.full
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # transformers compiles its unpacking: minutes, for nothing here

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("accelerate", exc_type=ImportError)
from logprobs import compare, golden as families, worst_difference  # noqa: E402 (puts the goldens on the path)
import make_bitnet_golden as bitnet  # noqa: E402

TEXT = (PAGE * 2)[:256]  # one token a byte
SHAPE = dict(vocab_size=320, hidden_size=128, intermediate_size=344, num_hidden_layers=3, bos_token_id=256, eos_token_id=257,
             pad_token_id=None, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("bitnet") / "state").start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What transformers' own quantisation-aware training makes of a random model: masters that recite the page."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("masters")
    model = transformers.BitNetForCausalLM(transformers.BitNetConfig(**{**families.COMMON, **SHAPE}))
    with_tokenizer(model, "auto_online", directory / "start")
    model = bitnet.load(directory / "start").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    ids = torch.tensor([list((PAGE * 3)[shift:shift + 256].encode()) for shift in range(0, 64, 16)])
    for step in range(150):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss after 150 steps: {loss.item():.3f}")
    assert loss.item() < 0.5
    return model.eval()


def with_tokenizer(model, name, directory):
    bitnet.save(model, name, directory)
    (directory / "tokenizer.json").write_text(json.dumps(small_model.tokenizer(), ensure_ascii=False), encoding="utf-8")
    return directory


def score(server, name, top=5):
    return server.json("score", name, "--text", TEXT, "--top", top)


def same_top_token(answer, model, linear_class):
    """The share of positions where transformers' model in bf16 has the same most likely token."""
    # AutoBitLinear of transformers 5 multiplies float activations by bf16 weights: it needs autocast to run at all.
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=linear_class == "autobitlinear"):
        theirs = model(torch.tensor([answer["token_ids"]])).logits[0].float().argmax(-1).tolist()
    ours = answer["top_token_ids"][1:]
    assert len(ours) == len(TEXT) - 1
    same = sum(a == b for a, b in zip(ours, theirs[:-1], strict=True)) / len(ours)
    print(f"{linear_class}: the same top token at {same:.4f} of {len(ours)} positions")
    return same


@torch.no_grad()
def worst_top_difference(answer, model, count):
    """Of the `count` likeliest tokens at every position but the first to transformers': each by its token, and by its rank, so that
    one that was left out is seen and equals may stand in any order."""
    theirs = torch.log_softmax(model(torch.tensor([answer["token_ids"]])).logits[0].double(), -1)[:-1]
    worst = 0.0
    for ours, row in zip(answer["top_logprobs"][1:], theirs, strict=True):
        assert len(ours) == len({one["token_id"] for one in ours}) == count
        for one, ranked in zip(ours, row.topk(count).values.tolist(), strict=True):
            worst = max(worst, abs(one["logprob"] - row[one["token_id"]].item()), abs(one["logprob"] - ranked))
    return worst


def test_a_checkpoint_with_norms_in_its_linears_gives_its_logits(server, tmp_path):
    """A random model: one activation that two sums round to different codes changes every later logit by up to 0.1, so each of 16
    short texts is compared alone, and half of them must meet no such tie. A wrong formula would fail them all."""
    directory = with_tokenizer(bitnet.make("rms_norm", **SHAPE), "rms_norm", tmp_path / "hf")
    server.run("models", "import", directory, "--name", "hf-rms-norm", "--dtype", "f32")
    assert server.json("models", "get", "hf-rms-norm")["format"] == "ternary"
    model, worst = bitnet.load(directory), []
    for begin in range(0, 256, 16):
        answer = server.json("score", "hf-rms-norm", "--text", TEXT[begin:begin + 16])
        worst.append(worst_difference(answer, model))
    print("worst differences of 16 texts: " + " ".join(f"{value:.1e}" for value in worst))
    assert sum(value <= 1e-3 for value in worst) >= 8


def test_the_twenty_likeliest_tokens_are_transformers(server, tmp_path):
    """A random model again, so short texts, each alone. A third of them must meet no tie: a wrong order, a wrong sum or a token left
    out would fail them all."""
    directory = with_tokenizer(bitnet.make("bitlinear", **SHAPE), "bitlinear", tmp_path / "hf")
    server.run("models", "import", directory, "--name", "hf-random", "--dtype", "f32")
    model = bitnet.load(directory)
    worst = [worst_top_difference(server.json("score", "hf-random", "--text", TEXT[begin:begin + 8], "--top", 20), model, 20)
             for begin in range(0, 256, 8)]
    print("worst differences of 20 logprobs at 7 positions of 32 texts: " + " ".join(f"{value:.1e}" for value in worst))
    assert sum(value <= 1e-3 for value in worst) >= 11


@pytest.mark.parametrize("name", [name for name in bitnet.CLASSES if name != "rms_norm"])
def test_a_checkpoint_of_transformers_gives_its_logits(server, trained, tmp_path, name):
    directory = with_tokenizer(trained, name, tmp_path / "hf")
    server.run("models", "import", directory, "--name", f"hf-{name}", "--dtype", "f32")
    served = f"hf-{name}"
    if name == "auto_online":  # masters: converted once, then served
        result = server.run("score", served, "--text", "x", check=False)
        assert result.returncode != 0 and "ternary" in result.stderr
        served = "hf-converted"
        server.run("models", "convert", f"hf-{name}", "--to", "ternary", "--name", served)
        assert server.json("models", "verify", served)["equal"] is True
    assert server.json("models", "get", served)["format"] == "ternary"
    compare(score(server, served), bitnet.load(directory), len(TEXT))


@pytest.fixture(scope="module")
def converted(server, trained, tmp_path_factory):
    """The trained masters, imported and made ternary here, as f32 and as bf16 beside the codes."""
    directory = with_tokenizer(trained, "auto_online", tmp_path_factory.mktemp("import") / "hf")
    for dtype in ("f32", "bf16"):
        server.run("models", "import", directory, "--name", f"masters-{dtype}", "--dtype", dtype)
        server.run("models", "convert", f"masters-{dtype}", "--to", "ternary", "--name", f"ternary-{dtype}")
    return server


@pytest.mark.parametrize("linear_class", ["bitlinear", "autobitlinear"])
def test_an_export_gives_transformers_our_logits(converted, tmp_path, linear_class):
    converted.run("models", "export", "ternary-f32", "--format", "hf", "--linear-class", linear_class, "--out", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"]["linear_class"] == linear_class
    compare(score(converted, "ternary-f32"), bitnet.load(tmp_path / "out"), len(TEXT))


@pytest.mark.parametrize("linear_class", ["bitlinear", "autobitlinear"])
def test_in_bf16_the_same_token_is_most_likely(converted, tmp_path, linear_class):
    converted.run("models", "export", "ternary-bf16", "--format", "hf", "--linear-class", linear_class, "--out", tmp_path / "out")
    assert same_top_token(score(converted, "ternary-bf16"), bitnet.load(tmp_path / "out", torch.bfloat16), linear_class) >= 0.99


@pytest.mark.parametrize("name", [name for name in bitnet.CLASSES if name != "rms_norm"])
def test_a_checkpoint_of_transformers_has_the_same_most_likely_token_in_bf16(converted, trained, tmp_path, name):
    """The other way: written for transformers, read by it and by us, both in bf16."""
    directory = with_tokenizer(trained, name, tmp_path / "hf")
    served = f"hf-bf16-{name}"
    converted.run("models", "import", directory, "--name", served, "--dtype", "bf16")
    if name == "auto_online":  # masters
        converted.run("models", "convert", served, "--to", "ternary", "--name", f"{served}-ternary")
        served += "-ternary"
    assert converted.json("models", "get", served)["format"] == "ternary"
    assert same_top_token(score(converted, served), bitnet.load(directory, torch.bfloat16), bitnet.CLASSES[name][0]) >= 0.99


def test_masters_exported_are_masters_again(converted, trained, tmp_path):
    converted.run("models", "export", "masters-f32", "--format", "hf", "--out", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["quantization_mode"] == "online"
    compare(score(converted, "ternary-f32"), bitnet.load(tmp_path / "out"), len(TEXT))
    converted.run("models", "import", tmp_path / "out", "--name", "again", "--dtype", "f32")
    assert converted.json("models", "get", "again")["digest"] == converted.json("models", "get", "masters-f32")["digest"]


def test_ternary_is_made_once(converted):
    result = converted.run("models", "convert", "ternary-f32", "--to", "ternary", "--name", "twice", check=False)
    assert result.returncode != 0 and "ternary already" in result.stderr
