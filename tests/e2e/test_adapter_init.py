"""Adapters that begin with a part of the weights (PiSSA, LoftQ), from the conversion to the next import."""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import PAGE, Server
from nf4 import dequantized, read_bf16

STEPS, RANK, ALPHA = 4, 4, 8
# Method of the job, options of `models convert`, and the largest relative difference between the first loss and the
# source's. It comes from the rounding of the base, for which PiSSA does not compensate and LoftQ does only in part.
STARTS = {
    "pissa-f32": ("lora", ["--to", "f32", "--adapter-init", "pissa"], 1e-5),
    "pissa-bf16": ("lora", ["--to", "bf16", "--adapter-init", "pissa"], 2e-3),
    "pissa-nf4": ("qlora", ["--to", "nf4", "--adapter-init", "pissa", "--nf4-block", "32"], 3e-2),
    "loftq-nf4": ("qlora", ["--to", "nf4", "--adapter-init", "loftq", "--iterations", "2"], 3e-2),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory, text_file):
    running = Server(tmp_path_factory.mktemp("init") / "state").start()
    running.run("models", "import", model_directory, "--name", "source", "--dtype", "f32", "--source-name", "org/source")
    running.run("models", "convert", "source", "--to", "nf4", "--name", "four")
    running.run("datasets", "upload", text_file, "--name", "text")
    yield running
    running.stop()


def job(server, path, method, base, output, *more, options=None, check=True):
    path = path / f"{output}.json"
    path.write_text(json.dumps({method: {"r": RANK, "alpha": ALPHA, "compute_dtype": "COMPUTE_DTYPE_F32", **(options or {})}}))
    return server.run("--json", "jobs", "create", "--spec", path, "--base", base, "--dataset", "text", "--output", output,
                      "--max-steps", STEPS, "--micro-batch", "2", "--seq-len", "96", "--lr", "1e-3", *more, "--watch", check=check)


def losses(result):
    return [event["loss"] for event in map(json.loads, result.stdout.splitlines()) if event.get("type") == "step"]


@pytest.fixture(scope="module")
def first_loss(server, tmp_path_factory):
    """The first loss of a job whose adapter begins with zero."""
    return losses(job(server, tmp_path_factory.mktemp("plain"), "lora", "source", "plain"))[0]


@pytest.fixture(scope="module", params=STARTS)
def started(request, server, tmp_path_factory):
    name = request.param
    method, options, _ = STARTS[name]
    answer = server.json("models", "convert", "source", "--name", name, "--adapter-name", f"{name}-start", "--rank", RANK,
                         "--alpha", ALPHA, *options)
    steps = losses(job(server, tmp_path_factory.mktemp(name), method, name, f"{name}-trained", "--warm-start-from", f"{name}-start"))
    return {"name": name, "method": method, "answer": answer, "losses": steps}


def test_answer_names_both_models(server, started):
    name, answer = started["name"], started["answer"]
    base, adapter = server.json("models", "get", name), server.json("models", "get", f"{name}-start")
    assert (answer["name"], answer["digest"], answer["report"]["adapter"]) == (name, base["digest"], f"{name}-start")
    assert (answer["adapter"]["name"], answer["adapter"]["digest"]) == (f"{name}-start", adapter["digest"])
    assert (adapter["base_model"], adapter["base_digest"]) == (name, base["digest"])
    assert f"{name}-start" in server.run("models", "get", name).stdout


def test_base_and_adapter_are_the_source(server, started):
    """Base plus adapter differ from the source by the error that the report gives for every weight. The error of NF4
    alone is more than 1.03 times as large, the bound of PEFT's own test (tests/test_gpu_examples.py)."""
    name = started["name"]
    directory = server.state / "models" / name
    source = load_file(server.state / "models/source/model.safetensors")
    read = {"f32": lambda: load_file(directory / "model.safetensors"), "bf16": lambda: read_bf16(directory / "model.safetensors"),
            "nf4": lambda: dequantized(directory)}
    base, plain = read[name.split("-")[1]](), dequantized(server.state / "models/four")
    adapter = load_file(server.state / f"models/{name}-start/adapter_model.safetensors")
    layers = {layer["layer"]: layer["relative_error"] for layer in started["answer"]["report"]["layers"]}
    assert len(layers) == 3 * 7
    for key, error in layers.items():
        module = "base_model.model." + key.removesuffix(".weight")
        whole = base[key] + ALPHA / RANK * adapter[module + ".lora_B.weight"] @ adapter[module + ".lora_A.weight"]
        relative = np.linalg.norm(whole - source[key]) / np.linalg.norm(source[key])
        assert abs(relative - error) <= 1e-6 + 1e-3 * error, key
        assert relative < np.linalg.norm(plain[key] - source[key]) / np.linalg.norm(source[key]) / 1.03, key


def test_job_begins_with_the_loss_of_the_source(started, first_loss):
    steps = started["losses"]
    print("relative difference of the first loss:", steps[0] / first_loss - 1)
    assert abs(steps[0] - first_loss) <= STARTS[started["name"]][2] * first_loss
    assert len(steps) == STEPS and min(steps[1:]) < steps[0]


def test_trained_adapter_is_served_converted_and_imported_again(server, started, tmp_path):
    name = f"{started['name']}-trained"
    model = server.json("models", "get", name)
    assert model["base_digest"] == started["answer"]["digest"]
    [made] = [one for one in server.json("jobs", "list")["jobs"] if one["spec"]["publish"]["output_model"] == name]
    server.run("jobs", "publish", f"{made['id']}/{STEPS}", "--name", f"{name}-checkpoint")
    score = server.json("score", name, "--text", PAGE[:120])
    assert score["logprobs"] == server.json("score", f"{name}-checkpoint", "--text", PAGE[:120])["logprobs"]
    for to in ("int8", "bf16"):
        server.run("models", "convert", name, "--to", to, "--name", f"{name}-{to}")
        other = server.json("score", f"{name}-{to}", "--text", PAGE[:120])
        assert max(abs(a - b) for a, b in zip(score["logprobs"][1:], other["logprobs"][1:], strict=True)) < 0.5
    assert server.json("models", "verify", f"{name}-int8")["equal"] is True
    server.run("models", "export", name, "--format", "peft", "--out", tmp_path / "peft")
    # Not the repository of the source, whose weights differ from this base's.
    assert json.loads((tmp_path / "peft/adapter_config.json").read_text())["base_model_name_or_path"] == started["name"]
    server.run("models", "import", tmp_path / "peft", "--name", f"{name}-again", "--base", started["name"])
    for copy in ("checkpoint", "again"):
        assert server.json("models", "get", f"{name}-{copy}")["digest"] == model["digest"], copy
    refused = server.run("models", "import", tmp_path / "peft", "--name", "wrong", "--base", "source", check=False)
    assert refused.returncode != 0 and model["base_digest"] in refused.stderr, refused.stderr


def test_initial_adapter_is_exported_and_imported_again(server, started, tmp_path):
    name = f"{started['name']}-start"
    server.run("models", "export", name, "--format", "peft", "--out", tmp_path / "peft")
    server.run("models", "import", tmp_path / "peft", "--name", f"{name}-again", "--base", started["name"])
    assert server.json("models", "get", f"{name}-again")["digest"] == server.json("models", "get", name)["digest"]


def test_jobs_on_another_base_or_with_another_adapter_are_refused(server, started, tmp_path):
    name, method = started["name"], started["method"]
    more = ("--warm-start-from", f"{name}-start")
    refused = job(server, tmp_path, method, "four" if method == "qlora" else "source", "other", *more, check=False)
    assert refused.returncode != 0 and started["answer"]["digest"] in refused.stderr, refused.stderr
    for field, value in {"r": 8, "alpha": 4, "use_dora": True, "target_modules": ["q_proj"]}.items():
        refused = job(server, tmp_path, method, name, "other", *more, options={field: value}, check=False)
        assert refused.returncode != 0 and f"{method}.{field}" in refused.stderr, refused.stderr


PISSA = ["--adapter-init", "pissa", "--adapter-name", "adapter"]
LOFTQ = ["--adapter-init", "loftq", "--adapter-name", "adapter"]


@pytest.mark.parametrize("arguments, wanted", [
    (["--to", "nf4", "--adapter-init", "pissa"], "--adapter-name"),
    (["--to", "nf4", "--adapter-init", "olora", "--adapter-name", "a"], "olora"),
    (["--to", "nf4", "--adapter-name", "a"], "--adapter-init"),
    (["--to", "nf4", "--rank", "4"], "--adapter-init"),
    (["--to", "f32"], "target"),
    (["--to", "f32", *LOFTQ], "target: f32 cannot be the base of a loftq adapter"),
    (["--to", "bf16", *LOFTQ], "target: bf16 cannot be the base of a loftq adapter"),
    (["--to", "int8", *PISSA], "target: wanted NF4, BF16 or F32"),
    (["--to", "ternary", *PISSA], "target: wanted NF4, BF16 or F32"),
    (["--to", "bf16", *PISSA, "--nf4-block", "32"], "nf4_block"),
    (["--to", "nf4", *PISSA, "--rank", "33"],
     "adapter_init.r: gives model.layers.0.self_attn.k_proj.weight [32, 64] the rank 33, wanted at most 32"),
    (["--to", "nf4", *PISSA, "--alpha", "0"], "adapter_init.alpha"),
    (["--to", "nf4", *PISSA, "--target", "q_proj,head"], "adapter_init.target_modules"),
    (["--to", "nf4", *PISSA, "--target-pattern", "nothing"], "adapter_init.target_pattern"),
    (["--to", "nf4", *PISSA, "--rank-pattern", "q_proj"], "rank-pattern"),
    (["--to", "nf4", *PISSA, "--rank-pattern", "lm_head=2"], "adapter_init.rank_pattern"),
    (["--to", "nf4", *PISSA, "--iterations", "2"], "adapter_init.iterations"),
    (["--to", "nf4", *LOFTQ, "--iterations", "17"], "adapter_init.iterations: is 17, wanted 1 to 16"),
    (["--to", "nf4", "--adapter-init", "pissa", "--adapter-name", "new"], "adapter_init.name"),
    (["--to", "nf4", "--adapter-init", "pissa", "--adapter-name", "four"], 'named "four"'),
])
def test_bad_options_are_refused_by_name(server, arguments, wanted):
    refused = server.run("models", "convert", "source", "--name", "new", *arguments, check=False)
    assert refused.returncode != 0 and wanted in refused.stderr, refused.stderr
    assert not {"new", "adapter", "a"} & {model["name"] for model in server.json("models", "list")["models"]}


def test_source_without_float_weights_is_refused(server):
    refused = server.run("models", "convert", "four", "--name", "new", "--to", "nf4", *PISSA, check=False)
    assert refused.returncode != 0 and "adapter_init: cannot be made from a model in format nf4" in refused.stderr, refused.stderr
