"""Pre-training without an imported base: config.json, random weights, and a tokenizer that is trained or given."""
import json
import math
import shutil

import pytest

import small_model
from conftest import PAGE, Server

VOCAB = 320
CHAT = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SPECIAL = ["--special-token", "<|endoftext|>", "--special-token", "<|im_start|>", "--special-token", "<|im_end|>"]


def write_config(directory, **changes):
    """A directory with config.json alone. Its ids of special tokens belong to no tokenizer."""
    directory.mkdir(parents=True)
    config = {**small_model.CONFIG, "vocab_size": VOCAB, "bos_token_id": 128000, "eos_token_id": 128009, **changes}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory, text_file):
    running = Server(tmp_path_factory.mktemp("pretraining") / "state").start()
    running.run("datasets", "upload", text_file, "--name", "text")
    config = write_config(tmp_path_factory.mktemp("config") / "config")
    running.run("models", "import", config, "--name", "blank", "--dtype", "f32", "--random", "--seed", 5, "--tokenizer-dataset", "text",
                *SPECIAL)
    yield running
    running.stop()


def test_tokenizer_is_trained_on_the_dataset(server, tmp_path):
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    server.run("models", "export", "blank", "--format", "hf", "--out", tmp_path / "exported")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert 259 < len(theirs) <= VOCAB
    assert (theirs.eos_token, theirs.eos_token_id) == ("<|endoftext|>", 0)
    assert theirs.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [1, 2]
    for text in (PAGE, "Straße 你好 😀\n\t", "<|im_start|>user"):
        assert server.json("tokenize", "blank", "--text", text)["token_ids"] == theirs(text)["input_ids"]
    assert len(theirs(PAGE)["input_ids"]) < len(PAGE) / 2, "frequent words became tokens"
    config = json.loads((tmp_path / "exported/config.json").read_text())
    assert config["eos_token_id"] in (0, [0]) and config.get("bos_token_id") is None


def test_weights_depend_on_the_seed_alone(server, tmp_path):
    digests = {}
    for name, seed in {"again": 5, "other": 6}.items():
        server.run("models", "import", write_config(tmp_path / name), "--name", name, "--dtype", "f32", "--random", "--seed", seed,
                   "--tokenizer-dataset", "text", *SPECIAL)
        digests[name] = server.json("models", "get", name)["digest"]
    assert digests["again"] == server.json("models", "get", "blank")["digest"] != digests["other"]


# Random weights give ln(320) = 5.77 nats. A model that only counted tokens could not fall below the entropy of the
# text's single tokens, about 3.8 nats.
@pytest.mark.parametrize("method, spec", [("full", {}), ("bitnet_qat", {}), ("int8_mixed", {}), ("int8_qt", {}),
                                          ("full", {"init": "WEIGHT_INIT_RANDOM"})])
def test_held_out_loss_falls_and_the_model_serves(server, tmp_path, method, spec):
    name = f"{method}-{'redrawn' if spec else 'as-drawn'}"
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({method: spec}))
    events = server.lines("jobs", "create", "--spec", path, "--base", "blank", "--dataset", "text", "--output", name, "--max-steps", 60,
                          "--micro-batch", 4, "--seq-len", 64, "--lr", "3e-3", "--seed", 5, "--eval-split", 0.1, "--watch")
    losses = [event["eval_loss"] for event in events if event["type"] == "eval"]
    assert abs(losses[0] - math.log(VOCAB)) < 0.5, losses
    assert losses[-1] < 3, losses
    served = name
    if method == "bitnet_qat":
        served = f"{name}-ternary"
        server.run("models", "convert", name, "--to", "ternary", "--name", served)
    assert server.json("generate", served, "--prompt", "The keeper of the", "--max-tokens", 8)["text"]


def test_given_tokenizer_keeps_its_ids(server, tmp_path):
    source = small_model.write(tmp_path / "source")
    (source / "model.safetensors").unlink()
    server.run("models", "import", source, "--name", "given", "--random")
    server.run("models", "export", "given", "--format", "hf", "--out", tmp_path / "exported")
    assert json.loads((tmp_path / "exported/tokenizer.json").read_text()) == json.loads((source / "tokenizer.json").read_text())
    expected = small_model.CONFIG["eos_token_id"]
    assert json.loads((tmp_path / "exported/config.json").read_text())["eos_token_id"] in (expected, [expected])


def test_model_with_a_chat_template_trains_on_chats(server, tmp_path):
    chat = tmp_path / "chat.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"How many boats came on day {i}?"},
                          {"role": "assistant", "content": f"{i % 10} boats came."}]} for i in range(40)]
    chat.write_text("".join(json.dumps(row) + "\n" for row in rows))
    server.run("datasets", "upload", chat, "--name", "chat")
    config = write_config(tmp_path / "config")
    (config / "chat_template.jinja").write_text(CHAT)
    server.run("models", "import", config, "--name", "chat-blank", "--random", "--tokenizer-dataset", "chat", *SPECIAL)
    tokens = server.json("tokenize", "chat-blank", "--text", "<|im_start|>boats came")["token_ids"]
    assert tokens[0] == 1 and len(tokens) < 8, "contents of messages were counted"
    server.run("jobs", "create", "--method", "full", "--base", "chat-blank", "--dataset", "chat", "--output", "chat-tuned",
               "--max-steps", 3, "--micro-batch", 2, "--seq-len", 64, "--watch")


def change(**files):
    """Writes these files into the directory of config.json. A key is the file's name with _ for the dot; a value is the
    file's text, or None for a copy of the small model's file."""
    def apply(directory, model_directory):
        for name, content in files.items():
            name = name.replace("_json", ".json").replace("_safetensors", ".safetensors")
            if content is None:
                shutil.copy(model_directory / name, directory / name)
            else:
                (directory / name).write_text(content)
    return apply


TRAINED = ["--tokenizer-dataset", "text"]
REFUSED = {
    "weights": (change(model_safetensors=None), TRAINED, "random_init: is set, but the files contain the weights model.safetensors"),
    "no tokenizer": (change(), [], "tokenizer.json is missing, and no tokenizer_dataset is set"),
    "two tokenizers": (change(tokenizer_json=None), TRAINED,
                       "random_init.tokenizer_dataset: is set, but the files contain a tokenizer.json"),
    "small vocabulary": (change(config_json=json.dumps({**small_model.CONFIG, "vocab_size": 256})), TRAINED,
                         "vocabulary size: got 256, wanted at least 257"),
    "quantized config": (change(config_json=json.dumps({**small_model.CONFIG, "quantization_config": {"quant_method": "bitnet"}})), TRAINED,
                         "quantization_config"),
    "unknown dataset": (change(), ["--tokenizer-dataset", "nothing"], "nothing"),
    "negative seed": (change(), [*TRAINED, "--seed", "-1"], "random_init.seed: is -1, wanted at least 0"),
    "empty token": (change(), [*TRAINED, "--special-token", ""], "token 0 has 0 bytes, wanted 1 to 256"),
    "token twice": (change(), [*TRAINED, "--special-token", "a", "--special-token", "a"], "has a token twice"),
    "tokens of a given tokenizer": (change(tokenizer_json=None), ["--special-token", "a"], "tokenizer_dataset is not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_import_is_refused(server, tmp_path, model_directory, name):
    apply, options, message = REFUSED[name]
    directory = write_config(tmp_path / "config")
    apply(directory, model_directory)
    result = server.run("models", "import", directory, "--name", "refused", "--random", *options, check=False)
    assert result.returncode != 0 and message in result.stderr, result.stderr
    assert all(model["name"] != "refused" for model in server.json("models", "list")["models"])


def test_options_need_random(server, tmp_path):
    result = server.run("models", "import", write_config(tmp_path / "config"), "--name", "refused", "--seed", 1, check=False)
    assert "seed: is only for models with random weights: add --random" in result.stderr
