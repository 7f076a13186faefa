"""`datasets preview` shows what a job trains: the rendered text, and a mask of the tokens whose loss counts. The small
model has a token for each byte, and one for each special token such as END."""
import itertools
import json

import pytest

import small_model

END = "<|end|>"
TEXTS = ["The tide turned.", "By noon the fog had come in."]
PAIRS = [("Which tide is it? ", "Low."), ("And now? ", "High, since noon.")]
CHATS = [
    [("user", "Which tide is it?"), ("assistant", "Low.")],
    [("system", "You keep the light."), ("user", "And now?"), ("assistant", "High."), ("user", "Since when?"),
     ("assistant", "Since noon.")],
]


def chat(rows):
    return [{"messages": [{"role": role, "content": content} for role, content in row]} for row in rows]


ROWS = {"text": [{"text": text} for text in TEXTS],
        "prompt_completion": [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS],
        "chat": chat(CHATS)}


def preview(server, path, rows):
    """Uploads the rows and previews them. Returns them from the JSON output, and the output for people."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    server.run("datasets", "upload", path, "--name", path.stem)
    try:
        shown = server.json("datasets", "preview", path.stem, "--model", "small", "-n", len(rows))
        assert [row["row"] for row in shown["rows"]] == list(range(1, len(rows) + 1))
        assert shown["total_rows"] == len(rows)
        assert all(len(row["token_ids"]) == len(row["mask"]) == len(row["tokens"]) for row in shown["rows"])
        assert shown["tokens"] == sum(len(row["token_ids"]) for row in shown["rows"])
        assert shown["trainable_tokens"] == sum(sum(row["mask"]) for row in shown["rows"])
        return shown["rows"], server.run("datasets", "preview", path.stem, "--model", "small", "-n", len(rows)).stdout
    finally:
        server.run("datasets", "delete", path.stem)


def trained(row):
    """The text of each run of trained tokens."""
    runs = itertools.groupby(zip(row["mask"], row["tokens"], strict=True), key=lambda pair: pair[0])
    return ["".join(token for _, token in run) for is_trained, run in runs if is_trained]


def test_text_trains_every_token_but_the_first(shared, tmp_path):
    rows, printed = preview(shared, tmp_path / "texts.jsonl", ROWS["text"])
    assert [row["text"] for row in rows] == [text + END for text in TEXTS]
    assert [trained(row) for row in rows] == [[text[1:] + END] for text in TEXTS], "the first token is never predicted"
    for number, text in enumerate(TEXTS, 1):
        assert f"--- row {number}: {len(text) + 1} tokens, {len(text)} trained\n{text[0]}[{text[1:]}{END}]\n" in printed


def test_pair_trains_the_completion_and_its_end(shared, tmp_path):
    rows, printed = preview(shared, tmp_path / "pairs-shown.jsonl", ROWS["prompt_completion"])
    assert [row["text"] for row in rows] == [prompt + completion + END for prompt, completion in PAIRS]
    assert [trained(row) for row in rows] == [[completion + END] for _, completion in PAIRS]
    assert all(f"{len(completion) + 1} trained\n" in printed for _, completion in PAIRS)


def test_conversation_trains_the_answers_and_their_ends(shared, tmp_path):
    rows, printed = preview(shared, tmp_path / "chats.jsonl", ROWS["chat"])
    assert [row["text"] for row in rows] == [
        "".join(f"<|start|>{role}\n{content}{END}\n" for role, content in turns) for turns in CHATS]
    wanted = [[f"{content}{END}\n" for role, content in turns if role == "assistant"] for turns in CHATS]
    assert [trained(row) for row in rows] == wanted
    assert [len(runs) for runs in wanted] == [1, 2]
    for runs in wanted:
        num_trained = sum(len(run.replace(END, "E")) for run in runs)  # END is one token
        assert f" {num_trained} trained\n" in printed


# Characters of several bytes, and so of several tokens.
NON_ASCII = {"text": [{"text": "Der Leuchtturmwärter zählt die Boote: 灯台 😀."}],
        "prompt_completion": [{"prompt": "Wie spät? ", "completion": "Es dämmert schon 😀."}],
        "chat": chat([[("user", "Où est la mer ? "), ("assistant", " Là-bas, où naît la brume 灯."), ("user", "Et là ?"),
                       ("assistant", "Oui.")]])}


@pytest.mark.full
@pytest.mark.parametrize("kind", ROWS)
def test_preview_agrees_with_transformers(shared, tmp_path, model_directory, kind):
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model_directory / "tokenizer.json"))
    tokenizer.chat_template = small_model.CHAT_TEMPLATE

    def rendered(messages, **options):
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)

    sources = ROWS[kind] + NON_ASCII[kind]
    rows, _ = preview(shared, tmp_path / f"as-{kind.replace('_', '-')}.jsonl", sources)
    for row, source in zip(rows, sources, strict=True):
        # `completions`: the ranges of characters whose tokens are trained.
        if kind == "text":
            text, completions = source["text"], [(0, len(source["text"]))]
        elif kind == "prompt_completion":
            text = source["prompt"] + source["completion"]
            completions = [(len(source["prompt"]), len(text))]
        else:
            messages = source["messages"]
            text = rendered(messages)
            completions = [(len(rendered(messages[:i], add_generation_prompt=True)), len(rendered(messages[:i + 1])))
                           for i, message in enumerate(messages) if message["role"] == "assistant"]
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = encoded["input_ids"]
        mask = [int(any(start < last and first < end for first, last in completions)) for start, end in encoded["offset_mapping"]]
        if kind != "chat":  # the template adds its own end
            text, ids, mask = text + END, ids + [tokenizer.convert_tokens_to_ids(END)], mask + [1]
        assert row["text"] == text
        assert row["token_ids"] == ids
        assert row["mask"] == [0] + mask[1:], "the first token is never predicted"
        assert sum(row["mask"]) > 0
