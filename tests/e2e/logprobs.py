"""Scores beside transformers' own. Imports torch: a test that may skip without it does so before it imports this."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden/model"))
import make_family_golden as golden  # noqa: E402


def worst_difference(answer, model):
    """Of the log-probabilities in what `nibble score` printed to those of a transformers model. The first token has none."""
    assert len(answer["token_ids"]) > 1 and answer["logprobs"][0] is None
    want = golden.logprobs(model, answer["token_ids"])
    return max(abs(got - wanted) for got, wanted in zip(answer["logprobs"][1:], want, strict=True))


def compare(answer, model, tokens):
    assert len(answer["token_ids"]) == tokens
    worst = worst_difference(answer, model)
    print(f"worst difference of {tokens - 1} logprobs: {worst:.2e}")
    assert worst <= 1e-3
