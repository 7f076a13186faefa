"""Runs exports of `models export --format compressed-tensors` in transformers with compressed-tensors."""
import pytest
from safetensors import safe_open

from conftest import PAGE

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("compressed_tensors", exc_type=ImportError)


@pytest.fixture(scope="module")
def exported(shared, tmp_path_factory):
    """The exported directory, and our scores of a text."""
    shared.run("models", "convert", "small", "--to", "int8", "--act-outliers", 0, "--head", "bf16", "--name", "portable")
    path = tmp_path_factory.mktemp("compressed") / "out"
    shared.run("models", "export", "portable", "--format", "compressed-tensors", "--out", path)
    return path, shared.json("score", "portable", "--text", PAGE[:120])


def load(path, **options):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    return model.eval()


def load_dequantized(path):
    """Loads with weights as floats and activations that are not rounded."""
    return load(path, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))


def test_weights_are_our_codes_times_our_scales(exported):
    path, _ = exported
    state = load_dequantized(path).state_dict()
    linears = 0
    with safe_open(path / "model.safetensors", "pt") as file:
        for name in file.keys():
            if name.endswith("_scale"):
                continue
            value = file.get_tensor(name).float()
            if name.endswith("_proj.weight"):
                value *= file.get_tensor(name + "_scale")
                linears += 1
            assert torch.equal(state[name], value), name
    assert linears == 21


def test_scores_differ_from_ours_only_by_the_rounding_of_activations(exported):
    """Both programs round activations to 8 bits, row by row, but in different steps: 2/255 of the largest value in
    theirs, 1/127 in ours. The bound is four times the effect of that rounding in their program: twice, because two
    programs round, and twice again for our bf16 head and chance."""
    from logprobs import golden, worst_difference
    path, answer = exported
    ids = answer["token_ids"]
    dequantized, rounded = load_dequantized(path), load(path)
    with torch.no_grad():
        pairs = zip(golden.logprobs(dequantized, ids), golden.logprobs(rounded, ids), strict=True)
        rounding = max(abs(a - b) for a, b in pairs)
        worst = worst_difference(answer, rounded)
        for name, parameter in dequantized.named_parameters():  # as if each row had the scale and codes of another
            if name.endswith("_proj.weight"):
                parameter.copy_(parameter.flip(0))
        spoilt = worst_difference(answer, dequantized)
    print(f"worst difference of a logprob: {worst:.2e}; their rounding alone {rounding:.2e}, rows in another order {spoilt:.2e}")
    assert rounding > 0, "activations are rounded"
    assert worst <= 4 * rounding < spoilt
