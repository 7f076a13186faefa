"""Compares scores with those of transformers. Imports torch: a test that may skip without torch must do so before it
imports this."""
import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden/model"))
import make_family_golden as golden  # noqa: E402

TOP = 20  # most likely tokens that the API returns per position
# Activations are rounded to codes. At a tie, where two orders of summation round an activation to different codes,
# every later logit of the text changes: by up to 0.12 between transformers in f32 and in f64 on the models of
# test_hf_bitnet.py.
TIE = 0.2


def straight(value, rounded):
    return value + (rounded - value).detach()


def to_bf16(value):
    return straight(value, value.to(torch.bfloat16).float())


def rounded_attention(module, query, key, value, mask, **_):
    """Causal attention over keys and values rounded to bf16, as in the KV cache of a model of a bitnet_qat job."""
    groups = query.shape[1] // key.shape[1]
    key, value = (to_bf16(t).repeat_interleave(groups, 1) for t in (key, value))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return out.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("rounded", rounded_attention)


def worst_difference(answer, model):
    """Largest difference between the log-probabilities that `nibble score` printed and those of a transformers model.
    The first token has none."""
    assert len(answer["token_ids"]) > 1 and answer["logprobs"][0] is None
    want = golden.logprobs(model, answer["token_ids"])
    return max(abs(got - wanted) for got, wanted in zip(answer["logprobs"][1:], want, strict=True))


@torch.no_grad()
def worst_top_difference(answer, model, count=TOP):
    """Largest difference to transformers over the `count` likeliest tokens at every position but the first. Each token
    is compared by id and by rank, so that an omitted token is detected and equally likely tokens may come in any
    order."""
    theirs = torch.log_softmax(model(torch.tensor([answer["token_ids"]])).logits[0].double(), -1)[:-1]
    worst = 0.0
    for ours, row in zip(answer["top_logprobs"][1:], theirs, strict=True):
        assert len(ours) == len({one["token_id"] for one in ours}) == count
        for one, ranked in zip(ours, row.topk(count).values.tolist(), strict=True):
            worst = max(worst, abs(one["logprob"] - row[one["token_id"]].item()), abs(one["logprob"] - ranked))
    return worst


def compare(answer, model, tokens, top=0, top_limit=1e-3):
    """Compares each token's logprob and, at each position, those of the `top` likeliest tokens, which may differ by
    `top_limit`. A model whose activations are codes meets a tie in any long text. Then the token that a trained model
    is sure of stays within 1e-3, but the unlikely tokens beside it only within TIE."""
    assert len(answer["token_ids"]) == tokens
    worst = worst_difference(answer, model)
    print(f"worst difference of {tokens - 1} logprobs: {worst:.2e}")
    assert worst <= 1e-3
    if top:
        worst = worst_top_difference(answer, model, top)
        print(f"worst difference of the {top} likeliest tokens at each position: {worst:.2e}")
        assert worst <= top_limit


def compare_where_no_tie(answers, model, tie=TIE):
    """Compares the TOP likeliest tokens at each position of short texts, each scored alone. At least half of the texts
    must meet no tie, and none may differ by more than `tie`. A wrong formula, a wrong order or an omitted token would
    fail every text."""
    worst = [worst_top_difference(answer, model) for answer in answers]
    print(f"worst differences of {TOP} logprobs a position, {len(worst)} texts: " + " ".join(f"{value:.1e}" for value in worst))
    assert len(worst) >= 16 and 2 * sum(value <= 1e-3 for value in worst) >= len(worst)
    assert max(worst) <= tie
