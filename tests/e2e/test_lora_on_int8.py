"""Method lora on an int8 base: training computes the bits that nibbled serves, from the first step to PEFT and back."""
import json
import os
import signal

import pytest
import safetensors

from conftest import PAGE, Server, trainers
from test_kill import wait_for_own_step
from test_plan import plan_and_run

STEPS = 40
BASES = {"codes": ["--act-outliers", 4], "weight-only": ["--activations", "bf16"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory, text_file):
    server = Server(tmp_path_factory.mktemp("int8-lora") / "state", "--retry_backoff_scale", "0.01").start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    for name, options in BASES.items():
        server.run("models", "convert", "small", "--to", "int8", "--name", name, *options)
    server.run("models", "convert", "small", "--to", "nf4", "--name", "four-bit")
    server.run("datasets", "upload", text_file, "--name", "page")
    yield server
    server.stop()


def create(server, base, output, *more, steps=4, check=True, **lora):
    spec = {"base_model": base, "train_dataset": "page", "eval_dataset": "page", "publish": {"output_model": output},
            "lora": {"r": 4, "alpha": 8, "seed": 3, **lora}, "data": {"max_seq_len": 128}, "optim": {"lr": 5e-3},
            "run": {"max_steps": steps, "micro_batch": 1, "seed": 3, "save_every": 10}}
    path = server.state.parent / f"{output}.json"
    path.write_text(json.dumps(spec))
    return server.run("--json", "jobs", "create", "--spec", path, *more, check=check)


def train(server, base, output, **options):
    job = json.loads(create(server, base, output, **options).stdout)["id"]
    return job, server.lines("jobs", "watch", job)


def digest(server, model):
    return server.json("models", "get", model)["digest"]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("options", [{}, {"use_dora": True, "compute_dtype": "COMPUTE_DTYPE_F32"}, {"dropout": 0.2, "lora_plus_ratio": 4},
                                     {"target_pattern": ".*[.][02][.].*_proj", "rank_pattern": {"q_proj": 2}, "use_rslora": True}],
                         ids=["plain", "dora", "dropout", "patterns"])
def test_evaluation_and_record_of_training_are_those_of_the_served_adapter(server, base, options):
    name = f"{base}-{'-'.join(options) or 'plain'}"
    _, events = train(server, base, name, **options)
    losses = {}
    for event in events:
        if event["type"] == "eval":
            losses.setdefault(event["subject"], []).append(event["eval_loss"])
    assert losses["trained"][-1] < losses["trained"][0]
    assert losses["int8"] == losses["trained"][-1:], "all bits are equal"
    model = server.json("models", "get", name)
    assert (model["format"], model["determinism"], model["recorded_by"]) == ("lora", "EXACT", "trainer")
    form = ("int8", 4, "int8") if base == "codes" else ("bf16", 0, "int8")
    assert (model["activations"], model["act_outliers"], model["head_format"]) == form
    assert model["base_digest"] == digest(server, base)
    verdict = server.json("models", "verify", name)
    assert (verdict["equal"], verdict["recorded_by"]) == (True, "trainer") and verdict["rows"] > 0
    assert len(server.json("generate", name, "--prompt", PAGE[:20], "--max-tokens", 3, "--ignore-eos")["token_ids"]) == 3


def test_killed_job_ends_with_the_digest_of_a_calm_one(server):
    train(server, "codes", "calm", steps=STEPS, dropout=0.2)
    job = json.loads(create(server, "codes", "killed", steps=STEPS, dropout=0.2).stdout)["id"]
    wait_for_own_step(server, job, 1, 12)
    for pid in trainers(server):
        os.kill(pid, signal.SIGKILL)
    events = server.lines("jobs", "watch", job)
    resumed = [event.get("resumed_step", 0) for event in events if event["type"] == "state" and event["state"] == "RUNNING"]
    assert len(resumed) == 2 and resumed[1] >= 10
    assert digest(server, "killed") == digest(server, "calm")
    assert server.json("models", "verify", "killed")["equal"] is True


def test_merged_forms_keep_what_the_adapter_does_not_change(server):
    train(server, "codes", "merging", target_modules=["q_proj", "down_proj"])
    server.run("models", "convert", "merging", "--to", "int8", "--name", "merged")
    merged = server.json("models", "get", "merged")
    assert (merged["act_outliers"], merged["head_format"], merged["recorded_by"]) == (4, "int8", "convert")
    assert server.json("models", "verify", "merged")["equal"] is True

    def codes(model):
        with safetensors.safe_open(server.state / f"models/{model}/model.safetensors", "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    before, after = codes("codes"), codes("merged")
    changed = {name.split(".")[-2] for name in before if not (before[name] == after[name]).all()}
    assert changed == {"q_proj", "down_proj"}
    refused = server.run("models", "convert", "merging", "--to", "int8", "--head", "bf16", "--name", "no", check=False)
    assert refused.returncode != 0 and "head: is bf16, wanted int8" in refused.stderr
    server.run("models", "convert", "merging", "--to", "bf16", "--name", "merged-bf16")
    server.run("models", "export", "merged-bf16", "--format", "hf", "--out", server.state.parent / "hf")


def test_adapter_comes_back_from_peft_and_from_a_checkpoint(server):
    job, _ = train(server, "codes", "travels")
    peft = server.state.parent / "peft"
    server.run("models", "export", "travels", "--format", "peft", "--out", peft)
    assert "a base in int8" in (peft / "README.md").read_text()
    server.run("models", "import", peft, "--base", "codes", "--name", "returned")
    server.run("jobs", "publish", f"{job}/4", "--name", "published")
    for name in ("returned", "published"):
        assert digest(server, name) == digest(server, "travels")
        assert server.json("generate", name, "--prompt", PAGE[:20], "--max-tokens", 2, "--ignore-eos")["text"]
        unrecorded = server.run("models", "verify", name, check=False)
        assert unrecorded.returncode != 0 and "only the adapter of a job's last step has the trainer's record" in unrecorded.stderr
    # Both bases have the same codes, and so the same digest: the adapter runs on both.
    server.run("models", "import", peft, "--base", "weight-only", "--name", "moved")
    assert server.json("models", "get", "moved")["activations"] == "bf16"


def test_other_bases_are_refused_before_the_queue(server):
    jobs = server.json("jobs", "list")["jobs"]
    refused = create(server, "four-bit", "never", check=False)
    assert refused.returncode != 0
    assert "base_model: is stored as nf4, wanted a model in f32, bf16 or int8, or method qlora" in refused.stderr
    assert server.json("jobs", "list")["jobs"] == jobs


@pytest.mark.parametrize("base", BASES)
def test_plan_predicts_memory(server, base):
    plan, _, peak = plan_and_run(server, f"planned-{base}", base, "page", "lora", "--micro-batch", 4, "--seq-len", 128,
                                 "--max-steps", 3, "--save-every", 0)
    assert abs(plan["memory_total_bytes"] - peak) <= 0.25 * peak
