"""Compares SmolLM2-135M-Instruct with transformers on the same GGUF. Needs what `tests/run.sh --full` installs."""
import math
import pathlib
import re
import shutil

import pytest

from conftest import ROOT, Server
from test_promise import supported_isas

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)

from safetensors.torch import load_file  # noqa: E402


def gguf_path():
    text = (ROOT / "build/deps/paths.cmake").read_text()
    path = re.search(r'NIBBLE_SMOLLM2_GGUF\D*?"([^"]+)"', text).group(1)
    return pathlib.Path(path.replace("${CMAKE_CURRENT_LIST_DIR}", str(ROOT / "build/deps")))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("real") / "state").start()
    for dtype in ("f32", "bf16"):
        server.run("models", "import", gguf_path(), "--name", dtype, "--dtype", dtype)
    server.run("models", "convert", "f32", "--to", "int8", "--name", "int8")
    server.run("models", "convert", "bf16", "--to", "nf4", "--name", "nf4")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def text():
    """About 600 tokens of licence prose that every Debian has."""
    return pathlib.Path("/usr/share/common-licenses/GPL-3").read_text()[2000:5200]


@pytest.fixture(scope="module")
def reference(text, server):
    """Token ids as the server has them, and transformers' logprobs and most likely ids for them."""
    ids = server.json("tokenize", "f32", "--text", text)["token_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(str(gguf_path().parent), gguf_file=gguf_path().name, dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    logprobs = torch.log_softmax(logits, -1)
    return ids, [logprobs[i - 1, ids[i]].item() for i in range(1, len(ids))], logits.argmax(-1).tolist()


def test_f32_agrees_with_transformers(server, text, reference):
    ids, want, top = reference
    got = server.json("score", "f32", "--text", text)
    assert got["token_ids"] == ids and len(ids) >= 512
    worst = max(abs(a - b) for a, b in zip(got["logprobs"][1:], want))
    print(f"worst difference of {len(want)} logprobs: {worst:.2e}")
    assert worst <= 1e-3
    # The most likely token at every position but the last, which a score does not cover.
    assert got["top_token_ids"][1:] == top[:-1]


def test_weight_only_model_has_the_divergence_of_its_weights(server, text, reference):
    """Compares transformers on the weights that the codes stand for: with the f32 model and with the served model."""
    ids, f32, _ = reference
    server.run("models", "convert", "f32", "--to", "int8", "--activations", "bf16", "--head", "bf16", "--name", "weight-only")
    stored = load_file(server.state / "models/weight-only/model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(str(gguf_path().parent), gguf_file=gguf_path().name, dtype=torch.float32)
    with torch.no_grad():
        whole = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        for name, value in model.named_parameters():
            codes = stored[name]
            value.copy_(codes.float() * stored[name + "_scale"][:, None] if codes.dtype == torch.int8 else codes.float())
        rounded = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    divergence = (whole.exp() * (whole - rounded)).sum(-1)
    want = [rounded[i - 1, ids[i]].item() for i in range(1, len(ids))]
    got = server.json("score", "weight-only", "--text", text)["logprobs"][1:]
    worst = max(abs(a - b) for a, b in zip(got, want))
    print(f"KL(f32 || weight-only) of {len(ids)} positions: mean {divergence.mean():.5f}, largest {divergence.max():.4f}; mean loss "
          f"{-sum(f32) / len(f32):.4f} in f32, {-sum(got) / len(got):.4f} served; worst difference of a logprob to the same weights "
          f"in transformers {worst:.4f}")
    assert divergence.mean() <= 0.006
    assert worst <= 0.2  # the served model rounds rows and the KV cache to bf16


MULTILINGUAL = ("The price was 1234567.89 € in 2026 — naïve café, Größe. Ελληνικά, русский текст, 日本語の文章, 한국어, العربية, हिन्दी.\n"
                "Emoji: 🙂🚀👩‍👩‍👧‍👦🇫🇷 tabs\tand   spaces;  x=[1,2,3]; don't we'll I'm\n\n  def f(x):\n      return x**2  # 100%")


def test_token_ids_agree_with_llama_cpp(server):
    llama_cpp = pytest.importorskip("llama_cpp", exc_type=ImportError)
    model = llama_cpp.Llama(str(gguf_path()), vocab_only=True, verbose=False)
    for text in (MULTILINGUAL, *MULTILINGUAL.split(), "0123456789 " * 20):
        want = model.tokenize(text.encode(), add_bos=False, special=False)
        assert server.json("tokenize", "f32", "--text", text)["token_ids"] == want, text


def test_int8_stays_near_f32(server, text, reference):
    ids, _, _ = reference
    f32 = server.json("score", "f32", "--text", text)["logprobs"][1:513]
    int8 = server.json("score", "int8", "--text", text)["logprobs"][1:513]
    rms = math.sqrt(sum((a - b) ** 2 for a, b in zip(int8, f32)) / len(f32))
    loss = sum(f32) / len(f32) - sum(int8) / len(int8)
    print(f"int8 against f32 over {len(f32)} logprobs: rms {rms:.4f}, mean loss {loss:+.4f}")
    assert rms <= 0.13
    assert loss <= 0.015


# int8 is compared with f32 above instead: near a tie, a difference of 0.12 in a logprob may change a greedy answer.
@pytest.mark.parametrize("model", ["f32", "bf16", "nf4"])
def test_chat_names_the_capital_of_france(server, model):
    answer = server.json("chat", model, "--message", "What is the capital of France?", "--max-tokens", 32)
    assert "Paris" in answer["text"]
    assert answer["finish_reason"] == "eos" or model == "nf4", "only nf4 may write more"


# Plain loops take a second per token.
@pytest.mark.hardware
@pytest.mark.parametrize("flags, size", [(("--isa", "plain", "--prefill_chunk", 7), 150), (("--isa", "avx2", "--threads", 1), 3200)],
                         ids=["plain", "avx2"])
def test_int8_has_the_same_bits_on_other_instruction_sets(server, tmp_path, text, flags, size):
    if flags[1] not in supported_isas():
        pytest.skip(f"this CPU has no {flags[1]}")
    want = server.json("score", "int8", "--text", text[:size], "--digests")
    other = Server(tmp_path / "state", *flags)
    shutil.copytree(server.state / "models" / "int8", other.state / "models" / "int8")
    other.start()
    try:
        got = other.json("score", "int8", "--text", text[:size], "--digests")
        assert len(got["logits_digests"]) > size / 6 and got["logits_digests"] == want["logits_digests"]
        verdict = other.json("models", "verify", "int8")
        assert verdict["equal"] is True and verdict["rows"] >= 1
    finally:
        other.stop()


def test_serving_quantizes_nothing(server):
    def launches(kernel):
        return sum(value for name, value in server.metrics().items() if name.startswith("nibble_kernel_launches_total")
                   and f'kernel="{kernel}"' in name and 'phase="serve"' in name)
    kernels = ("quantize_int8", "quantize_nf4", "double_quantize")
    before = [launches(kernel) for kernel in kernels]
    for _ in range(100):
        server.run("generate", "int8", "--prompt", "The tide", "--max-tokens", 2)
    assert [launches(kernel) for kernel in kernels] == before == [0, 0, 0]
