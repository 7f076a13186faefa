"""A model of Llama 3 8B's shape, with random weights, is imported from bf16 files, trained, converted and served on 2
threads, within bounds of memory and disk.

NIBBLE_SHAPE=small tests 51 M parameters in a minute, NIBBLE_SHAPE=middle 0.5 B, each within its own bounds.
NIBBLE_COMPUTE=f32 trains in f32 instead of bf16."""
import dataclasses
import json
import math
import os
import shutil

import pytest

import footprint
import llama_shape
from conftest import PAGE
from wire import Api, wait_for

pytestmark = pytest.mark.full

SHAPE = os.environ.get("NIBBLE_SHAPE", "8b")
COMPUTE = os.environ.get("NIBBLE_COMPUTE", "bf16")
STEPS, BATCH, SEQ_LEN = 2, 2, 512
TOKENS = 8
TIMEOUT_S = 4 * 3600  # per phase: ends a hang, but allows for slowness
# Bounds for 8b in bytes: resident memory of trainers and server together, and the state directory on disk.
MAX_RSS, MAX_DISK = 16 << 30, 35e9
PLAN_ERROR = 0.25  # maximum difference between the trainer's planned and its real memory, as a share of the plan
# Bytes that do not depend on the weights: growth of the server's heap, or database and journals on disk.
FIXED = 64 << 20


def bounds(shape, server_bytes, plan_bytes):
    """Bounds of memory and disk. The 8b shape has fixed bounds. For other shapes, the bound of memory is the server's
    size before the test plus the trainer's plan with its error; the disk may hold as many bytes per parameter as for
    8b."""
    if shape == llama_shape.SHAPES["8b"]:
        return MAX_RSS, MAX_DISK
    share = shape.parameters() / llama_shape.SHAPES["8b"].parameters()
    return server_bytes + (1 + PLAN_ERROR) * plan_bytes + FIXED, MAX_DISK * share + FIXED


def mib(count):
    return f"{count / 2**20:9.0f}"


def figures(sampler, weights_bytes):
    """Prints a table with the largest sample of each kind in each phase, and returns it."""
    print(f"{'MiB':10} {'seconds':>9} {'server':>9} {'anonymous':>9} {'mapped':>9} {'trainer':>9} {'anonymous':>9} "
          f"{'mapped':>9} {'together':>9} {'disk':>9}   weights are {weights_bytes / 2**20:.0f}")
    found = {}
    for phase, seconds in sampler.seconds.items():
        samples = sampler.of(phase)
        assert samples, f"no sample of {phase}"
        found[phase] = {
            "seconds": seconds,
            "server": max(sample.server.rss for sample in samples),
            "server_anon": max(sample.server.anon for sample in samples),
            "server_file": max(sample.server.file for sample in samples),
            "trainer": max(sample.trainers.rss for sample in samples),
            "trainer_anon": max(sample.trainers.anon for sample in samples),
            "trainer_file": max(sample.trainers.file for sample in samples),
            "together": max(sample.server.rss + sample.trainers.rss for sample in samples),
            "disk": max(sample.disk for sample in samples)}
        print(f"{phase:10} {seconds:9.1f} " + " ".join(mib(value) for key, value in found[phase].items() if key != "seconds"))
    return found


def write_rows(path):
    """Writes one text of 128 sequences, which are full except for the last one (a token is a byte)."""
    text = PAGE * (64 * BATCH * SEQ_LEN // len(PAGE))
    path.write_text(json.dumps({"text": text}) + "\n")
    return path


def test_a_llama_shape_is_imported_trained_converted_and_served_within_its_bounds(make_server, tmp_path):
    shape = llama_shape.SHAPES[SHAPE]
    server = make_server("--threads", 2)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"run": {"activation_checkpointing": True},
                                "qlora": {"compute_dtype": f"COMPUTE_DTYPE_{COMPUTE.upper()}"}}))
    flags = ["--method", "qlora", "--base", "base", "--dataset", "rows", "--max-steps", STEPS, "--micro-batch", BATCH,
             "--seq-len", SEQ_LEN, "--rank", 16, "--spec", spec]
    server.run("datasets", "upload", write_rows(tmp_path / "rows.jsonl"), "--name", "rows")
    before = footprint.memory(server.process.pid)
    sampler = footprint.Sampler(server)
    try:
        with sampler:
            api = Api(server.grpc)
            with sampler.phase("upload"):
                upload_id, sent = llama_shape.upload(api, shape, timeout=TIMEOUT_S)
            with sampler.phase("import"):
                wait_for(api, api.call("ModelService", "ImportModel", upload_id=upload_id, name="base"), TIMEOUT_S)
            api.close()
            with sampler.phase("plan"):
                plan = server.json("jobs", "plan", *flags, timeout=TIMEOUT_S)
            with sampler.phase("train"):
                events = server.lines("jobs", "create", *flags, "--output", "tuned", "--watch", timeout=TIMEOUT_S)
                job = server.json("jobs", "get", events[-1]["job_id"])
                published = server.json("models", "get", "tuned")
            with sampler.phase("convert"):
                server.run("models", "convert", "tuned", "--to", "int8", "--name", "tuned-int8", timeout=TIMEOUT_S)
            with sampler.phase("load"):
                server.run("models", "load", "tuned-int8", timeout=TIMEOUT_S)
            with sampler.phase("answer"):
                answer = server.json("generate", "tuned-int8", "--prompt", "The keeper of", "--max-tokens", TOKENS,
                                     "--ignore-eos", timeout=TIMEOUT_S)
    finally:
        server.stop()
        shutil.rmtree(server.state)  # pytest would keep 30 GB
        found = figures(sampler, 2 * shape.parameters())  # after a failure, prints the phases before it
    steps = [event for event in events if event.get("type") == "step"]
    assert steps, events[-3:]
    reported_peak = max([job["progress"]["peak_memory_bytes"], *(step["peak_memory_bytes"] for step in steps)])
    # The reported figure misses the last moments of the trainer, the samples miss spikes.
    peak = max(reported_peak, found["train"]["trainer"])
    max_rss, max_disk = bounds(shape, before.rss, plan["memory_total_bytes"])
    rss, disk = (max(phase[key] for phase in found.values()) for key in ("together", "disk"))
    growth = max(found[phase]["server_anon"] for phase in ("upload", "import")) - before.anon
    pools = {pool: size >> 20 for pool, size in plan["memory"].items()}
    print(f"{shape.parameters() / 1e9:.2f} B parameters, {sent} bytes of files; {os.cpu_count()} cores, computed in {COMPUTE}")
    print(f"plan {plan['memory_total_bytes'] / 2**20:.0f} MiB ({pools}), peak "
          f"{reported_peak / 2**20:.0f} MiB as reported, {found['train']['trainer'] / 2**20:.0f} MiB as sampled: "
          f"{peak / plan['memory_total_bytes'] - 1:+.1%} of the plan")
    print(f"import: the server's anonymous memory grew by {growth / 2**20:.0f} MiB; the largest tensor has "
          f"{shape.largest_bytes() / 2**20:.0f} MiB")
    print(f"trainers and server together {rss / 2**30:.2f} GiB (bound {max_rss / 2**30:.2f}), disk {disk / 1e9:.2f} GB (bound "
          f"{max_disk / 1e9:.2f})")
    print("steps: " + ", ".join(f"{step['step_ms'] / 1e3:.1f} s, loss {step['loss']:.3f}" for step in steps))
    footprint.write_json(f"eight_b_{SHAPE}.json", {
        "shape": dataclasses.asdict(shape), "parameters": shape.parameters(), "compute": COMPUTE, "bytes_sent": sent, "phases": found,
        "plan": plan, "peak_told_bytes": reported_peak, "peak_bytes": peak, "together_bytes": rss, "max_together_bytes": max_rss,
        "disk_bytes": disk, "max_disk_bytes": max_disk, "import_growth_bytes": growth, "steps": steps, "answer": answer})

    assert job["state"] == "SUCCEEDED" and job["attempt"] == 1, job
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["tokens"] == BATCH * SEQ_LEN for step in steps)
    # The logits of random weights are normal with variance STD^2 * hidden. The mean loss of such logits is log(vocab)
    # plus half of the variance, whatever the text.
    expected = math.log(shape.vocab) + (llama_shape.STD**2 * shape.hidden) / 2
    assert abs(steps[0]["loss"] - expected) < 0.5, f"loss {steps[0]['loss']}, expected {expected}"
    assert published["format"] == "lora" and len(answer["token_ids"]) == TOKENS and answer["finish_reason"] == "length"
    assert growth < 3 * shape.largest_bytes() + FIXED, "the import holds more than a tensor and two copies"
    error = abs(peak - plan["memory_total_bytes"]) / plan["memory_total_bytes"]
    assert error <= PLAN_ERROR, f"the peak differs from the plan by {error:.1%}"
    assert rss <= max_rss, "trainers and server took too much memory"
    assert disk <= max_disk, "too much disk"
