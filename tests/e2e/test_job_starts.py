"""Jobs that continue a checkpoint of another job, or take their first weights from one or from an adapter."""
import json
import os
import signal

import pytest

import small_model
from conftest import TRAIN, Server, trainers
from test_kill import SETTINGS, wait_for_own_step

SOURCE_STEPS, STEPS = 20, 60
CONSTANT = ["--schedule", "constant", "--warmup", "0"]  # the rate of a step does not depend on the length of the run


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory, text_file):
    server = Server(tmp_path_factory.mktemp("starts") / "state", "--retry_backoff_scale", "0.01").start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("models", "convert", "small", "--to", "int8", "--name", "small-int8")
    other = small_model.write(tmp_path_factory.mktemp("model") / "other", seed=5)
    server.run("models", "import", other, "--name", "other", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    short = tmp_path_factory.mktemp("data") / "short.jsonl"
    short.write_text(json.dumps({"text": small_model.CHAT_TEMPLATE}) + "\n")
    server.run("datasets", "upload", short, "--name", "short")
    yield server
    server.stop()


def settings_with(method, more):
    """The method's settings, without those that `more` sets."""
    settings = [*SETTINGS[method], *CONSTANT]
    pairs = zip(settings[::2], settings[1::2])
    return [*(value for name, setting in pairs if name not in more for value in (name, setting)), *more]


def create(server, method, output, steps, *more, check=True, base="small", dataset="page"):
    result = server.run("--json", "jobs", "create", "--method", method, "--base", base, "--dataset", dataset, "--output", output,
                        "--max-steps", steps, *settings_with(method, more), check=check)
    return json.loads(result.stdout)["id"] if result.returncode == 0 else result


def run(server, *arguments, **options):
    """Runs a job to its end; returns its id and its events."""
    job = create(server, *arguments, **options)
    return job, server.lines("jobs", "watch", job)


def digest(server, model):
    return server.json("models", "get", model)["digest"]


# Method, base and fields of the method. The random draws of dropout and of stochastic rounding differ from step to step,
# and must continue too.
CONTINUED = {"qlora": ("qlora", "small", {"dropout": 0.2}), "merge_aware": ("qlora", "small", {"merge_aware_int8": True}),
             "lora": ("lora", "small", {"dropout": 0.2}), "lora_on_int8": ("lora", "small-int8", {}), "full": ("full", "small", {}),
             "int8_mixed": ("int8_mixed", "small", {"stochastic_gradients": True}),
             "int8_mixed_bf16": ("int8_mixed", "small", {"master_dtype": "COMPUTE_DTYPE_BF16"}), "int8_qt": ("int8_qt", "small", {}),
             "bitnet_qat": ("bitnet_qat", "small", {})}


@pytest.mark.parametrize("case", CONTINUED)
def test_continued_job_has_the_weights_of_one_long_run(server, tmp_path, case):
    """The trainer of the continued job is killed before its first checkpoint; the job whose checkpoint it continues has
    already been deleted."""
    method, base, fields = CONTINUED[case]
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({method: fields}))
    options = ["--spec", spec]
    run(server, method, f"{case}-long", STEPS, *options, base=base)
    source, _ = run(server, method, f"{case}-source", SOURCE_STEPS, *options, base=base)
    job = create(server, method, f"{case}-continued", STEPS, "--save-every", 1000, "--resume-from", f"{source}/{SOURCE_STEPS}", *options,
                 base=base)
    server.run("jobs", "delete", source)
    wait_for_own_step(server, job, 1, SOURCE_STEPS + 1)
    for pid in trainers(server):
        os.kill(pid, signal.SIGKILL)
    events = server.lines("jobs", "watch", job)
    got = server.json("jobs", "get", job)
    assert (got["state"], got["attempt"]) == ("SUCCEEDED", 2)
    assert got["spec"]["resume_from"] == f"{source}/{SOURCE_STEPS}"
    running = [event["resumed_step"] for event in events if event["type"] == "state" and event["state"] == "RUNNING"]
    assert running == [SOURCE_STEPS, SOURCE_STEPS]
    steps = [event["step"] for event in events if event["type"] == "step"]
    assert min(steps) == SOURCE_STEPS + 1 and max(steps) == STEPS
    assert not [event for event in events if event["type"] == "warning"]
    assert digest(server, f"{case}-continued") == digest(server, f"{case}-long")
    assert not (server.state / "jobs" / job / "start").exists(), "the copy of the checkpoint goes with the end of the job"


def test_other_rows_are_read_from_their_beginning(server):
    source, _ = run(server, "qlora", "page-source", 4)
    job, events = run(server, "qlora", "short-continued", 6, "--resume-from", f"{source}/4", dataset="short")
    assert [event["reason"] for event in events if event["type"] == "warning"] == ["DATA_CHANGED"]
    steps = [event for event in events if event["type"] == "step"]
    assert [step["step"] for step in steps] == [5, 6]
    assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"


def evaluations(events):
    return {event["step"]: event["eval_loss"] for event in events if event["type"] == "eval" and event["subject"] == "trained"}


@pytest.mark.parametrize("method", ["qlora", "lora", "full", "int8_mixed", "int8_qt", "bitnet_qat"])
def test_warm_start_begins_with_the_weights_of_a_checkpoint(server, method):
    evaluate = ["--eval-dataset", "short"]
    source, before = run(server, method, f"{method}-cold", 6, *evaluate)
    job, events = run(server, method, f"{method}-warm", 3, "--optimizer", "lion", "--warm-start-from", f"{source}/6", *evaluate)
    assert [event["step"] for event in events if event["type"] == "step"] == [1, 2, 3]
    assert evaluations(events)[0] == evaluations(before)[6] != evaluations(before)[0]
    assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"


@pytest.mark.parametrize("method", ["qlora", "lora"])
def test_warm_start_begins_with_an_adapter(server, method):
    evaluate = ["--eval-dataset", "short"]
    _, before = run(server, method, f"{method}-adapter", 6, *evaluate)
    _, events = run(server, method, f"{method}-more", 3, "--warm-start-from", f"{method}-adapter", *evaluate)
    assert evaluations(events)[0] == evaluations(before)[6] != evaluations(before)[0]
    jobs = server.json("jobs", "list")["jobs"]

    def refused(*more, **options):
        result = create(server, method, "refused", 3, "--warm-start-from", f"{method}-adapter", *more, check=False, **options)
        assert result.returncode != 0
        assert server.json("jobs", "list")["jobs"] == jobs
        return result.stderr
    message = refused("--rank", 8)
    assert f"{method}.r" in message and "is 8, wanted 4" in message
    message = refused("--alpha", 16)
    assert f"{method}.alpha" in message and "is 16, wanted 8" in message
    if method == "lora":
        message = refused(base="other")
        assert "BASE_MISMATCH" in message and digest(server, "small") in message and digest(server, "other") in message


def test_adapter_of_another_base_fails_a_qlora_job_whose_base_was_never_quantized(server):
    run(server, "qlora", "small-adapter", 2)
    job = create(server, "qlora", "other-adapter", 3, "--warm-start-from", "small-adapter", base="other")
    assert server.run("jobs", "watch", job, check=False).returncode != 0
    got = server.json("jobs", "get", job)
    assert (got["state"], got["error"]["reason"], got["attempt"]) == ("FAILED", "BASE_MISMATCH", 1)
    # The attempt has quantized the base, so the next job is refused at once.
    result = create(server, "qlora", "other-adapter", 3, "--warm-start-from", "small-adapter", base="other", check=False)
    assert result.returncode != 0 and "BASE_MISMATCH" in result.stderr


def test_killed_job_does_not_load_its_warm_start_again(server):
    source, _ = run(server, "full", "warm-source", 4)
    start = ["--save-every", 10, "--warm-start-from", f"{source}/4"]
    run(server, "full", "warm-calm", STEPS, *start)
    job = create(server, "full", "warm-killed", STEPS, *start)
    wait_for_own_step(server, job, 1, 12)
    for pid in trainers(server):
        os.kill(pid, signal.SIGKILL)
    events = server.lines("jobs", "watch", job)
    resumed = [event.get("resumed_step", 0) for event in events if event["type"] == "state" and event["state"] == "RUNNING"]
    assert len(resumed) == 2 and resumed[0] == 0 and resumed[1] >= 10
    assert digest(server, "warm-killed") == digest(server, "warm-calm")


def test_damaged_checkpoint_is_refused_by_plan_and_job(server):
    source, _ = run(server, "qlora", "damaged-source", 4)
    (path,) = (server.state / "jobs" / source).glob("attempts/1/checkpoints/step-00000004/state.safetensors")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    for field in ("--resume-from", "--warm-start-from"):
        common = ["--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 8, *TRAIN, field, f"{source}/4"]
        for command in ("plan", "create"):
            result = server.run("jobs", command, *common, check=False)
            assert result.returncode != 0
            assert all(name in result.stderr for name in ("DATA_LOSS", "CHECKPOINT_CORRUPT", "state.safetensors")), result.stderr


def test_resume_from_is_refused_with_the_field_that_differs_and_both_values(server):
    source, _ = run(server, "qlora", "equal-source", 4)
    jobs = server.json("jobs", "list")["jobs"]

    def refused(method, *more, base="small"):
        arguments = ["--method", method, "--base", base, "--dataset", "page",
                     *settings_with(method, ("--resume-from", f"{source}/4", *more))]
        created, planned = (server.run("jobs", command, *arguments, check=False) for command in ("create", "plan"))
        assert created.returncode != 0 and planned.returncode != 0
        assert created.stderr == planned.stderr
        assert server.json("jobs", "list")["jobs"] == jobs
        return planned.stderr
    for message, wanted in (
            (refused("full", "--max-steps", 8), "method: is full, wanted qlora"),
            (refused("qlora", "--max-steps", 8, "--rank", 8), "qlora.r: is 8, wanted 4"),
            (refused("qlora", "--max-steps", 8, "--optimizer", "sgd"), "optim.optimizer: is sgd, wanted adamw"),
            (refused("qlora", "--max-steps", 4), "run.max_steps: is 4, wanted more than 4"),
            (refused("qlora", "--epochs", 9, "--grad-accum", 2), "run.epochs: is 9, wanted run.max_steps"),
            (refused("qlora", "--max-steps", 8, base="other"), "BASE_MISMATCH")):
        assert wanted in message
    command = ["jobs", "plan", "--method", "qlora", "--base", "small", "--dataset", "page", *TRAIN, "--max-steps", 8]
    plan, fresh = server.json(*command, "--resume-from", f"{source}/4"), server.json(*command)
    (checkpoint,) = [one for one in server.json("jobs", "checkpoints", source)["checkpoints"] if one["step"] == 4]
    assert plan["disk_bytes"] == fresh["disk_bytes"] + checkpoint["bytes"]
