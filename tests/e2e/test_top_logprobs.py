"""The 20 likeliest tokens of each position that Score and Generate return. test_hf_bitnet.py compares them with those of
transformers."""
import math

import pytest

from conftest import PAGE

TOP = 20


@pytest.fixture(params=["small-int8", "small-ternary"])
def model(request):
    return request.param


def check(logprob, token, top):
    """Checks the alternatives of one position: likeliest first, parts of one distribution, and the token either among
    them with its reported logprob, or below all of them."""
    values, ids = [one["logprob"] for one in top], [one["token_id"] for one in top]
    assert len(top) == TOP and len(set(ids)) == TOP and all(0 <= one < 320 for one in ids)  # small_model.py has 320 tokens
    assert values == sorted(values, reverse=True)
    assert values[0] <= 0 and math.fsum(map(math.exp, values)) <= 1 + 1e-5
    if token in ids:
        assert values[ids.index(token)] == logprob
    else:
        assert logprob <= values[-1]


def test_score_returns_twenty_tokens_per_position(shared, model):
    answer = shared.json("score", model, "--text", PAGE, "--top", TOP)
    assert len(answer["token_ids"]) == len(PAGE.encode()) == len(answer["top_logprobs"])
    assert answer["top_logprobs"][0] is None, "the first token is not predicted"
    among = 0
    for logprob, token, top in list(zip(answer["logprobs"], answer["token_ids"], answer["top_logprobs"], strict=True))[1:]:
        check(logprob, token, top)
        among += token in [one["token_id"] for one in top]
    assert 0 < among < len(PAGE) - 1, "both kinds of token occur"
    assert answer["top_token_ids"][1:] == [top[0]["token_id"] for top in answer["top_logprobs"][1:]]
    # The number of alternatives does not change the other values.
    few = shared.json("score", model, "--text", PAGE, "--top", 3)
    assert few["logprobs"] == answer["logprobs"]
    assert [top[:3] for top in answer["top_logprobs"][1:]] == few["top_logprobs"][1:]


def test_generate_returns_the_same_tokens_as_score(shared, model):
    answer = shared.json("generate", model, "--prompt", PAGE, "--max-tokens", 24, "--logprobs", TOP, "--ignore-eos")
    entries = answer["logprobs"]
    assert len(entries) == len(answer["token_ids"]) == 24
    for entry, token in zip(entries, answer["token_ids"], strict=True):
        assert entry["token_id"] == token == entry["top"][0]["token_id"], "greedy"
        check(entry["logprob"], token, entry["top"])
    # Compares only as far as the text encodes to the tokens that were decoded.
    scored = shared.json("score", model, "--text", PAGE + answer["text"], "--top", TOP)
    begin, same = len(PAGE.encode()), 0
    while same < 24 and scored["token_ids"][begin + same: begin + same + 1] == answer["token_ids"][same: same + 1]:
        same += 1
    assert same >= 1
    assert scored["top_logprobs"][begin: begin + same] == [entry["top"] for entry in entries[:same]]
    assert scored["logprobs"][begin: begin + same] == [entry["logprob"] for entry in entries[:same]]


def test_sampled_token_has_its_own_logprob(shared, model):
    """A high temperature also draws tokens beyond the first 20. The logprobs are those of the model, without
    temperature."""
    answer = shared.json("generate", model, "--prompt", PAGE, "--max-tokens", 48, "--logprobs", TOP, "--temperature", 3, "--seed", 5,
                         "--ignore-eos")
    greedy = shared.json("generate", model, "--prompt", PAGE, "--max-tokens", 1, "--logprobs", TOP, "--ignore-eos")
    for entry in answer["logprobs"]:
        check(entry["logprob"], entry["token_id"], entry["top"])
    assert any(entry["token_id"] != entry["top"][0]["token_id"] for entry in answer["logprobs"])
    assert answer["logprobs"][0]["top"] == greedy["logprobs"][0]["top"]


@pytest.mark.parametrize("command, field", [(("score", "--text", "x", "--top", TOP + 1), "top_n"),
                                            (("generate", "--prompt", "x", "--logprobs", TOP + 1), "logprobs")])
def test_more_than_twenty_are_refused_by_name(shared, model, command, field):
    refused = shared.run(command[0], model, *command[1:], check=False)
    assert refused.returncode == 4 and field in refused.stderr and "20" in refused.stderr
