"""User mistakes get a clear error. They leave nothing behind, except for a FAILED job if only its rows or its training
show the mistake."""
import json
import struct

import pytest

import small_model
from conftest import TRAIN
from wire import Api


def refused(server, *arguments, names):
    result = server.run(*arguments, check=False)
    assert result.returncode != 0, f"{arguments} was accepted"
    for name in names:
        assert name.lower() in result.stderr.lower(), f"wanted {name!r} in: {result.stderr}"
    return result


def job(base="small", dataset="page", **changes):
    flags = {"--max-steps": 2, **dict(zip(TRAIN[::2], TRAIN[1::2]))}
    flags.update({"--" + flag.replace("_", "-"): value for flag, value in changes.items()})
    return ["jobs", "create", "--method", "qlora", "--base", base, "--dataset", dataset, *(part for pair in flags.items() for part in pair)]


def truncated(path):
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def lying(path):
    """Makes the file claim a header of 1 TiB."""
    file = path / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(struct.pack("<Q", 1 << 40) + data[8:])


def wrong_shape(path):
    config = json.loads((path / "config.json").read_text())
    config["intermediate_size"] = 200
    (path / "config.json").write_text(json.dumps(config))


def no_tokenizer(path):
    (path / "tokenizer.json").unlink()


def unknown_architecture(path):
    config = json.loads((path / "config.json").read_text())
    config["architectures"], config["model_type"] = ["FalconForCausalLM"], "falcon"
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("spoil, names", [(truncated, ["model.safetensors"]), (lying, ["model.safetensors"]),
                                          (wrong_shape, ["mlp"]), (no_tokenizer, ["tokenizer"]),
                                          (unknown_architecture, ["falcon"])], ids=lambda value: getattr(value, "__name__", ""))
def test_import_refuses_a_bad_directory(shared, tmp_path, spoil, names):
    path = small_model.write(tmp_path / "bad")
    spoil(path)
    refused(shared, "models", "import", path, "--name", "bad", names=names)
    assert "bad" not in [model["name"] for model in shared.json("models", "list")["models"]]


def test_import_refuses_a_bad_gguf(shared, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    refused(shared, "models", "import", path, "--name", "bad", names=["gguf"])


@pytest.mark.parametrize("content, names", [('{"text": "fine"}\n{"text": 3}\n', ["line 2"]), ("", ["no rows"]),
                                            ('{"text": "a"}\nnot json\n', ["line 2"])])
def test_upload_refuses_a_bad_dataset(shared, tmp_path, content, names):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    refused(shared, "datasets", "upload", path, "--name", "bad", names=names)
    assert "bad" not in [entry["name"] for entry in shared.json("datasets", "list")["datasets"]]


@pytest.mark.parametrize("format, content, names", [
    ("csv", 'prompt,completion\n"a\nb\nc",d\ne,\n', ["bad.data: line 5:", "completion"]),
    ("csv", 'prompt,completion\n"a\nb\nc",d\ne\n', ["bad.data: line 5:", "fields"]),
    ("json", '[\n {"prompt": "a",\n  "completion": "b"},\n {"prompt": "a", "completion": ""}\n]', ["bad.data: element 2:", "completion"]),
    ("alpaca", '{"instruction": "a",\n "output": "b"}\n{"instruction": "a"}\n', ["bad.data: line 3:", "output"]),
    ("sharegpt", '[{"conversations": [{"from": "gpt", "value": "y"}]}, {"conversations": [{"from": "human", "value": "x"}]}]',
     ["bad.data: element 2:", "assistant"])])
def test_upload_of_another_format_names_the_place_in_the_users_file(shared, tmp_path, format, content, names):
    path = tmp_path / "bad.data"
    path.write_text(content)
    result = refused(shared, "datasets", "upload", path, "--name", "bad", "--format", format, names=names)
    assert result.returncode == 4 and "field line" not in result.stderr, result.stderr


def test_lines_in_latin_1_are_refused_as_such(shared, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + '{"text": "caf\u00e9"}\n'.encode("latin-1"))
    refused(shared, "datasets", "upload", path, "--name", "bad", names=["line 2: not UTF-8"])


def test_errors_of_a_spec_file_name_the_file(shared, tmp_path):
    path = tmp_path / "spec.json"
    path.write_text('{\n "lora": {"r": 4,}\n}')
    refused(shared, "jobs", "plan", "--spec", path, "--base", "small", "--dataset", "page",
            names=[f"{path}, line 2, column 18", "malformed"])
    path.write_text('{"lora": {"r": 4}}')
    for command in ("plan", "create"):
        result = refused(shared, "jobs", command, "--spec", path, "--method", "qlora", "--base", "small", "--dataset", "page",
                         names=["method", "got qlora from --method and lora from", str(path)])
        assert result.returncode == 4


def test_impossible_jobs_are_refused(shared, tmp_path):
    before = len(shared.json("jobs", "list")["jobs"])
    refused(shared, *job(base="nothing"), names=["nothing"])
    refused(shared, *job(dataset="nothing"), names=["nothing"])
    refused(shared, *job(rank=0), names=["qlora.r"])
    refused(shared, *job(seq_len=4096), names=["seq"])
    refused(shared, *job(eval_every=1), names=["eval"])
    refused(shared, *job(device="cuda:7"), names=["cuda"])
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": ""}\n')
    shared.run("datasets", "upload", empty, "--name", "untrainable")
    assert len(shared.json("jobs", "list")["jobs"]) == before

    # Only the rows reveal this mistake, so the job exists, as FAILED.
    assert refused(shared, *job(dataset="untrainable"), names=["trainable", "NO_TRAINABLE_TOKENS"]).returncode == 4
    assert refused(shared, *job(dataset="untrainable"), "--watch", names=["trainable", "NO_TRAINABLE_TOKENS"]).returncode == 4
    failed = shared.json("jobs", "list")["jobs"][:2]
    assert [one["state"] for one in failed] == ["FAILED", "FAILED"] and failed[0]["attempt"] == 0, failed
    assert "NO_TRAINABLE_TOKENS" in json.dumps(failed[0]["error"]), failed
    created = shared.json(*job(dataset="untrainable"), "--no-wait")
    assert created["state"] in ("PLANNING", "FAILED"), created
    watched = shared.run("--json", "jobs", "watch", created["id"], check=False)
    assert [json.loads(line)["state"] for line in watched.stdout.splitlines()] == ["PLANNING", "FAILED"]
    assert watched.returncode == 4 and "INVALID_ARGUMENT (NO_TRAINABLE_TOKENS)" in watched.stderr, watched.stderr


def test_bad_row_fails_its_job_with_its_line_number(shared, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("short", "short", "long " * 100)))
    shared.run("datasets", "upload", tmp_path / "rows.jsonl", "--name", "long-row")
    spec = {"base_model": "small", "train_dataset": "long-row", "qlora": {"r": 4}, "run": {"max_steps": 1, "micro_batch": 1},
            "data": {"max_seq_len": 64, "overlong": "OVERLONG_POLICY_ERROR"}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    create = ["jobs", "create", "--spec", tmp_path / "spec.json"]
    waited = refused(shared, *create, names=["line 3", "64"])
    failed = shared.json("jobs", "list")["jobs"][0]
    assert failed["state"] == "FAILED" and failed["attempt"] == 0, failed
    assert "line 3: " in failed["error"]["message"] and failed["error"]["message"] in waited.stderr, failed
    api = Api(shared.grpc)
    got = api.call("FineTuneService", "GetJob", name=failed["id"])
    api.close()
    assert got.state == 8, f"wanted FAILED (8), got {got.state}"
    assert got.error.message.startswith("train_dataset: line 3: "), got.error.message


def test_impossible_requests_are_refused(shared):
    refused(shared, "generate", "nothing", "--prompt", "x", names=["nothing"])
    refused(shared, "generate", "small", "--prompt", "x" * 3000, "--max-tokens", 4, names=["tokens", "1024"])
    refused(shared, "models", "verify", "small", names=["record"])
    refused(shared, "models", "get", "../small", names=["name"])


def test_unusable_flag_values_are_refused(shared, tmp_path):
    refused(shared, *job(seed="99999999999999999999"), names=["--seed", "64 bits"])
    refused(shared, "generate", "small", "--prompt-file", tmp_path, names=["prompt", "directory"])
    refused(shared, "score", "small", "--file", tmp_path, names=["text", "directory"])
    refused(shared, "models", "convert", "small", "--to", "nf4", "--name", "bad", "--act-outliers", 3, names=["act_outliers"])
    refused(shared, "models", "convert", "small", "--to", "nf4", "--name", "bad", "--head", "int8", names=["head"])
    refused(shared, "models", "export", "small", "--format", "hf", "--out", __file__, names=["not a directory"])
    assert "bad" not in [model["name"] for model in shared.json("models", "list")["models"]]


def test_taken_and_malformed_names_are_refused_before_anything_is_sent(shared, model_directory, text_file):
    for name in ("small", "../x", ""):
        result = shared.run("models", "import", model_directory, "--name", name, check=False)
        assert result.returncode in (4, 6) and "upload" not in result.stderr
    result = shared.run("datasets", "upload", text_file, "--name", "a b", check=False)
    assert result.returncode == 4 and "upload" not in result.stderr


def test_evaluation_loss_that_is_not_a_number_fails_the_job(shared):
    """One step so large that the weights overflow. The loss of that step, computed before the update, is still a
    number."""
    name = shared.json(*job(eval_dataset="page", output="overflowed", max_steps=1, lr="1e38"))["id"]
    shared.run("jobs", "watch", name, check=False)
    got = shared.json("jobs", "get", name)
    assert got["state"] == "FAILED" and got["attempt"] == 1, got
    assert "NAN_LOSS" in json.dumps(got["error"]) and "evaluation" in json.dumps(got["error"]), got
    (step,) = [event for event in shared.lines("jobs", "watch", name, check=False) if event["type"] == "step"]
    assert step["loss"] > 0
    assert shared.run("models", "get", "overflowed", check=False).returncode != 0
