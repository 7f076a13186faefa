"""The options of an NF4 base (block sizes, scales in f32) hold in every step from the job to the next import."""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import Server
from nf4 import dequantized

STEPS = 4
# The options in a job's spec, and those of `models convert`.
OPTIONS = {
    "block-32-f32-scales": ({"nf4_block": 32, "double_quant": False}, ["--nf4-block", "32", "--no-double-quant"]),
    "block-128-scaler-32": ({"nf4_block": 128, "scaler_block": 32}, ["--nf4-block", "128", "--scaler-block", "32"]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_directory, text_file):
    running = Server(tmp_path_factory.mktemp("nf4") / "state").start()
    running.run("models", "import", model_directory, "--name", "float", "--dtype", "f32")
    running.run("datasets", "upload", text_file, "--name", "text")
    yield running
    running.stop()


def create(server, path, name, base, options, *more, steps=STEPS, check=True):
    path = path / f"{name}.json"
    path.write_text(json.dumps({"qlora": {"r": 4, **options}}))
    return server.run("jobs", "create", "--spec", path, "--base", base, "--dataset", "text", "--output", name, "--max-steps", steps,
                      *more, check=check)


def last_checkpoint(server, output):
    [job] = [job for job in server.json("jobs", "list")["jobs"] if job["spec"]["publish"]["output_model"] == output]
    return f"{job['id']}/{STEPS}"


@pytest.mark.parametrize("name", OPTIONS)
def test_options_go_from_the_job_to_the_next_import(server, tmp_path, name):
    in_spec, in_command = OPTIONS[name]
    server.run("models", "convert", "float", "--to", "nf4", "--name", f"base-{name}", *in_command)
    base = server.json("models", "get", f"base-{name}")
    assert base["nf4_block"] == in_spec["nf4_block"]
    assert base["double_quant"] is in_spec.get("double_quant", True)
    assert base.get("scaler_block") == in_spec.get("scaler_block")
    source = load_file(server.state / "models/float/model.safetensors")
    for key, value in dequantized(server.state / f"models/base-{name}").items():
        # Half of the widest gap of the codebook (0.152), and 2 % for the codes of the scales.
        assert abs(value - source[key]).max() <= (0.152 + 0.02) * abs(source[key]).max(), key

    create(server, tmp_path, name, "float", in_spec, "--watch")
    model = server.json("models", "get", name)
    assert model["base_digest"] == base["digest"], "the trainer quantized the base as `models convert` does"
    assert model["nf4_block"] == in_spec["nf4_block"]
    server.run("models", "convert", name, "--to", "int8", "--name", f"{name}-int8")
    assert server.json("models", "verify", f"{name}-int8")["equal"] is True
    server.run("jobs", "publish", last_checkpoint(server, name), "--name", f"{name}-checkpoint")
    server.run("models", "export", name, "--format", "peft", "--out", tmp_path / "peft")
    server.run("models", "import", tmp_path / "peft", "--name", f"{name}-again", "--base", "float")
    for copy in ("checkpoint", "again"):
        assert server.json("models", "get", f"{name}-{copy}")["digest"] == model["digest"], copy

    create(server, tmp_path, f"{name}-warm", "float", in_spec, "--warm-start-from", name, "--watch")
    refused = create(server, tmp_path, f"{name}-other", "float", {}, "--warm-start-from", name, check=False)
    assert refused.returncode != 0
    assert "qlora.nf4_block" in refused.stderr and f"wanted blocks of {in_spec['nf4_block']}" in refused.stderr, refused.stderr


def test_a_base_in_nf4_keeps_its_options(server, tmp_path):
    server.run("models", "convert", "float", "--to", "nf4", "--name", "wide", "--nf4-block", "256")
    create(server, tmp_path, "on-wide", "wide", {}, "--watch")
    model = server.json("models", "get", "on-wide")
    assert (model["nf4_block"], model["base_digest"]) == (256, server.json("models", "get", "wide")["digest"])
    for field, value in {"nf4_block": 64, "scaler_block": 64, "double_quant": False}.items():
        refused = create(server, tmp_path, "other", "wide", {field: value}, check=False)
        assert refused.returncode != 0
        assert f"qlora.{field}" in refused.stderr and "blocks of 256" in refused.stderr, refused.stderr


def test_the_default_may_be_written_out_when_a_job_is_continued(server, tmp_path):
    create(server, tmp_path, "unset", "float", {}, "--watch")
    more = ("--resume-from", last_checkpoint(server, "unset"))
    create(server, tmp_path, "longer", "float", {"nf4_block": 64, "scaler_block": 256}, *more, "--watch", steps=2 * STEPS)
    refused = create(server, tmp_path, "other", "float", {"nf4_block": 32}, *more, steps=2 * STEPS, check=False)
    assert refused.returncode != 0 and "qlora.nf4_block" in refused.stderr, refused.stderr


def test_plans_count_the_scales_of_the_base(server, tmp_path):
    """Plans count them both for a base that the job quantizes and for one that is NF4 already."""
    def weights(base, **options):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"qlora": {"r": 4, **options}}))
        plan = server.json("jobs", "plan", "--spec", path, "--base", base, "--dataset", "text", "--output", "planned", "--max-steps", STEPS)
        return plan["memory"]["weights"]
    for name, block in (("plain", 64), ("narrow", 32)):
        server.run("models", "convert", "float", "--to", "nf4", "--name", name, "--nf4-block", block)
    linears = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 176)  # weights: q and o, k and v, MLP of three layers
    # Blocks of 32 instead of 64: one more f32 scale for every 64 weights.
    assert weights("float", nf4_block=32) - weights("float") == weights("narrow") - weights("plain") == 4 * linears // 64


def test_bad_options_are_refused_with_their_field(server, tmp_path):
    for options, field in [({"nf4_block": 48}, "qlora.nf4_block"), ({"scaler_block": 8192}, "qlora.scaler_block"),
                           ({"scaler_block": 256, "double_quant": False}, "qlora.scaler_block")]:
        refused = create(server, tmp_path, "bad", "float", options, check=False)
        assert refused.returncode != 0 and field in refused.stderr, refused.stderr
    for arguments, field in [(["--to", "nf4", "--nf4-block", "48"], "nf4_block"), (["--to", "int8", "--nf4-block", "32"], "nf4_block"),
                             (["--to", "int8", "--no-double-quant"], "double_quant"),
                             (["--to", "nf4", "--no-double-quant", "--scaler-block", "64"], "scaler_block")]:
        refused = server.run("models", "convert", "float", "--name", "bad", *arguments, check=False)
        assert refused.returncode != 0 and field in refused.stderr, refused.stderr
