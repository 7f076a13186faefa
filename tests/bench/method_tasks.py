#!/usr/bin/env python3
"""Trains SmolLM2 with every method on a stated task, and prints held-out scores before, after and as served.

usage: method_tasks.py MODEL [--bin build/release/bin] [--steps 60] [--score-rows 100] [--only NAME ...] [--json OUT.json]
MODEL is a GGUF file or a Hugging Face directory of SmolLM2-135M-Instruct. The task (deploy/wordnet_dataset.py --task
kinds): name the kind of a thing, one word of eleven, from the word and its definition. Score: the share of held-out
questions whose greedy answer is exactly that word. Questions of the score are in no training row. Runs whose model
cannot answer after so few steps (bitnet_qat, init RANDOM) are scored by their held-out loss. "served" is the int8 or
ternary model of `models convert`, or the result itself if that is served. Fails if a method does not learn, if `models
verify` of the served model finds a difference, if serving changes the loss by 0.1 nats or more, or if serving lowers
the score by 5 points or more.
"""
import argparse
import dataclasses
import json
import pathlib
import tempfile
import time

from nibbled import convert, cpu_name, serve, trained_losses, upload_wordnet


@dataclasses.dataclass
class Run:
    spec: dict  # of the job
    lr: str
    served: str = "int8"  # format of the conversion; "": the result is served
    by_loss: bool = False
    steps: int = 1  # times --steps


RANDOM = "WEIGHT_INIT_RANDOM"
RUNS = {
    "lora, bf16 base": Run({"lora": {}}, "1e-3"),
    "qlora": Run({"qlora": {}}, "1e-3"),
    "qlora, merge-aware": Run({"qlora": {"merge_aware_int8": True}}, "1e-3"),
    "full": Run({"full": {}}, "1e-4"),
    "int8_mixed": Run({"int8_mixed": {}}, "1e-4"),
    "int8_qt": Run({"int8_qt": {}}, "1e-4", served=""),
    "int8_qt, compute float": Run({"int8_qt": {"compute": "INT8_QT_COMPUTE_FLOAT"}}, "1e-4", served=""),
    "bitnet_qat": Run({"bitnet_qat": {}}, "1e-3", served="ternary", by_loss=True, steps=2),
    "full, init random": Run({"full": {"init": RANDOM}}, "1e-3", by_loss=True, steps=2),
}


def scores(nibble, a, b, rows, prompts):
    """The shares of rows whose greedy answer by model `a`, and by model `b`, is exactly the row's."""
    answers = [json.loads(line) for line in nibble("models", "compare", a, b, "--prompts", prompts, "--max-tokens", 8).splitlines()]
    wanted = [row["messages"][-1]["content"] for row in rows]
    return [sum(answer[which]["text"].strip() == text for answer, text in zip(answers, wanted, strict=True)) / len(rows)
            for which in ("a", "b")]


def train(nibble, run, name, steps, directory):
    """Runs a job; returns its evaluation losses as trained, from the base to the result."""
    path = directory / "spec.json"
    path.write_text(json.dumps(run.spec))
    text = nibble("jobs", "create", "--spec", path, "--base", "base", "--dataset", "train", "--eval-dataset", "eval", "--output", name,
                  "--max-steps", steps * run.steps, "--micro-batch", 4, "--seq-len", 256, "--lr", run.lr, "--warmup", 5, "--seed", 1,
                  "--save-every", 0, "--watch")
    return trained_losses(text)


def measure(nibble, number, run, steps, rows, directory):
    """Trains, converts and evaluates: the scores or losses before, after and as served."""
    trained = served = f"run{number}"
    begun = time.monotonic()
    losses = train(nibble, run, trained, steps, directory)
    result = {"steps": steps * run.steps, "loss before": losses[0], "loss trained": losses[-1], "seconds": time.monotonic() - begun}
    if run.served:
        served = f"run{number}-{run.served}"
        result["loss served"], result["verify"] = convert(nibble, trained, run.served, served)
    else:
        result["loss served"], result["verify"] = losses[-1], json.loads(nibble("models", "verify", served))["equal"]
    if not run.by_loss:
        result["score before"], result["score trained"] = scores(nibble, "base", trained, rows, directory / "eval.jsonl")
        result["score served"] = result["score trained"]
        if served != trained:
            result["score served"] = scores(nibble, served, served, rows, directory / "eval.jsonl")[0]
    return result


def check(name, run, result):
    assert result["verify"], f"{name}: serving does not compute what was recorded"
    assert result["loss trained"] < 0.8 * result["loss before"], f"{name} does not learn: {result}"
    assert abs(result["loss served"] - result["loss trained"]) < 0.1, f"{name}: serving changes the loss: {result}"
    if run.by_loss:
        return
    assert result["score trained"] > result["score before"] + 0.2, f"{name} does not learn the task: {result}"
    assert result["score served"] > result["score trained"] - 0.05, f"{name}: serving changes the score: {result}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--score-rows", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    results = {}
    print(f"{cpu_name()}; score of {args.score_rows} held-out questions, or loss in nats per token of an answer")
    print(f"{'method':26} {'steps':>5} {'before':>8} {'trained':>8} {'served':>8}  {'loss':>6} {'':>6} {'':>6}  {'seconds':>7}")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        with serve(args.bin, directory / "state") as nibble:
            nibble("models", "import", args.model, "--name", "base", "--dtype", "bf16")
            upload_wordnet(nibble, directory, "--task", "kinds", "--eval-rows", str(args.score_rows))
            rows = [json.loads(line) for line in (directory / "eval.jsonl").read_text().splitlines()]
            for name in args.only:
                run = RUNS[name]
                result = results[name] = measure(nibble, list(RUNS).index(name), run, args.steps, rows, directory)
                stages = ("before", "trained", "served")
                shown = [" " * 8] * 3 if run.by_loss else [f"{result[f'score {stage}']:8.0%}" for stage in stages]
                losses = [f"{result[f'loss {stage}']:6.3f}" for stage in stages]
                print(f"{name:26} {result['steps']:5} {' '.join(shown)}  {' '.join(losses)}  {result['seconds']:7.0f}", flush=True)
                check(name, run, result)
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu_name(), "runs": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
