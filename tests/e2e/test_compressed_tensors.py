"""What `models export --format compressed-tensors` wrote, run by transformers and compressed-tensors themselves."""
import pytest
from safetensors import safe_open

from conftest import PAGE

pytestmark = pytest.mark.full

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("compressed_tensors", exc_type=ImportError)


@pytest.fixture(scope="module")
def exported(shared, tmp_path_factory):
    """The directory, and our own scores of a text."""
    shared.run("models", "convert", "small", "--to", "int8", "--act-outliers", 0, "--head", "bf16", "--name", "portable")
    path = tmp_path_factory.mktemp("compressed") / "out"
    shared.run("models", "export", "portable", "--format", "compressed-tensors", "--out", path)
    return path, shared.json("score", "portable", "--text", PAGE[:120])


def load(path, **options):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    return model.eval()


def load_dequantised(path):
    """Weights in floats, and activations as they are."""
    return load(path, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))


def test_its_weights_are_our_codes_times_our_scales(exported):
    path, _ = exported
    state = load_dequantised(path).state_dict()
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


def test_its_scores_are_ours_but_for_the_rounding_of_activations(exported):
    """Both round them to 8 bits, a row at a time, but not to the same steps: theirs are 2/255 of the largest, ours 1/127. The bound is
    what that rounding does to the model in their program: twice, for two of them, and twice again for our head's bf16 and chance."""
    from logprobs import golden, worst_difference
    path, answer = exported
    ids = answer["token_ids"]
    dequantised, rounded = load_dequantised(path), load(path)
    with torch.no_grad():
        pairs = zip(golden.logprobs(dequantised, ids), golden.logprobs(rounded, ids), strict=True)
        rounding = max(abs(a - b) for a, b in pairs)
        worst = worst_difference(answer, rounded)
        for name, parameter in dequantised.named_parameters():  # as if rows had another's scale and code
            if name.endswith("_proj.weight"):
                parameter.copy_(parameter.flip(0))
        spoilt = worst_difference(answer, dequantised)
    print(f"worst difference of a logprob: {worst:.2e}; their rounding alone {rounding:.2e}, rows in another order {spoilt:.2e}")
    assert rounding > 0, "activations are rounded"
    assert worst <= 4 * rounding < spoilt
